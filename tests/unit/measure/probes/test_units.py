"""Correlation, kurtosis and sizes of units against numpy, scipy and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from normscope.errors import InputError
from normscope.measure import unit_statistics
from normscope.measure.probes.moments import UnitMoments
from normscope.results import UnitStatistics


def draws(seed=0, n=400, d=6):
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d) * 10


@pytest.mark.parametrize("sizes", [[400], [1, 399], [100, 300], [7, 7, 386], [133, 133, 134]])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_streamed_moments_are_those_of_all_rows(sizes, offset):
    rows = draws() + offset
    moments = UnitMoments()
    for part in torch.as_tensor(rows).split(sizes):
        moments.add(part)
    skewness, kurtosis = moments.standardized()
    # an offset of 1e6 leaves ten digits of the rows
    near = {"rtol": 1e-10} if offset == 0 else {"rtol": 1e-7}
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-13)
    np.testing.assert_allclose(moments.matrix(centred=True), np.cov(rows.T, ddof=0), **near)
    np.testing.assert_allclose(skewness, stats.skew(rows), **near)
    np.testing.assert_allclose(kurtosis, stats.kurtosis(rows), **near)


def own_outputs(net, batches, names):
    """By hooks of our own."""
    seen = {name: [] for name in names}
    handles = [
        net.get_submodule(name).register_forward_hook(
            lambda _, x, out, name=name: seen[name].append(out.detach().double())
        )
        for name in names
    ]
    with torch.no_grad():
        for x in batches:
            net(x)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(found).numpy() for name, found in seen.items()}


def convolutional():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4)
    )


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_against_numpy_and_scipy(positions, statistics):
    net = convolutional().train(statistics == "batch")
    x = torch.randn(64, 2, 6, 6)
    own = own_outputs(net, x.split(32), ["0", "1", "2", "4"])
    found = unit_statistics(
        net, [(part, None) for part in x.split(32)], statistics=statistics, positions=positions
    )
    assert [s.name for s in found.signals] == ["0", "1", "2", "4"]
    for signal in found.signals:
        rows = own[signal.name]
        if rows.ndim > 2:
            rows = rows.transpose(0, 2, 3, 1).reshape(64, 16, 5)
            rows = rows.reshape(-1, 5) if positions else rows.mean(1)
        corr = np.abs(np.corrcoef(rows.T))
        d = len(corr)
        rms = np.sqrt((rows**2).mean(0))
        expected = (corr.sum() - d) / (d * (d - 1)), rms.std() / rms.mean()
        got = signal.mean_abs_correlation, signal.rms_variation
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        np.testing.assert_allclose(signal.kurtosis, stats.kurtosis(rows), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(signal.skewness, stats.skew(rows), rtol=1e-4, atol=1e-5)
        assert signal.mean_kurtosis == pytest.approx(signal.kurtosis.mean())


def test_closed_form_of_a_linear_layer():
    """Of independent signs x: corr(Wx) = W W^T, normalized; kurtosis -2 sum w^4 / (sum w^2)^2."""
    signs = torch.tensor([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)])
    net = nn.Linear(3, 2, bias=True).double()
    w = net.weight.detach().numpy()
    found = unit_statistics(net, [(signs.double(), None)])[1]
    norms = np.sqrt((w**2).sum(1))
    assert found.mean_abs_correlation == pytest.approx(abs(w[0] @ w[1]) / norms.prod())
    np.testing.assert_allclose(found.kurtosis, -2 * (w**4).sum(1) / norms**4)
    np.testing.assert_allclose(found.skewness, 0, atol=1e-12)
    np.testing.assert_allclose(found.rms**2, norms**2 + net.bias.detach().numpy() ** 2)


def test_units_that_never_change():
    net = nn.Linear(3, 4)
    with torch.no_grad():
        net.weight[:2] = 0
        net.bias[:] = torch.tensor([0.1, 0.0, 1e4, 0.0])
        net.weight[3] = net.weight[2]
    found = unit_statistics(net, [(torch.randn(500, 3), None)] * 3)[1]
    assert found.constant == 2
    assert np.isnan(found.kurtosis[:2]).all()
    assert np.isfinite(found.kurtosis[2:]).all()
    assert found.mean_abs_correlation == pytest.approx(1, rel=1e-5)  # of the pair that changes
    with torch.no_grad():
        net.weight[:] = 0
    none = unit_statistics(net, [(torch.randn(5, 3), None)])
    assert math.isnan(none[1].mean_abs_correlation)
    assert math.isnan(none[1].mean_kurtosis)
    assert "mean |correlation|: not defined" in none.summary()


def test_result():
    x, net = torch.randn(32, 2, 6, 6), convolutional()
    found = unit_statistics(net, [(x, None)], layers=["0", "4"])
    frame = found.to_frame()
    assert list(frame.index) == ["0", "4"]
    assert frame.loc["4", "mean_kurtosis"] == found[2].mean_kurtosis == found["4"].mean_kurtosis
    again = UnitStatistics.from_json(found.to_json())
    assert again[1].mean_abs_correlation == found[1].mean_abs_correlation
    assert "mean excess kurtosis" in found.summary()
    assert found.chart().to_dict()["hconcat"]
    with pytest.raises(InputError, match="No signal was measured at '7'"):
        found["7"]


def test_samples_that_cannot_be_told_from_positions_are_left_out():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.b(self.a(x).mean(0, keepdim=True)).expand(len(x), -1)

    net = Folded()
    found = unit_statistics(net, [(torch.randn(8, 3), None)], positions=False)
    assert [(s.name, s.status) for s in found.coverage.layers] == [("a", "ok"), ("b", "skipped")]
    assert "cannot be told" in found.coverage.left_out[0].reason
