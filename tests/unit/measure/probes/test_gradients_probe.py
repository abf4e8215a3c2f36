"""Gradients of every layer against autograd, numpy and scipy; classes, channels, bad input."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional

from cases import ROSTER
from normscope import gradient_noise, landscape, report
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.gradients import gradients
from normscope.measure.probes.signals import signals
from normscope.results import Gradients


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def labels(n, classes=4, seed=5):
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


def conv_net(norm=False):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.BatchNorm2d(6) if norm else nn.Identity(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 4),
    )


DATA = (normal(10, 2, 6, 6), labels(10))


def autograd(net, data=DATA):
    net.zero_grad()
    functional.cross_entropy(net(data[0]), data[1]).backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_every_network_of_the_roster(case):
    found = gradients(
        case.build(), [(case.inputs, case.targets)], case.loss, statistics=case.statistics
    )
    assert found.layers
    for layer in found.layers:
        assert layer.std >= 0
        if layer.kind in ("embedding", "recurrent"):
            assert math.isnan(layer.t1)
            continue
        small = 1e-9 * layer.t1
        assert layer.t4 <= layer.t2 + small <= layer.t1 + 2 * small
        assert layer.t4 <= layer.t3 + small <= layer.t1 + 2 * small
    assert Gradients.from_json(found.to_json()) == found
    assert len(found.to_frame()) == len(found.coverage.layers)
    assert "layers measured" in found.summary()


@pytest.mark.parametrize("norm", [False, True])
def test_entries_against_autograd(norm):
    net = conv_net(norm)
    found, expected = gradients(net, DATA, "cross_entropy"), autograd(conv_net(norm))
    sizes = {"0": 10 * 36, "3": 10 * 4, "7": 10}
    for layer in found.layers:
        g = expected[f"{layer.name}.weight"].numpy()
        flat = g.ravel()
        assert layer.shape == g.shape
        assert layer.t4 == pytest.approx(np.abs(g).mean() / sizes[layer.name], rel=1e-10)
        assert layer.mean_abs == pytest.approx(np.abs(g).mean())
        assert layer.std == pytest.approx(g.std())
        assert layer.max_abs == pytest.approx(np.abs(g).max())
        assert layer.kurtosis == pytest.approx(stats.kurtosis(flat))
        w = dict(net.named_parameters())[f"{layer.name}.weight"].detach().numpy()
        assert layer.weight_ratio == pytest.approx(np.linalg.norm(g) / np.linalg.norm(w))
        sigma = [np.linalg.norm(m.reshape(len(m), -1), 2) for m in (g, w)]
        assert layer.domination == pytest.approx(sigma[0] / sigma[1])
        assert layer.histogram.counts.sum() == flat.size
        assert abs(g[layer.summand]) == pytest.approx(layer.max_abs)
        assert layer.summands.counts.sum() == sizes[layer.name]


def test_channel_matrix_against_numpy():
    found, expected = gradients(conv_net(), DATA, "cross_entropy"), autograd(conv_net())
    for layer in found.layers:
        g = expected[f"{layer.name}.weight"].numpy()
        g = g.reshape(*g.shape[:2], -1)
        a, signed = np.abs(g).sum(2), g.sum(2)
        np.testing.assert_allclose(layer.matrix, a)
        assert layer.max_over_median == pytest.approx(a.max() / np.median(a))
        assert layer.row_cv == pytest.approx(a.mean(1).std() / a.mean(1).mean())
        for name, matrix in (("rank_one", a), ("rank_one_signed", signed)):
            squares = np.linalg.svd(matrix, compute_uv=False) ** 2
            assert getattr(layer, name) == pytest.approx(squares[0] / squares.sum())
    ungrouped = found["0"]
    columns = ungrouped.matrix.mean(0)
    assert ungrouped.column_cv == pytest.approx(columns.std() / columns.mean())
    np.testing.assert_allclose(ungrouped.in_gradient, columns / 9)


def test_in_channels_of_groups():
    """Weights of the second group belong to the third and fourth in-channel."""
    layer = gradients(conv_net(), DATA, "cross_entropy")["3"]
    g = np.abs(autograd(conv_net())["3.weight"].numpy())
    expected = [g[:3, 0].mean(), g[:3, 1].mean(), g[3:, 0].mean(), g[3:, 1].mean()]
    np.testing.assert_allclose(layer.in_gradient, expected)
    assert layer.channel_ratio == pytest.approx(max(expected) / min(expected))
    mean = conv_net()[0](DATA[0]).detach().mean((0, 2, 3)).numpy()
    assert layer.mean_of == "input of 2"
    np.testing.assert_allclose(layer.in_mean, mean)
    assert layer.mean_correlation == pytest.approx(np.corrcoef(mean, expected)[0, 1])


class Wired(nn.Module):
    """A convolution, an activation, and a connection of one kind to the next layer."""

    def __init__(self, connection):
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)
        self.connection = connection

    def forward(self, x):
        return self.b(self.connection(self.a(x))).mean((2, 3))


def overwritten(h):
    y = functional.gelu(h)  # whose derivative does not need its output
    y += 1.0
    return y


@pytest.mark.parametrize(
    ("connection", "source"),
    [
        (functional.relu, "input of relu"),
        (functional.gelu, "input of gelu"),
        (functional.relu_, "input of relu"),
        (lambda h: functional.relu(h) * 1.0, "its input"),
        (overwritten, "its input"),
        (lambda h: h, "its input"),
        (lambda h: functional.avg_pool2d(functional.relu(h), 2), "its input"),
    ],
    ids=["relu", "gelu", "in-place", "copied", "overwritten", "none", "pooled"],
)
def test_whose_mean_an_in_channel_has(connection, source):
    net = Wired(connection)
    data = (normal(5, 2, 4, 4), labels(5, 2))
    layer = gradients(net, data, "cross_entropy", layers="b")["b"]
    assert layer.mean_of == source
    h = net.a(data[0]).detach()
    seen = h if source != "its input" else connection(h.clone())
    np.testing.assert_allclose(layer.in_mean, seen.mean((0, 2, 3)).numpy())


def test_channel_gradients_are_bias_gradients():
    plain, expected = gradients(conv_net(), DATA, "cross_entropy"), autograd(conv_net())
    for name in ("0", "3", "7"):
        assert plain[name].channel_gradient_at == name
        np.testing.assert_allclose(plain[name].channel_gradient, expected[f"{name}.bias"].numpy())
    normed, expected = gradients(conv_net(True), DATA, "cross_entropy"), autograd(conv_net(True))
    for name, norm in (("0", "1"), ("3", "4")):
        assert normed[name].channel_gradient_at == norm
        np.testing.assert_allclose(normed[name].channel_gradient, expected[f"{norm}.bias"].numpy())
        assert float(expected[f"{name}.bias"].abs().max()) < 1e-15  # in front of batch norm
        assert np.abs(normed[name].channel_gradient).max() > 1e-3


def test_numbers_are_means_over_batches():
    net, halves = conv_net(), [(DATA[0][:4], DATA[1][:4]), (DATA[0][4:], DATA[1][4:])]
    both = gradients(net, halves, "cross_entropy")
    alone = [gradients(net, half, "cross_entropy") for half in halves]
    for layer in both.layers:
        for name in ("t1", "t2", "t3", "t4", "std", "kurtosis", "rank_one_signed", "domination"):
            parts = [getattr(one[layer.name], name) for one in alone]
            assert getattr(layer, name) == pytest.approx(np.mean(parts)), name
        parts = [one[layer.name].channel_gradient for one in alone]
        np.testing.assert_allclose(layer.channel_gradient, np.mean(parts, axis=0))


def test_output_gradients():
    net = conv_net()
    z = net(DATA[0]).detach()
    g = (z.softmax(1) - functional.one_hot(DATA[1], 4)).numpy()
    halves = [(DATA[0][:3], DATA[1][:3]), (DATA[0][3:], DATA[1][3:])]
    for data in ([DATA], halves):
        found = gradients(net, data, "cross_entropy", quantities=()).outputs
        np.testing.assert_allclose(found.examples, g)
        np.testing.assert_allclose(found.probability, z.softmax(1).mean(0).numpy())
        assert found.favoured == int(z.softmax(1).mean(0).argmax())
        counts = np.bincount(z.argmax(1).numpy(), minlength=4)
        np.testing.assert_allclose(found.predicted, counts / 10)
        assert found.alignment == pytest.approx(np.abs(g.mean(0)).sum() / np.abs(g).mean(0).sum())
        for j in range(4):
            others = g[DATA[1].numpy() != j, j]
            assert found.mean[j] == pytest.approx(others.mean())
            assert found.std[j] == pytest.approx(others.std())


def test_output_gradients_of_other_losses_and_targets():
    net, x = conv_net(), DATA[0]
    assert gradients(net, (x, normal(10, 4)), "mse", quantities=()).outputs is None
    soft = normal(10, 4).softmax(1)
    found = gradients(net, [(x, soft)], "cross_entropy", quantities=()).outputs
    np.testing.assert_allclose(found.examples, (net(x).softmax(1) - soft).detach().numpy())
    summed = gradients(net, DATA, nn.CrossEntropyLoss(reduction="sum"), quantities=()).outputs
    plain = gradients(net, DATA, "cross_entropy", quantities=()).outputs
    assert summed == plain  # each sample's own loss, whatever the reduction


def test_dense_labels_are_samples():
    net = nn.Conv2d(2, 3, 1)
    x, y = normal(4, 2, 5, 5), torch.randint(3, (4, 5, 5))
    found = gradients(net, (x, y), "cross_entropy").outputs
    assert found.num_samples == 100
    assert np.abs(found.examples.sum(1)).max() < 1e-12


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_through_single_classes(norm):
    net = conv_net(norm)
    found = gradients(net, DATA, "cross_entropy", quantities="classes", class_layer=2).classes
    assert (found.name, found.number) == ("3", 2)
    z = net(DATA[0])
    slope = (z.softmax(1) - functional.one_hot(DATA[1], 4)).detach() / 10
    for j in range(4):
        masked = torch.zeros_like(slope)
        masked[:, j] = slope[:, j]
        (part,) = torch.autograd.grad(z, net[3].weight, masked, retain_graph=True)
        assert found.mean_abs[j] == pytest.approx(float(part.abs().mean()))
        assert found.max_abs[j] == pytest.approx(float(part.abs().max()))
    assert found.sum_error < 1e-12
    ordered = np.sort(found.mean_abs)[::-1]
    assert found.top_over_second == pytest.approx(ordered[0] / ordered[1])
    assert found.dominant == int(found.mean_abs.argmax())


def test_the_middle_layer_is_split_by_default():
    found = gradients(conv_net(), DATA, "cross_entropy", quantities=("alignment", "classes"))
    assert found.classes.name == "3"
    assert found.classes.sum_error < 1e-12
    assert found[2].t1 > 0


def test_without_alignment_the_rest_is_the_same():
    full = gradients(conv_net(), DATA, "cross_entropy")
    light = gradients(conv_net(), DATA, "cross_entropy", quantities=())
    for a, b in zip(full.layers, light.layers, strict=True):
        assert math.isnan(b.t1)
        assert b.terms is None
        assert a.std == pytest.approx(b.std)
        assert a.rank_one_signed == pytest.approx(b.rank_one_signed)


def test_one_pass_for_activations_and_gradients():
    from normscope.measure.probes.activations import activations

    both = signals(conv_net(True), DATA, "cross_entropy", quantities=("alignment", "classes"))
    assert both.activations == activations(conv_net(True), DATA, "cross_entropy")
    assert both.gradients == gradients(
        conv_net(True), DATA, "cross_entropy", quantities=("alignment", "classes")
    )


def test_loss_functions_of_model_and_batch():
    def task(model, batch):
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    batches = [{"x": DATA[0], "y": DATA[1]}]
    found = gradients(conv_net(), batches, loss_fn=task)
    expected = gradients(conv_net(), DATA, "cross_entropy")
    assert found.outputs is None
    for a, b in zip(found.layers, expected.layers, strict=True):
        assert a.t2 == pytest.approx(b.t2)
    with pytest.raises(InputError, match="columns of one output"):
        gradients(conv_net(), batches, loss_fn=task, quantities="classes")


class Partial(nn.Module):
    """A transposed convolution, a layer that the loss does not see, one that is not reached."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(3, 2, 3)
        self.aside, self.unused = nn.Linear(6, 2), nn.Linear(2, 2)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        h = self.up(self.down(x))
        self.aside(h)
        return self.head(h.mean(2))


def test_layers_are_left_out_with_reasons():
    net, data = Partial(), (normal(5, 2, 6), labels(5, 3))
    found = gradients(net, data, "cross_entropy")
    frame = found.to_frame()
    assert {*frame.loc[["down", "up", "head"], "status"]} == {"ok"}
    reasons = frame.loc[["aside", "unused"], "reason"]
    assert "does not depend" in reasons["aside"]
    assert "never reached" in reasons["unused"]
    with pytest.raises(InputError, match="No gradient was measured"):
        found["unused"]
    # of a transposed convolution the gradient itself is known, not its terms
    functional.cross_entropy(net(data[0]), data[1]).backward()
    assert math.isnan(frame.loc["up", "t1"])
    assert found["up"].std == pytest.approx(float(net.up.weight.grad.std(correction=0)))
    ratio = float(net.up.weight.grad.norm() / net.up.weight.detach().norm())
    assert found["up"].weight_ratio == pytest.approx(ratio)


def test_bad_input():
    with pytest.raises(InputError, match="Unknown quantity 'alignement'"):
        gradients(conv_net(), DATA, "cross_entropy", quantities="alignement")
    with pytest.raises(InputError, match="class_layer=9"):
        gradients(conv_net(), DATA, "cross_entropy", quantities="classes", class_layer=9)
    with pytest.raises(InputError, match="labels run from"):
        gradients(conv_net(), (DATA[0], DATA[1] + 3), "cross_entropy")
    with pytest.raises(InputError, match="Got neither"):
        gradients(conv_net(), DATA, None)
    with pytest.raises(MeasurementError, match="Not one layer"):
        gradients(nn.BatchNorm1d(3), (normal(4, 3), labels(4, 3)), "cross_entropy")


SHOWN = ["depth", "outputs", "classes", "entries", "matrix", "terms", "summands", "means"]


@pytest.mark.parametrize("show", SHOWN)
def test_charts(show, tmp_path):
    found = gradients(conv_net(), DATA, "cross_entropy", quantities=("alignment", "classes"))
    report.save(found.chart(show=show), tmp_path / "chart.svg")
    assert "<svg" in (tmp_path / "chart.svg").read_text()


def test_charts_without_their_data():
    found = gradients(conv_net(), (DATA[0], normal(10, 4)), "mse", quantities=())
    rows = [r for data in found.chart().to_dict()["datasets"].values() for r in data]
    assert [r["value"] for r in rows] == [layer.mean_abs for layer in found.layers]
    for show, text in (
        ("terms", "alignment"),
        ("classes", "classes"),
        ("outputs", "cross-entropy"),
    ):
        with pytest.raises(InputError, match=text):
            found.chart(show=show)
    with pytest.raises(InputError, match="Unknown chart"):
        found.chart(show="entrys")


def test_classes_of_weights_that_are_no_parameters():
    made = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    data = (normal(6, 4), labels(6, 3))
    assert gradients(made, data, "cross_entropy").layers[0].t4 > 0
    with pytest.raises(InputError, match="no weight that is a parameter itself"):
        gradients(made, data, "cross_entropy", quantities="classes")


def test_chart_of_depth_shows_the_four_columns():
    found = gradients(conv_net(), DATA, "cross_entropy")
    data = found.chart().to_dict()["datasets"].values()
    rows = [r for part in data for r in part if "column" in r]
    assert [r["value"] for r in rows] == [
        getattr(layer, name) for layer in found.layers for name in ("t1", "t2", "t3", "t4")
    ]


def test_medians_of_small_layers_are_between_the_two_middle_values():
    net, x, y = nn.Linear(2, 3, bias=False), normal(6, 2), normal(6, 3, seed=1)
    found = gradients(net, (x, y), "mse")[1]
    terms = (net(x) - y).detach()[:, :, None] * x[:, None, :] / 6  # (samples, out, in)
    whole = terms.sum(0).abs()
    assert found.max_over_median == pytest.approx(float(whole.max()) / np.median(whole.numpy()))
    share = whole / terms.abs().sum(0)
    assert found.median_alignment == pytest.approx(np.median(share.numpy()))


def test_a_numpy_seed():
    net, data = nn.Linear(2, 3), (normal(8, 2), labels(8, 3))
    for measure in (gradients, landscape, gradient_noise):
        assert measure(net, data, "cross_entropy", seed=np.int64(3)).seed == 3


def test_several_layers_split_by_class_at_once():
    found = gradients(conv_net(), DATA, "cross_entropy", quantities="classes", class_layer=(1, "7"))
    assert [c.name for c in found.class_layers] == ["0", "7"]
    assert found.classes == found.class_layers[0]
    for split in found.class_layers:
        alone = gradients(
            conv_net(), DATA, "cross_entropy", quantities="classes", class_layer=split.name
        ).classes
        np.testing.assert_allclose(alone.mean_abs, split.mean_abs, rtol=1e-12)
        assert split.sum_error < 1e-12
        assert f"gradient of {split.name}: class" in found.summary()
    # the last layer by hand: row j of its gradient comes through output j alone
    last = autograd(conv_net())["7.weight"].abs().mean(1) / 4
    np.testing.assert_allclose(found.class_layers[1].mean_abs, last, rtol=1e-10)
    with pytest.raises(InputError, match="class_layer is empty"):
        gradients(conv_net(), DATA, "cross_entropy", quantities="classes", class_layer=())


@pytest.mark.parametrize("choice", ["largest", "smallest", "aligned", (2, 5)])
def test_terms_of_a_weight_of_choice(choice):
    net = conv_net()
    found = gradients(net, DATA, "cross_entropy", layers="7", summand=choice)["7"]
    per_sample = []  # of a linear layer a term is the gradient of one sample
    for x, y in zip(DATA[0], DATA[1], strict=True):
        loss = functional.cross_entropy(net(x[None]), y[None]) / 10
        per_sample.append(torch.autograd.grad(loss, net[7].weight)[0])
    terms = torch.stack(per_sample).numpy()
    size, absolute = np.abs(terms.sum(0)), np.abs(terms).sum(0)
    with np.errstate(invalid="ignore"):
        tables = {
            "largest": size,
            "smallest": -np.where(absolute > 0, size, np.inf),
            "aligned": np.where(absolute > 0, size / absolute, 0.0),
        }
    place = found.summand
    if choice == (2, 5):
        assert place == choice
    else:
        assert tables[choice][place] == pytest.approx(tables[choice].max(), rel=1e-9)
    own = terms[:, place[0], place[1]]
    assert found.summand_mean == pytest.approx(own.mean())
    assert found.summand_std == pytest.approx(own.std())
    assert found.summand_positive == pytest.approx((own > 0).mean())
    assert found.summand_negative == pytest.approx((own < 0).mean())
    assert found.summands.counts.sum() == 10


def test_terms_of_a_convolution_add_up_over_batches():
    """The mean of the terms of all batches times their number is the sum of the gradients."""
    batches = [(DATA[0][:5], DATA[1][:5]), (DATA[0][5:], DATA[1][5:])]
    place = (1, 0, 2, 0)
    found = gradients(conv_net(), batches, "cross_entropy", layers="0", summand=place)["0"]
    total = sum(float(autograd(conv_net(), b)["0.weight"][place]) for b in batches)
    assert found.summand_mean * 10 * 36 == pytest.approx(total)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"summand": "most"}, "summand"),
        ({"summand": "aligned", "quantities": ()}, "quantities='alignment'"),
    ],
)
def test_weights_that_cannot_be_chosen(options, message):
    with pytest.raises(InputError, match=message):
        gradients(conv_net(), DATA, "cross_entropy", **options)


def test_a_place_that_a_weight_does_not_have():
    found = gradients(conv_net(), DATA, "cross_entropy", summand=(3, 23))
    assert [layer.name for layer in found.layers] == ["7"]
    left = {x.name: x.reason for x in found.coverage.layers if x.status != "ok"}
    assert left["0"] == "summand=(3, 23) is no place in its weight, of shape (4, 2, 3, 3)"
    with pytest.raises(MeasurementError, match="is no place in its weight"):
        gradients(conv_net(), DATA, "cross_entropy", summand=(9, 9, 9))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_that_differ_by_rounding_correlate_with_nothing(dtype):
    """Behind batch norm every channel has mean 0, but for rounding."""
    data = DATA[0].to(dtype), DATA[1]
    normed = gradients(conv_net(norm=True).to(dtype), data, "cross_entropy")
    assert math.isnan(normed[2].mean_correlation)
    assert np.ptp(normed[2].in_mean) < 1e-6
    assert np.isfinite(gradients(conv_net().to(dtype), data, "cross_entropy")[2].mean_correlation)
    shifted = conv_net(norm=True).to(dtype)
    nn.init.uniform_(shifted[1].bias)
    assert np.isfinite(gradients(shifted, data, "cross_entropy")[2].mean_correlation)


def test_contributions_of_in_channels():
    """Zeroing all other channels leaves what one of them adds to the output."""
    net, signals_in = conv_net(), {}
    for name in ("0", "3", "7"):
        net.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name, into=signals_in: into.update({name: args[0].detach()})
        )
    net(DATA[0])
    signals_in = dict(signals_in)  # the hooks go on writing into the other one
    found = gradients(conv_net(), DATA, "cross_entropy", quantities="contributions")
    for layer in found.layers:
        module, x = net.get_submodule(layer.name), signals_in[layer.name]
        groups = getattr(module, "groups", 1)
        for i in range(x.shape[1]):
            alone = torch.zeros_like(x)
            alone[:, i] = x[:, i]
            bare = module.bias.view(1, -1, *[1] * (x.ndim - 2))
            added = (module(alone) - bare).abs().detach()
            # outputs of other groups get nothing from it, and are not counted
            total = float(added.sum()) / (added.numel() / groups)
            assert layer.in_contribution[i] == pytest.approx(total, rel=1e-9, abs=1e-15)
    linear = signals_in["7"].abs().mean(0) * net[7].weight.detach().abs().mean(0)
    np.testing.assert_allclose(found["7"].in_contribution, linear, rtol=1e-12)
    assert gradients(conv_net(), DATA, "cross_entropy")["0"].in_contribution is None
