"""Running statistics beside those of batches."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

import normscope as ns
from normscope.measure.probes.modes import mode_losses


def trained() -> tuple[nn.Module, torch.Tensor]:
    """A network whose running statistics are exactly those of its batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 2))
    x = torch.randn(64, 6)
    net(x)
    return net, x


def disagreement(net, x):
    [norm] = mode_losses(net, [(x, torch.zeros(64).long())]).norms
    return norm.mean_gap, norm.variance_ratio, norm.variance_gap


def test_statistics_that_agree():
    assert disagreement(*trained()) == pytest.approx((0, 1, 1), abs=1e-5)


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


def data(count=4, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 6, generator=generator) * 2 + 1,
         torch.randint(2, (size,), generator=generator))
        for _ in range(count)
    ]  # fmt: skip


def loss_of(net, batches):
    with torch.no_grad():
        losses = [functional.cross_entropy(net(x), y) for x, y in batches]
    return float(torch.stack(losses).mean())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_are_those_of_a_loop_of_ones_own(dropout):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), ns.BatchNorm(8), nn.Linear(8, 2)
    )
    for x, _ in data(3, seed=5):
        net(x * 2)
    before, rng = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    found = mode_losses(net, data(), eval_data=data(2, seed=7))
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    assert torch.equal(torch.get_rng_state(), rng)

    twin = copy.deepcopy(net)
    batch = copy.deepcopy(net)
    batch[2].eval()
    assert found.batch.loss == pytest.approx(loss_of(batch, data()), rel=1e-5)
    assert (found.batch == found.train) == (dropout == 0)
    assert found.running.loss == pytest.approx(loss_of(twin.eval(), data()), rel=1e-5)
    assert found.eval_running.loss == pytest.approx(loss_of(twin, data(2, seed=7)), rel=1e-5)
    with torch.no_grad():
        right = [(net.eval()(x).argmax(1) == y).float().mean() for x, y in data()]
    assert found.running.accuracy == pytest.approx(float(torch.stack(right).mean()), rel=1e-6)
    assert [n.updates for n in found.norms] == [3, 3]
    assert found.norms[0].initial == pytest.approx(0.9**3)
    assert found.norms[0].values == 32
    assert math.isnan(mode_losses(net, data(), loss_fn=loss_fn).running.accuracy)


def loss_fn(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_recomputed_statistics_are_those_of_update_bn():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    twin = copy.deepcopy(net)
    update_bn(data(), twin)
    found = mode_losses(net, data(), eval_data=data(3, seed=9))
    assert found.recomputed.loss == pytest.approx(loss_of(twin.eval(), data()), rel=1e-5)
    update_bn(data(3, seed=9), twin)
    expected = loss_of(twin.eval(), data(3, seed=9))
    assert found.eval_recomputed.loss == pytest.approx(expected, rel=1e-5)


def test_frozen_norms_are_compared_with_live_ones():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    live = loss_of(copy.deepcopy(net), data())
    net[1].eval()
    found = mode_losses(net, data())
    assert found.train.loss == pytest.approx(loss_of(net, data()), rel=1e-5)
    assert found.thawed.loss == pytest.approx(live, rel=1e-5)
    assert [n.name for n in found.frozen] == ["1"]
    assert found.live == ()
    held = ns.apply_transform(net, "freeze-statistics")
    again = mode_losses(held, data())
    assert [n.frozen for n in again.norms] == [True]
    assert again.thawed.loss == pytest.approx(live, rel=1e-5)


def test_the_distance_of_the_inputs():
    net = nn.Linear(6, 2)
    found = mode_losses(net, data(), eval_data=data())
    assert (found.shift, found.scale_shift) == pytest.approx((0, 1))
    assert found.recomputed is None
    assert found.norms == ()
    moved = [(x * 3 + 2, y) for x, y in data()]
    found = mode_losses(net, data(), eval_data=moved)
    rows = torch.cat([x for x, _ in data()]).double()
    expected = ((2 * rows.mean(0) + 2) ** 2).mean() / rows.var(0, correction=0).mean()
    assert found.shift == pytest.approx(float(expected) ** 0.5, rel=1e-5)
    assert found.scale_shift == pytest.approx(9, rel=1e-5)


def test_a_norm_that_keeps_nothing_and_one_that_is_never_called():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6, track_running_stats=False)
            self.unused, self.last = nn.BatchNorm1d(6), nn.Linear(6, 2)

        def forward(self, x):
            return self.last(self.norm(x))

    found = mode_losses(Net(), data())
    [norm] = found.norms
    assert (norm.name, norm.used, math.isnan(norm.mean_gap)) == ("unused", False, True)
    assert found.coupled == 2
    assert found.running.loss == pytest.approx(found.batch.loss, rel=1e-6)


def test_instance_norms_that_keep_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(),
                        nn.Linear(18, 2))  # fmt: skip
    x = torch.randn(16, 2, 9) * 3 + 1
    found = mode_losses(net, [(x, torch.zeros(16).long())])
    [norm] = found.norms
    assert (norm.updates, norm.initial) == (-1, 1.0)
    assert norm.variance_ratio == pytest.approx(9, rel=0.3)
    assert found.batch.loss != pytest.approx(found.running.loss, rel=1e-3)
