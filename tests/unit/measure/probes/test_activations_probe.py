"""Channel statistics against direct computation, merged over batches; growth; bad input."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cases import ROSTER
from normscope import report
from normscope.errors import InputError, MeasurementError
from normscope.measure.probes.activations import activations
from normscope.results import Activations


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def conv_net(*, inplace=False):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=inplace),
        nn.Conv2d(4, 3, 3, stride=2),
        nn.GroupNorm(1, 3),
        nn.ReLU(inplace=inplace),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


@pytest.mark.parametrize("inplace", [False, True])
def test_moments_of_every_signal(inplace):
    net, x = conv_net(), normal(10, 2, 6, 6)
    found = activations(conv_net(inplace=inplace), [(x[:3], None), (x[3:], None)])
    first = net[0](x)
    second = net[2](net[1](first))
    normed = net[3](second)
    signals = {"0": first, "1": first, "2": second, "3": normed, "4": normed}
    for name, signal in signals.items():
        rows = signal.transpose(0, 1).flatten(1).detach()
        torch.testing.assert_close(torch.tensor(found[name].mean), rows.mean(1))
        torch.testing.assert_close(torch.tensor(found[name].variance), rows.var(1, correction=0))
        assert found[name].minimum == pytest.approx(rows.amin(1).numpy())
        assert found[name].maximum == pytest.approx(rows.amax(1).numpy())
    last = net(x).detach()
    torch.testing.assert_close(torch.tensor(found[3].mean), last.mean(0))
    assert [s.kind for s in found.signals] == [
        "conv", "activation", "conv", "norm", "activation", "linear"
    ]  # fmt: skip
    assert found.num_samples == 10
    assert found.num_batches == 2


@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_every_network_of_the_roster(case):
    found = activations(
        case.build(), [(case.inputs, case.targets)], None, statistics=case.statistics
    )
    assert found.signals
    for signal in found.signals:
        assert np.isfinite(signal.mean).all()
        assert (signal.variance >= 0).all()
        assert (signal.minimum <= signal.mean + 1e-12).all()
        assert (signal.mean <= signal.maximum + 1e-12).all()
        if signal.kind != "norm":
            counts = signal.histograms.counts.sum(1)
            assert (counts == counts[0]).all()
    assert Activations.from_json(found.to_json()) == found
    assert len(found.to_frame()) == len(found.coverage.layers)
    assert "layers measured" in found.summary()
    assert repr(found).startswith("Activations(")


def rectified(*rows):
    """Pre-activations as they are given: the identity, then a ReLU."""
    rows = torch.tensor(rows)
    net = nn.Sequential(nn.Linear(rows.shape[1], rows.shape[1], bias=False), nn.ReLU())
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(rows.shape[1]))
    return net, rows


def test_dying_and_full():
    net, rows = rectified([-1.0, 2.0, 0.0, 3.0], [-2.0, 1.0, 0.0, -1.0])
    signal = activations(net, [(rows, None)])["1"]
    assert signal.dying.tolist() == [True, False, True, False]
    assert signal.full.tolist() == [False, True, False, False]
    assert signal.one_signed.tolist() == [True, True, True, False]


def test_dying_over_batches_is_an_and():
    net, rows = rectified([-1.0, 2.0], [5.0, -1.0])
    for part in rows[:, None]:
        alone = activations(net, [(part, None)])["1"]
        assert (alone.dying | alone.full).all()
    both = activations(net, [(part, None) for part in rows[:, None]])["1"]
    assert not (both.dying | both.full).any()


def test_dying_convolutional_units_over_positions():
    """One position of one sample above zero is enough to be alive."""
    conv = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.constant_(conv.weight, 1.0)
    x = -torch.ones(3, 1, 4, 4)
    x[2, 0, 3, 1] = 0.5
    net = nn.Sequential(conv, nn.ReLU())
    assert activations(net, [(x[:2], None)])["1"].dying.all()
    assert not activations(net, [(x, None)])["1"].dying.any()


@pytest.mark.parametrize("inplace", [False, True])
def test_relu6_is_a_rectifier(inplace):
    rows = torch.tensor([[-1.0, 2.0, 9.0], [-2.0, -1.0, 7.0]])
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU6(inplace=inplace), nn.Hardtanh(0, 5))
    nn.init.eye_(net[0].weight)
    found = activations(net, [(rows, None)])
    assert (found["1"].operation, found["2"].operation) == ("relu6", "hardtanh")
    assert found["1"].dying.tolist() == [True, False, False]
    assert not found["2"].rectified


def test_only_rectifiers_die():
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    nn.init.constant_(net[0].weight, -1.0)
    nn.init.constant_(net[0].bias, 0.0)
    signal = activations(net, [(torch.ones(3, 2), None)])["1"]
    assert signal.one_signed.all()
    assert not signal.dying.any()
    assert math.isnan(signal.row()["dying"])


class Scaled(nn.Module):
    """A chain of layers that multiply by given factors."""

    def __init__(self, factors, width=8, dtype=torch.float64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in factors)
        for layer, factor in zip(self.layers, factors, strict=True):
            layer.weight = nn.Parameter(factor * torch.eye(width, dtype=dtype))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_growth_of_known_factors():
    found = activations(Scaled([1.5] * 8), [(normal(50, 8), None)])
    fit = found.growth[0]
    assert fit.which == "all"
    assert fit.slope == pytest.approx(2 * math.log10(1.5))
    assert fit.error == pytest.approx(0.0, abs=1e-9)
    assert fit.factor == pytest.approx(2.25)
    assert fit.num_layers == 7  # the output layer is not fitted


def test_growth_of_even_and_odd_layers():
    """Layers that alternate between two levels: each class has its own line."""
    factors = [3.0 if n % 2 else 0.5 for n in range(1, 11)]
    found = activations(Scaled(factors), [(normal(50, 8), None)])
    assert [fit.which for fit in found.growth] == ["all", "even", "odd"]
    for fit in found.growth[1:]:
        assert fit.slope == pytest.approx(math.log10(1.5))  # of a pair of layers, 1.5^2
        assert fit.error == pytest.approx(0.0, abs=1e-9)
    assert found.growth[0].error > 0.01


def test_float32_overflows_where_the_line_says():
    factor, depth = 10.0, 45
    shallow = Scaled([factor] * 12, dtype=torch.float32)
    x = normal(500, 8).float()
    said = activations(shallow, [(x, None)]).growth[0].overflow_layer
    deep = activations(Scaled([factor] * depth, dtype=torch.float32), [(x, None)])
    overflowed = [layer.number for layer in deep.coverage.left_out]
    # signals reach a few times their root mean square, which the line is about
    assert said - 1.5 < min(overflowed) <= said + 1
    assert "not finite from" in deep.coverage.left_out[0].reason


class Shortcuts(nn.Module):
    """Residual blocks that double the stream, and a projection on every shortcut."""

    def __init__(self, depth, projection):
        super().__init__()
        self.blocks = nn.ModuleList(Block(projection) for _ in range(depth))
        self.head = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, projection):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.shortcut = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.inner.weight.copy_((2 - projection) * torch.eye(4))
            self.shortcut.weight.copy_(projection * torch.eye(4))

    def forward(self, x):
        inside = self.inner(x)
        return inside + self.shortcut(x)


def test_growth_counts_layers_not_the_projections_beside_them():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(2))
    found = activations(Shortcuts(4, 0.5), [(x, None)])
    inner = [s for s in found.signals if s.name.endswith("inner")]
    assert [s.number for s in inner] == [1, 2, 3, 4]
    fit = found.growth[0]
    assert fit.factor == pytest.approx(4)
    assert 10 ** (fit.start + fit.slope) == pytest.approx(float(inner[0].variance.mean()))


def test_no_growth_no_overflow():
    found = activations(Scaled([1.0] * 6), [(normal(50, 8), None)])
    assert found.growth[0].overflow_layer == math.inf


def test_a_layer_from_which_signals_are_nan():
    class Rooted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(torch.sqrt(-1 - self.a(x).square()))

    found = activations(Rooted(), [(normal(4, 3), None)])
    frame = found.to_frame()
    assert frame.loc["a", "status"] == "ok"
    assert frame.loc["b", "status"] == "failed"
    assert "'b'" in frame.loc["b", "reason"]


def test_selection_by_number_and_name():
    found = activations(conv_net(), [(normal(4, 2, 6, 6), None)], layers=2)
    assert {s.name for s in found.signals} == {"2", "3", "4"}
    with pytest.raises(InputError, match="No signal was measured"):
        found["0"]


@pytest.mark.parametrize("bins", [1, 31, -2, True, 2.0])
def test_bins_that_cannot_be(bins):
    with pytest.raises(InputError, match="even"):
        activations(conv_net(), [(normal(4, 2, 6, 6), None)], histogram=bins)


def test_without_histograms():
    found = activations(conv_net(), [(normal(4, 2, 6, 6), None)], histogram=0)
    assert all(s.histograms is None for s in found.signals)
    with pytest.raises(InputError, match="No histograms"):
        found.chart(show="histograms")


def test_nothing_to_measure():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return functional.pad(x, (1, 1)) * self.table.sum()

    with pytest.raises(MeasurementError, match="Not one layer"):
        activations(Table(), [(normal(4, 3), None)])


@pytest.mark.parametrize("options", [{}, {"show": "histograms", "channels": 3}])
def test_charts(options, tmp_path):
    found = activations(conv_net(), [(normal(8, 2, 6, 6), None)])
    report.save(found.chart(**options), tmp_path / "chart.svg")
    assert "<svg" in (tmp_path / "chart.svg").read_text()


def test_chart_of_depth_shows_the_moments():
    found = activations(conv_net(), [(normal(8, 2, 6, 6), None)])
    rows = [r for data in found.chart().to_dict()["datasets"].values() for r in data if "std" in r]
    expected = [np.abs(s.mean).mean() for s in found.outputs]
    expected += [s.variance.mean() for s in found.outputs]
    assert [r["value"] for r in rows] == pytest.approx(expected)
    with pytest.raises(InputError, match="Unknown chart"):
        found.chart(show="widths")
    with pytest.raises(InputError, match="at least 1"):
        found.chart(show="histograms", channels=0)


def test_histograms_of_what_norms_give():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(50, 3)
    plain, asked = (
        activations(net, (x, None), norm_histograms=wanted, histogram=16)
        for wanted in (False, True)
    )
    assert plain["1"].histograms is None
    found = asked["1"].histograms
    assert found.counts.sum(1).tolist() == [50] * 4
    out = net[:2](x).detach().numpy()
    for channel in range(4):
        counts = np.histogram(out[:, channel], found.edges(channel))[0]
        assert np.array_equal(counts, found.counts[channel])
    assert asked["2"].histograms == plain["2"].histograms
