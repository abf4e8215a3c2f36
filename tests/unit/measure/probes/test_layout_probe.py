"""Running statistics beside those of batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.measure.probes.layout import norm_layout


def trained() -> tuple[nn.Module, torch.Tensor]:
    """A network whose running statistics are exactly those of its batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 2))
    x = torch.randn(64, 6)
    net(x)
    with torch.no_grad():
        net[1].running_var *= 63 / 64  # torch keeps the unbiased one
    return net, x


def disagreement(net, x):
    [norm] = norm_layout(net, [(x, torch.zeros(64).long())], None).norms
    return norm.mean_gap, norm.variance_ratio, norm.variance_gap


def test_statistics_that_agree():
    assert disagreement(*trained()) == pytest.approx((0, 1, 1), abs=1e-9)


def test_a_constant_channel_is_no_disagreement():
    net, x = trained()
    with torch.no_grad():
        net[0].weight[3] = 0.0
        net[1].running_mean[3] = net[0].bias[3]
        net[1].running_var[3] = 1e-12
    gap, ratio, apart = disagreement(net, x)
    assert gap == pytest.approx(0, abs=1e-6)
    assert (ratio, apart) == pytest.approx((1, 1), abs=1e-6)


def test_opposite_deviations_do_not_cancel():
    net, x = trained()
    net[1].running_var[:4] *= 10
    net[1].running_var[4:] /= 10
    _, ratio, apart = disagreement(net, x)
    assert ratio == pytest.approx(1, rel=1e-3)
    assert apart == pytest.approx(10, rel=1e-3)


def test_means_in_running_deviations():
    net, x = trained()
    net[1].running_mean += 0.3 * net[1].running_var.sqrt()
    assert disagreement(net, x)[0] == pytest.approx(0.3, rel=1e-3)


def test_without_running_statistics():
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    assert all(math.isnan(value) for value in disagreement(net, torch.randn(64, 6)))
