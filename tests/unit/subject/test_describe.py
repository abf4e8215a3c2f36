"""From a spec to a module and back; what cannot be read is said."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.errors import InputError
from normscope.nn.activations import activation_module, register_activation_module
from normscope.nn.build import build
from normscope.spec.activations import ACTIVATIONS, activation, register_activation
from normscope.subject.describe import Description, describe

NAMES = ["relu", "tanh", "linear", "sigmoid", "softplus", "gelu", "silu", "leaky_relu(0.2)",
         "erf(0.5)"]  # fmt: skip
NORMS = [None, "batch", "layer", ns.NormSpec("batch", 1.0, ("mean", "variance"), 1e-3),
         ns.NormSpec("layer", 0.3, ("mean", "variance", "scale"))]  # fmt: skip
SHARED = {
    "activation": st.sampled_from(NAMES),
    "weight_variance": st.floats(0.1, 4.0),
    "bias_variance": st.sampled_from([0.0, 0.3]),
    "norm": st.sampled_from(NORMS),
    "last_norm": st.sampled_from([None, "mean", "variance", "batch", "layer"]),
}
widths = st.lists(st.integers(1, 40), min_size=2, max_size=5)
mlps = st.builds(ns.mlp, widths, **SHARED)
cnns = st.builds(
    ns.cnn, st.sampled_from([(3, 12, 12), (1, 9, 13)]),
    channels=st.lists(st.integers(1, 8), min_size=1, max_size=2), kernel=st.integers(1, 3),
    stride=st.integers(1, 2), padding=st.integers(0, 1), outputs=st.integers(1, 5),
    head=st.sampled_from(["flatten", "pool"]), **SHARED,
)  # fmt: skip
residuals = st.builds(
    lambda width, depth, **kw: ns.residual_mlp([3, *[width] * depth, 2], **kw),
    st.integers(1, 30), st.integers(2, 4), branch_scale=st.sampled_from([1.0, 0.5, -0.3]), **SHARED,
)  # fmt: skip


@settings(max_examples=60)
@given(spec=mlps | cnns | residuals, seed=st.integers(0, 2**40))
def test_describe_gives_the_spec_back(spec, seed):
    model = build(spec, seed)
    found = describe(model, torch.zeros(3, *spec.input_shape))
    assert found.reason is None
    assert found.coverage == 1.0
    assert structure(found.spec) == structure(spec)
    for reading, layer in zip(found.layers, spec.layers, strict=True):
        for value, expected, count in (
            (reading.weight_variance, layer.weight_variance, reading.fan_in * layer.outputs),
            (reading.bias_variance, layer.bias_variance, layer.outputs),
        ):  # count values of variance sigma^2: count mean-square / sigma^2 is chi-square
            if expected > 0:
                ratio = count * value / expected
                assert stats.chi2.ppf(1e-10, count) <= ratio <= stats.chi2.isf(1e-10, count)
            else:
                assert value == 0


def structure(spec):
    """The spec without its variances; gamma to rounding."""
    layers = []
    for layer in spec.layers:
        norm = layer.norm
        if norm is not None:
            norm = (norm.kind, round(norm.gamma, 12), norm.parts, norm.eps)
        layers.append((layer.outputs, layer.activation, norm, layer.kernel, layer.stride,
                       layer.padding))  # fmt: skip
    convs = any(layer.is_conv for layer in spec.layers)
    head = spec.head if convs else "flatten"
    return spec.input_shape, layers, spec.last_norm, head, spec.branch_scale


@pytest.mark.parametrize("spec", [
    ns.mlp([300, 400, 400, 200], weight_variance=1.7, bias_variance=0.4, norm="batch", gamma=0.5),
    ns.cnn((3, 32, 32), channels=[30, 60, 90], stride=2, weight_variance=2.0, bias_variance=0.5),
    ns.residual_mlp([200] * 5 + [100], weight_variance=1.3, bias_variance=0.2),
], ids=["mlp", "cnn", "residual"])  # fmt: skip
def test_variances_within_four_standard_errors(spec):
    found = describe(build(spec, seed=11), torch.zeros(2, *spec.input_shape))
    for reading, layer in zip(found.layers, spec.layers, strict=True):
        assert abs(reading.weight_variance - layer.weight_variance) < 4 * reading.weight_error
        assert abs(reading.bias_variance - layer.bias_variance) < 4 * reading.bias_error


def test_the_module_is_the_network_of_the_theory():
    """Affine, norm, activation, read-out: against the formula written out."""
    spec = ns.mlp([6, 5, 4, 3], activation="tanh", bias_variance=0.5, norm="batch", gamma=0.7,
                  last_norm="mean")  # fmt: skip
    model = build(spec, seed=2)
    x = torch.randn(9, 6)
    h = x
    for number in (1, 2):
        layer = getattr(model, f"layer{number}")
        u = h @ layer.weight.T + layer.bias
        h = torch.tanh(0.7 * (u - u.mean(0)) / u.std(0, correction=0))
    out = h @ model.layer3.weight.T + model.layer3.bias
    torch.testing.assert_close(model(x), out - out.mean(0), rtol=1e-12, atol=1e-13)


def test_the_residual_form():
    spec = ns.residual_mlp([4, 5, 5, 5, 2], branch_scale=0.4, activation="tanh", bias_variance=0.3)
    model = build(spec, seed=2)
    x = torch.randn(7, 4)
    stream = model.layer1(x)
    for number in (2, 3):
        layer = getattr(model, f"branch{number}").layer
        stream = stream + 0.4 * (torch.tanh(stream) @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model(x), model.layer4(torch.tanh(stream)))


def test_heads_of_a_cnn():
    for head in ("flatten", "pool"):
        spec = ns.cnn((2, 7, 7), channels=[3], stride=2, padding=1, head=head, norm="layer")
        model = build(spec, seed=1)
        x = torch.randn(4, 2, 7, 7)
        u = functional.conv2d(x, model.layer1.weight, model.layer1.bias, stride=2, padding=1)
        mean, var = u.mean((1, 2, 3), keepdim=True), u.var((1, 2, 3), correction=0, keepdim=True)
        h = torch.relu((u - mean) / var.sqrt())
        h = h.mean((2, 3)) if head == "pool" else h.flatten(1)
        torch.testing.assert_close(model(x), model.layer2(h), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("spec", [ns.mlp([5, 4, 3]), ns.cnn((1, 5, 5), channels=[3])])
def test_seeds_dtypes_and_the_global_generator(spec):
    state = torch.get_rng_state()
    first, second = build(spec, seed=3), build(spec, seed=3, dtype=torch.float32)
    other = build(spec, seed=4)
    assert torch.equal(state, torch.get_rng_state())
    assert second.layer1.weight.dtype == torch.float32
    assert torch.equal(first.layer1.weight.float(), second.layer1.weight)
    assert not torch.equal(first.layer1.weight, other.layer1.weight)
    assert sum(p.numel() for p in first.parameters()) == spec.num_parameters("all")


@pytest.mark.parametrize("name", ["relu", "tanh", "linear", "sigmoid", "softplus", "gelu", "silu",
                                  "leaky_relu(0.3)", "leaky_relu", "erf(0.7)", "erf"])  # fmt: skip
def test_activations_are_those_of_the_spec(name):
    x = torch.linspace(-4, 4, 41)
    expected = torch.as_tensor(activation(name).function(x.numpy()))
    torch.testing.assert_close(activation_module(name)(x), expected, rtol=1e-12, atol=1e-13)


def test_an_activation_of_the_users_own():
    register_activation("cube", lambda x: x**3, lambda x: 3 * x**2, replace=True)

    class Cube(nn.Module):
        def forward(self, x):
            return x**3

    try:
        spec = ns.mlp([3, 4, 2], activation="cube")
        with pytest.raises(InputError, match="register_activation_module"):
            build(spec)
        register_activation_module("cube", Cube)
        found = describe(build(spec), torch.zeros(1, 3))
        assert found.spec.layers[0].activation == "cube"
    finally:
        from normscope.nn import activations

        ACTIVATIONS._entries.pop("cube")
        activations._PLAIN.pop("cube", None)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)
        self.fc1, self.fc2 = nn.Linear(4 * 7 * 7, 5), nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = x.view(x.size(0), -1)
        return self.fc2(functional.leaky_relu(self.fc1(x), 0.2))


def test_functional_layers_are_read():
    found = describe(Functional(), torch.zeros(2, 3, 16, 16))
    assert [layer.activation for layer in found.spec.layers] == ["relu", "leaky_relu(0.2)", None]
    assert found.spec.layers[0].norm.kind == "batch"
    assert found.spec.layers[0].norm.eps == 1e-5
    assert found.spec.layers[0].stride == 2


def test_gamma_is_its_rms_and_what_is_left_out_is_noted():
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2), nn.Dropout(0.3),
                          nn.ReLU(), nn.Linear(2, 1))  # fmt: skip
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([3.0, -4.0]))
        model[1].bias.copy_(torch.tensor([0.0, 1.0]))
    found = describe(model, torch.zeros(2, 3))
    assert found.spec.layers[0].norm.gamma == pytest.approx(12.5**0.5)
    notes = " ".join(found.layers[0].notes)
    assert all(word in notes for word in ("gamma varies", "beta", "no bias", "dropout"))


def residual_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return self.c(torch.relu(h + self.b(h)))

    return Block()


class Integers(nn.Module):
    def forward(self, x):
        return x.long()


class WrittenNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.a(x)
        return self.b((h - h.mean(1, keepdim=True)) / h.std(1, keepdim=True))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(torch.relu(self.layer(x)))


UNREAD = {
    "softmax": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)), "no counterpart"),
    "activation at the end": (lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "read-out"),
    "max pooling": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(),
                                          nn.Linear(2, 2)), "no counterpart"),
    "norm behind activation": (lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(),
                               nn.BatchNorm1d(2), nn.Linear(2, 2)), "behind the activation"),
    "other norm": (lambda: nn.Sequential(nn.Linear(3, 2), nn.RMSNorm(2), nn.ReLU(),
                                         nn.Linear(2, 2)), "not RMSNorm"),
    "grouped conv": (lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(),
                                           nn.Linear(8, 2)), "groups = 2"),
    "reflected conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1,
                       padding_mode="reflect"), nn.Flatten(), nn.Linear(32, 2)), "reflect"),
    "oblong conv": (lambda: nn.Sequential(nn.Conv2d(1, 2, (1, 3)), nn.Flatten(),
                                          nn.Linear(16, 2)), "square"),
    "1-d conv": (lambda: nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.Flatten(),
                                       nn.Linear(4, 2)), "not 1-d ones"),
    "transposed conv": (lambda: nn.Sequential(nn.Unflatten(1, (3, 1, 1)),
                        nn.ConvTranspose2d(3, 2, 2), nn.Flatten(), nn.Linear(8, 2)), "transposed"),
    "embedding": (lambda: nn.Sequential(Integers(), nn.Embedding(4, 2), nn.Flatten(),
                                        nn.Linear(6, 2)), "not embedding"),
    "written norm": (WrittenNorm, "used 3 times"),
    "weight norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
                                          nn.ReLU(), nn.Linear(2, 2)), "computed from others"),
    "other residual form": (residual_block, "branches"),
    "no layer on this path": (Branching, "no linear"),
    "shared layer": (Tied, "used twice"),
    "nothing to read": (nn.ReLU, "no parameters"),
    "tanh gelu": (lambda: nn.Sequential(nn.Linear(3, 2), nn.GELU("tanh"), nn.Linear(2, 2)),
                  "no counterpart"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNREAD)
def test_what_cannot_be_read_has_a_reason(what):
    make, reason = UNREAD[what]
    model = make()
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    example = torch.zeros(2, convs[0].in_channels, 4, 4) if convs else torch.zeros(2, 3)
    found = describe(model, example)
    assert found.spec is None
    assert reason in found.reason
    names = {n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))}
    assert names <= {row.name for row in found.layers}  # every layer has a row
    assert reason in found.summary()


def test_an_example_that_does_not_fit():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    assert "cannot be run on the example" in describe(model, torch.zeros(2, 13)).reason
    assert "2x13 and 12x2" in describe(model, torch.zeros(2, 13)).reason
    positions = describe(nn.Sequential(nn.Linear(12, 2)), torch.zeros(2, 5, 12))
    assert "takes 12 inputs" in positions.reason
    assert describe(model, torch.zeros(2, 3, 4)).spec.input_shape == (12,)
    assert describe(model, torch.zeros(2, 3, 2, 2)).spec.input_shape == (3, 2, 2)
    assert "batch" in describe(model, {"x": 1}).reason
    with pytest.raises(InputError, match=r"nn\.Module\. Got a str"):
        describe("resnet20", torch.zeros(2, 3))
    with pytest.raises(InputError, match="before it was exported"):
        describe(torch.export.export(model, (torch.zeros(2, 12),)), torch.zeros(2, 12))
    with pytest.raises(InputError, match="NetworkSpec"):
        build("mlp:3-2")


def test_describe_changes_nothing_and_is_data():
    model = Functional().train()
    model.counter = 0
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found = describe(model, torch.zeros(2, 3, 16, 16))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert not model._forward_hooks
    assert Description.from_json(found.to_json()) == found
    assert list(found.to_frame()["name"]) == ["conv", "fc1", "fc2"]


def test_built_networks_can_be_predicted_and_described_networks_too():
    spec = ns.mlp([100, 200, 200, 10], weight_variance=2.0, bias_variance=0.5)
    found = describe(build(spec, seed=0), torch.zeros(1, 100))
    exact, read = ns.predict(spec).lambda_max, ns.predict(found.spec).lambda_max
    assert abs(read / exact - 1) < 0.1


def test_layers_that_were_not_reached_still_have_their_numbers():
    from normscope.nn import network

    found = describe(network("resnet8", init="he", gamma=0.5), torch.zeros(1, 3, 32, 32))
    assert found.spec is None
    assert found.coverage < 0.1
    rows = {row.name: row for row in found.layers}
    conv, norm = rows["stage3.0.conv2"], rows["stage3.0.norm2"]
    assert abs(conv.weight_variance - 2.0) < 4 * conv.weight_error
    assert (norm.norm, norm.gamma) == ("batch", 0.5)
    assert not conv.ok


def test_compiled_models_are_described():
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model = torch.compile(plain, backend="eager")
    found = describe(model, torch.zeros(1, 3))
    assert found.spec.widths == (3, 4, 2)
    assert found.layers[0].name == "_orig_mod.0"
    assert found.coverage == 1.0


def test_a_constant_gain_is_read_as_a_scale():
    norm = ns.BatchNorm(5, parts=("mean", "variance"), gamma=0.3)
    model = nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Linear(5, 2))
    found = describe(model, torch.zeros(2, 4))
    assert found.spec.layers[0].norm.gamma == 0.3
    assert found.spec.layers[0].norm.parts == ("mean", "variance", "scale")
    assert "constant" in found.layers[0].notes[-1]


def test_a_pass_that_depends_on_values_is_read():
    found = describe(Branching(), torch.ones(2, 3))
    assert found.spec.widths == (3, 2)
    assert found.coverage == 1.0


class ByHand(nn.Module):
    """Weights of its own in another order, as in transformers' Conv1D, and every function."""

    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(4))
        self.w2, self.w3 = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(2, 5))
        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(5)

    def forward(self, x):
        x = torch.tanh(torch.addmm(self.b1, x, self.w1))
        x = functional.dropout(self.norm(x @ self.w2), 0.2, self.training)
        return functional.linear(self.drop(functional.relu(x)), self.w3)


def test_layers_are_known_by_what_they_compute():
    model = ByHand()
    found = describe(model, {"x": torch.zeros(2, 3)})
    assert found.reason is None
    assert found.spec.widths == (3, 4, 5, 2)
    assert [layer.activation for layer in found.layers] == ["tanh", "relu", None]
    assert [layer.norm for layer in found.layers] == [None, "layer", None]
    assert found.layers[0].weight_variance == pytest.approx(3 * model.w1.square().mean().item())
    assert found.layers[0].bias_variance == pytest.approx(model.b1.square().mean().item())
    assert found.layers[0].notes == ()
    assert [note for note in found.layers[1].notes if "dropout" in note] == [
        "dropout is left out: the theory has no dropout",
        "drop is left out: the theory has no dropout",
    ]
    assert found.coverage == 1.0


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding="same"), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(functional.gelu(self.conv(x), approximate="none").mean((-1, -2)))


def test_pooling_as_a_mean_and_other_precisions():
    found = describe(Pooled().float(), torch.zeros(1, 3, 6, 6, dtype=torch.float64))
    assert found.spec.head == "pool"
    assert found.spec.layers[0].padding == 1
    assert found.spec.layers[0].activation == "gelu"


def test_several_inputs_are_one_too_many():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, y):
            return self.layer(x + y)

    found = describe(Two(), (torch.zeros(2, 3), torch.zeros(2, 3)))
    assert "takes 2 inputs" in found.reason
    assert [row.name for row in found.layers] == ["layer"]


REFUSED = [
    (lambda: torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)), "before it was scripted"),
    (lambda: nn.Sequential(nn.LazyLinear(2)), "Run the model once"),
    (lambda: nn.Linear(3, 2, device="meta"), "to_empty"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_models_that_cannot_be_run_as_they_are(make, reason):
    assert reason in describe(make(), torch.zeros(2, 3)).reason
