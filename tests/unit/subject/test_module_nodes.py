"""A module as the list of nodes that the theory reads."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from fingerprints import fingerprint
from normscope.errors import InputError, MeasurementError, TheoryError
from normscope.nn.init import INITS, initialize
from normscope.nn.zoo.residual import cifar_preresnet, cifar_resnet
from normscope.subject.nodes import module_nodes, nodes_and_data
from normscope.theory.graph import nodes as theory
from normscope.theory.graph.specs import graph_of

LEFT_OUT = {"name", "inputs", "weight_variance", "bias_variance"}


def told(graph):
    """The nodes without their names: kind, which nodes they read, and settings."""
    place = {node.name: k for k, node in enumerate(graph.nodes)}
    return [
        (
            type(node).__name__,
            tuple(place[name] for name in node.inputs),
            {f.name: getattr(node, f.name) for f in fields(node) if f.name not in LEFT_OUT},
        )
        for node in graph.nodes
    ]


def images(size=8, channels=3):
    return torch.randn(4, channels, size, size, generator=torch.Generator().manual_seed(0))


class Calling(nn.Module):
    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def conv(inputs, outputs, kernel=3, **settings):
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **settings)


# ---- specs


@pytest.mark.parametrize(
    "spec",
    [
        ns.mlp([20, 50, 40, 3]),
        ns.mlp([20, 50, 40, 3], norm="batch", activation="tanh"),
        ns.mlp([20, 50, 40, 3], norm="layer", activation="leaky_relu(0.1)", bias_variance=0.5),
        ns.cnn((3, 8, 8), channels=[4, 8], outputs=3, padding=1, stride=2, norm="batch"),
        ns.cnn((3, 8, 8), channels=[4, 8], outputs=3, head="pool", activation="gelu"),
        ns.residual_mlp([20, 50, 50, 50, 3], branch_scale=0.5),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_a_built_spec_gives_the_nodes_of_the_spec(spec):
    net = ns.build(spec, seed=3)
    read = module_nodes(net, torch.randn(4, *spec.input_shape))
    assert told(read.graph) == told(graph_of(spec, parameters="all"))
    affine = [node for node in read.graph.nodes if hasattr(node, "weight_variance")]
    for node, layer, found in zip(affine, spec.layers, read.weights, strict=True):
        assert abs(node.weight_variance - layer.weight_variance) < 5 * found.standard_error


def test_weights_only_is_the_theory_s_set():
    spec = ns.mlp([20, 50, 3], norm="batch")
    read = module_nodes(ns.build(spec), torch.randn(4, 20), parameters="weights")
    assert told(read.graph) == told(graph_of(spec, parameters="weights"))


# ---- residual networks


def _resnet(shortcut, widths=(4, 8, 16)):
    """ResNet-8 with the norm behind each convolution, by hand."""
    both = {"kernel": 3, "padding": 1, "weight_variance": 2.0, "parameters": ("weight",)}
    made = [theory.Input("x", size=(3, 8, 8))]

    def add(node):
        made.append(node)
        return node.name

    def convolved(name, source, outputs, stride=1, **other):
        add(theory.Conv(name, (source,), outputs=outputs, stride=stride, **{**both, **other}))
        return add(theory.BatchNorm(f"{name}.bn", (name,), eps=1e-5))

    def relu(name, source):
        return add(theory.Activate(name, (source,), activation="relu"))

    stream, before = relu("relu", convolved("stem", "x", widths[0])), widths[0]
    for k, width in enumerate(widths):
        stride = 1 if k == 0 else 2
        inner = relu(f"{k}.relu1", convolved(f"{k}.conv1", stream, width, stride))
        branch = convolved(f"{k}.conv2", inner, width)
        if width != before and shortcut == "pad":
            stream = add(theory.Shortcut(f"{k}.short", (stream,), stride=2, after=width - before))
        elif width != before:
            stream = convolved(f"{k}.proj", stream, width, stride, kernel=1, padding=0)
        stream = relu(f"{k}.relu2", add(theory.Add(f"{k}.add", (branch, stream))))
        before = width
    add(theory.GlobalPool("pool", (stream,)))
    add(theory.Dense("fc", ("pool",), outputs=10, weight_variance=2.0, bias_variance=0.0))
    return theory.Graph(tuple(made))


@pytest.mark.parametrize("shortcut", ["pad", "projection"])
def test_resnet_8(shortcut):
    net = cifar_resnet(8, width=4, shortcut=shortcut)
    assert told(module_nodes(net, images()).graph) == told(_resnet(shortcut))


@pytest.mark.parametrize("depth", [8, 20])
def test_preactivation_resnets(depth):
    read = module_nodes(cifar_preresnet(depth, width=4), images())
    kinds = [type(node).__name__ for node in read.graph.nodes]
    blocks = (depth - 2) // 2
    assert kinds.count("Add") == blocks
    assert kinds.count("Conv") == 2 * blocks + 1
    assert kinds.count("BatchNorm") == kinds.count("Activate") == 2 * blocks + 1
    assert kinds.count("Shortcut") == 2
    norm = next(node for node in read.graph.nodes if isinstance(node, theory.BatchNorm))
    assert isinstance(next(n for n in read.graph.nodes if n.name in norm.inputs), theory.Conv)


def test_parameters_are_all_counted():
    for net in (cifar_resnet(20, width=4), cifar_preresnet(8, width=4)):
        read = module_nodes(net, images())
        assert read.graph.num_parameters() == sum(p.numel() for p in net.parameters())


SHORTCUTS = {
    "pad": lambda h: functional.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 0, 4)),
    "new zeros": lambda h: torch.cat([h[..., ::2, ::2], h.new_zeros(len(h), 4, 4, 4)], 1),
    "zeros": lambda h: torch.cat([h[:, :, ::2, ::2], torch.zeros(len(h), 4, 4, 4)], dim=-3),
    "zeros like": lambda h: torch.cat([h[:, :, ::2, ::2], torch.zeros_like(h[:, :, ::2, ::2])], 1),
    "times 0": lambda h: torch.cat([h[:, :, ::2, ::2], h[:, :, ::2, ::2].mul(0)], 1),
    "pool of one": lambda h: functional.pad(functional.avg_pool2d(h, 1, 2), (0, 0, 0, 0, 0, 4)),
}


@pytest.mark.parametrize("how", SHORTCUTS)
def test_shortcuts_of_type_a_written_in_forward(how):
    net = Calling(
        lambda s, x: s.fc((s.b(s.a(x)) + SHORTCUTS[how](s.a(x))).mean((2, 3))),
        a=nn.Identity(), b=conv(4, 8, stride=2), fc=nn.Linear(8, 5),
    )  # fmt: skip
    wrapped = nn.Sequential(conv(3, 4), net)
    nodes = module_nodes(wrapped, images()).graph.nodes
    assert [type(n).__name__ for n in nodes[2:]] == [
        *("Conv", "Shortcut", "Add", "GlobalPool", "Dense")
    ]
    shortcut = nodes[3]
    assert (shortcut.stride, shortcut.before, shortcut.after) == (2, 0, 4)


def test_zeros_on_both_sides_of_the_channels():
    net = Calling(
        lambda s, x: s.fc((s.b(x) + functional.pad(x, (0, 0, 0, 0, 2, 3))).mean((2, 3))),
        b=conv(3, 8), fc=nn.Linear(8, 5),
    )  # fmt: skip
    found = module_nodes(net, images()).graph.nodes[2]
    assert (found.stride, found.before, found.after) == (1, 2, 3)


# ---- single nodes


def _only(net, x, kind):
    (found,) = [n for n in module_nodes(net, x).graph.nodes if isinstance(n, kind)]
    return found


def test_a_convolution_with_everything():
    net = nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), stride=(2, 1), padding=(1, 4), dilation=(1, 2)),
        nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 8, 2),
    )  # fmt: skip
    found = _only(net, images(), theory.Conv)
    assert (found.kernel, found.stride) == ((3, 5), (2, 1))
    assert (found.padding, found.dilation) == ((1, 4), (1, 2))


def test_zeros_on_one_side_belong_to_the_convolution():
    net = Calling(
        lambda s, x: s.fc(s.conv(functional.pad(x, (0, 1, 0, 1))).mean((2, 3))),
        conv=nn.Conv2d(3, 4, 3, stride=2), fc=nn.Linear(4, 2),
    )  # fmt: skip
    assert _only(net, images(), theory.Conv).padding == ((0, 1), (0, 1))


def test_one_dimension():
    net = nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.AvgPool1d(2),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2),
    )  # fmt: skip
    read = module_nodes(net, torch.randn(4, 2, 16))
    assert [type(n).__name__ for n in read.graph.nodes] == [
        *("Input", "Conv", "Activate", "AveragePool", "GlobalPool", "Dense")
    ]
    assert read.graph.shapes["2"] == (8, 8)


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        (lambda h: h.mean((2, 3)), theory.GlobalPool),
        (lambda h: h.flatten(2).mean(-1), theory.GlobalPool),
        (lambda h: functional.adaptive_avg_pool2d(h, 1).flatten(1), theory.GlobalPool),
        (lambda h: functional.avg_pool2d(h, h.shape[-1]).view(len(h), -1), theory.GlobalPool),
        (lambda h: functional.adaptive_avg_pool2d(h, 1)[:, :, 0, 0], None),
    ],
)
def test_means_over_all_positions(pool, kind):
    net = Calling(lambda s, x: s.fc(pool(s.a(x))), a=conv(3, 4), fc=nn.Linear(4, 2))
    if kind is None:
        with pytest.raises(TheoryError, match="a part of the channels or of the image"):
            module_nodes(net, images())
    else:
        assert isinstance(module_nodes(net, images()).graph.nodes[-2], kind)


def test_pooling_to_a_few_positions():
    net = nn.Sequential(conv(3, 4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    assert _only(net, images(), theory.AveragePool).kernel == 4
    net[1] = nn.AdaptiveAvgPool2d(3)
    net[3] = nn.Linear(36, 2)
    with pytest.raises(TheoryError, match="adaptive pooling of"):
        module_nodes(net, images())


def test_scaled_branches_and_differences():
    net = Calling(
        lambda s, x: s.fc((0.5 * s.a(x) - torch.add(s.b(x), s.c(x), alpha=0.3)).mean((2, 3))),
        a=conv(3, 4), b=conv(3, 4), c=conv(3, 4), fc=nn.Linear(4, 2),
    )  # fmt: skip
    nodes = module_nodes(net, images()).graph.nodes
    assert [n.factor for n in nodes if isinstance(n, theory.Scale)] == [0.5, 0.3, -1.0]


def test_concatenated_channels():
    net = Calling(
        lambda s, x: s.fc(torch.cat([s.a(x), s.b(x).relu()], 1).mean((2, 3))),
        a=conv(3, 4), b=conv(3, 4), fc=nn.Linear(8, 2),
    )  # fmt: skip
    assert len(_only(net, images(), theory.Concat).inputs) == 2


def test_images_that_are_flattened_first_are_vectors():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
    read = module_nodes(net, images(8, 1))
    assert [type(n).__name__ for n in read.graph.nodes] == ["Input", "Dense", "Activate", "Dense"]
    assert read.graph.nodes[0].size == (64,)
    data = images(8, 1).numpy()
    np.testing.assert_array_equal(read.arranged(data), data.reshape(4, 64))


def test_channels_last():
    net = nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Flatten(), nn.Linear(15, 2)
    )
    x = torch.randn(4, 5, 6)
    read = module_nodes(net, x)
    assert read.graph.nodes[0].size == (6, 5)
    assert read.graph.nodes[2].over == "position"
    np.testing.assert_allclose(read.arranged(x.numpy()), x.numpy().transpose(0, 2, 1))
    with pytest.raises(InputError, match="samples of shape"):
        read.arranged(np.zeros((4, 5, 7)))


class _OwnRMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.5))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (nn.LayerNorm(16), theory.LayerNorm("n", ("i",), eps=1e-5)),
        (nn.GroupNorm(2, 16), theory.LayerNorm("n", ("i",), eps=1e-5)),
        (nn.RMSNorm(16, eps=1e-4), theory.RMSNorm("n", ("i",), eps=1e-4)),
        (_OwnRMSNorm(16), theory.RMSNorm("n", ("i",), gamma=1.5)),
        (
            nn.BatchNorm1d(16, eps=0.1, affine=False),
            theory.BatchNorm("n", ("i",), eps=0.1, parameters=()),
        ),
        (ns.BatchNorm(16), theory.BatchNorm("n", ("i",), eps=1e-5)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_norms(norm, expected):
    net = nn.Sequential(nn.Linear(8, 16), norm, nn.ReLU(), nn.Linear(16, 2)).double()
    found = module_nodes(net, torch.randn(4, 8)).graph.nodes[2]
    assert type(found) is type(expected)
    for field in fields(expected):
        if field.name not in ("name", "inputs", "eps"):
            assert getattr(found, field.name) == getattr(expected, field.name), field.name
    if not isinstance(norm, _OwnRMSNorm):  # its eps is not known from outside
        assert found.eps == expected.eps


def test_a_batch_norm_in_evaluation_mode_uses_stored_statistics():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).train()
    assert _only(net, torch.randn(4, 8), theory.BatchNorm).statistics is None
    net[1].eval()
    net[1].running_var.fill_(4.0)
    found = _only(net, torch.randn(4, 8), theory.BatchNorm)
    assert found.statistics == "running"
    assert found.running_variance == pytest.approx(4.0)


# ---- refusals


def _both(s, x):
    return s.fc((s.a(x) * torch.sigmoid(s.b(x))).mean((2, 3)))


def _calling(function, **more):
    layers = {"a": conv(3, 8), "b": conv(3, 8), "fc": nn.Linear(8, 2), **more}
    return Calling(function, **layers)


@pytest.mark.parametrize(
    ("what", "net"),
    [
        ("max pooling, node 'pool'", _calling(
            lambda s, x: s.fc(s.pool(s.a(x)).mean((2, 3))), pool=nn.MaxPool2d(2))),
        ("a product of two signals", _calling(_both)),
        ("a grouped convolution .groups = 3., node 'b'", _calling(
            lambda s, x: s.fc(s.b(x).mean((2, 3))), b=conv(3, 9, groups=3),
            fc=nn.Linear(9, 2))),
        ("a transposed convolution, node 'b'", _calling(
            lambda s, x: s.fc(s.b(x).mean((2, 3))), b=nn.ConvTranspose2d(3, 8, 3))),
        ("the activation elu, node 'act'", _calling(
            lambda s, x: s.fc(s.act(s.a(x)).mean((2, 3))), act=nn.ELU())),
        ("softmax", _calling(lambda s, x: torch.softmax(s.fc(s.a(x).mean((2, 3))), 1))),
        ("ends with BatchNorm", _calling(
            lambda s, x: s.bn(s.fc(s.a(x).mean((2, 3)))), bn=nn.BatchNorm1d(2))),
        ("a part of the channels", _calling(lambda s, x: s.fc(s.a(x)[:, :, 1:].mean((2, 3))))),
        ("a parameter outside layers and norms .scale.", _calling(
            lambda s, x: s.fc((s.a(x) * s.scale).mean((2, 3))), scale=nn.Parameter(torch.ones(1)))),
        ("weights that are computed from others", _calling(
            lambda s, x: s.fc(s.a(x).mean((2, 3))),
            a=nn.utils.parametrizations.weight_norm(conv(3, 8)))),
        ("InstanceNorm2d", _calling(
            lambda s, x: s.fc(s.norm(s.a(x)).mean((2, 3))), norm=nn.InstanceNorm2d(8))),
        ("group norm with 4 channels in a group", _calling(
            lambda s, x: s.fc(s.norm(s.a(x)).mean((2, 3))), norm=nn.GroupNorm(2, 8))),
        ("a sum of tensors of different shapes", _calling(
            lambda s, x: s.fc((s.a(x) + s.b(x).mean((2, 3), keepdim=True)).mean((2, 3))))),
        ("zeros around an image", _calling(
            lambda s, x: s.fc(functional.pad(s.a(x), (1, 1, 1, 1)).relu().mean((2, 3))))),
    ],
)  # fmt: skip
def test_what_has_no_rule_is_refused_by_name(what, net):
    with pytest.raises(TheoryError, match=what) as refused:
        module_nodes(net, images())
    assert "easure the network" in str(refused.value)


@pytest.mark.parametrize(
    ("what", "net", "x"),
    [
        ("a recurrent layer, node 'LSTM'", nn.LSTM(4, 5), torch.randn(3, 4, 4)),
        ("indices", nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 2)),
         torch.tensor([[1, 2], [3, 4]])),
        ("node 'self_attn", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
         torch.randn(3, 4, 8)),
    ],
)  # fmt: skip
def test_other_networks_are_refused(what, net, x):
    with pytest.raises(TheoryError, match=what):
        module_nodes(net, x)


# ---- weights


@pytest.mark.parametrize("scheme", [s for s in INITS if s != "orthogonal"])
def test_random_weights_raise_no_doubt_and_their_scheme_is_found(scheme):
    net = cifar_resnet(20, width=8)
    for seed in range(3):
        initialize(net, scheme, seed=seed)
        read = module_nodes(net, images())
        assert read.flags == ()
        known = scheme.removesuffix("-uniform") if scheme == "xavier-uniform" else scheme
        named = [layer.schemes[0] for layer in read.weights]
        assert named.count(known) > 0.8 * len(named)


def test_orthogonal_weights_are_named():
    net = nn.Sequential(
        nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    initialize(net, "orthogonal")
    initialize(net[4], "he")
    (flag,) = module_nodes(net, torch.randn(4, 64)).flags
    assert flag.startswith("The weights of 0, 2 are orthogonal")


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w + 0.3 * w.std(),
        lambda w: w * torch.linspace(0.5, 1.5, len(w))[:, None],
        lambda w: w * torch.linspace(0.5, 1.5, w.shape[1]),
        lambda w: w + 0.3 * w.std() * torch.randn(len(w), 1) * torch.randn(1, w.shape[1]),
    ],
    ids=["mean", "rows", "columns", "one direction"],
)
def test_weights_that_are_no_independent_draws_are_flagged(change):
    net = nn.Sequential(nn.Linear(100, 80), nn.ReLU(), nn.Linear(80, 2))
    initialize(net, "he", seed=1)
    with torch.no_grad():
        net[0].weight.copy_(change(net[0].weight))
    (flag,) = module_nodes(net, torch.randn(4, 100)).flags
    assert flag.startswith("The weights of 0 look trained")


def test_a_trained_network_is_flagged():
    torch.manual_seed(0)
    data = ns.load_data("digits")
    x = torch.as_tensor(data.images).to(torch.get_default_dtype()).flatten(1)
    y = torch.as_tensor(data.labels)
    net = nn.Sequential(nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))
    assert module_nodes(net, x[:4]).flags == ()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        pick = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        functional.cross_entropy(net(x[pick]), y[pick]).backward()
        optimizer.step()
    flags = " ".join(module_nodes(net, x[:4]).flags)
    assert "look trained" in flags
    assert "gamma of 1" in flags
    assert "beta of 1" in flags
    assert "stored statistics" not in flags
    assert "stored statistics" in " ".join(module_nodes(net, x[:4], statistics="running").flags)


def test_shared_weights_are_flagged():
    net = Calling(
        lambda s, x: s.fc(s.b(s.b(s.a(x)).relu()).mean((2, 3))),
        a=conv(3, 8), b=conv(8, 8), fc=nn.Linear(8, 2),
    )  # fmt: skip
    (flag,) = module_nodes(net, images()).flags
    assert "b#2 uses the weights of b" in flag


def test_the_model_is_left_as_it_was():
    net = cifar_resnet(8, width=4).train()
    net.norm1.eval()
    x = images()
    before = fingerprint(net, x)
    module_nodes(net, x)
    with pytest.raises(TheoryError):
        module_nodes(nn.Sequential(net, nn.Softmax(1)), x)
    assert fingerprint(net, x) == before


# ---- with data


def _pair(samples=6):
    x = images()[:1].expand(samples, -1, -1, -1).contiguous()
    return x + torch.arange(samples)[:, None, None, None], torch.zeros(samples, dtype=torch.long)


def test_the_first_batch_is_taken_as_a_measurement_takes_it():
    net, (x, y) = cifar_resnet(8, width=4), _pair()
    read, data = nodes_and_data(net, (x, y), samples=4, parameters="weights")
    assert data.shape == (4, 3, 8, 8)
    assert {tuple(row.ravel()) for row in data} <= {tuple(row.ravel()) for row in x.numpy()}
    assert {kind for _, kind in read.graph.counts()} == {"weight"}
    loader = [(x[:5], y[:5]), (x[5:], y[5:])]
    np.testing.assert_array_equal(nodes_and_data(net, loader)[1], x[:5].numpy())


def test_batch_norm_and_a_batch_of_one():
    net, (x, y) = cifar_resnet(8, width=4), _pair()
    with pytest.raises(InputError, match="one sample, but 'norm1' normalizes over the batch"):
        nodes_and_data(net, (x, y), samples=1)
    assert nodes_and_data(net, (x, y), samples=1, statistics="running")[1].shape[0] == 1


def test_data_of_the_wrong_shape_and_unknown_statistics():
    net, (x, y) = cifar_resnet(8, width=4), _pair()
    with pytest.raises(MeasurementError, match="to have 3 channels, but got 2"):
        nodes_and_data(net, (x[:, :2], y))
    with pytest.raises(InputError, match="Unknown statistics 'moving'"):
        nodes_and_data(net, (x, y), statistics="moving")
    with pytest.raises(InputError, match="NaN"):
        nodes_and_data(net, (x * float("nan"), y))


def test_a_loader_and_the_generators_are_left_as_they_were():
    net, (x, y) = cifar_resnet(8, width=4).train(), _pair()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 3, shuffle=True)
    before = fingerprint(net, x)
    nodes_and_data(net, loader)
    assert fingerprint(net, x) == before
