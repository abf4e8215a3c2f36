"""The diverging update: found on quadratics with a known answer, and on networks, on a copy."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from cases import BY_NAME, mlp
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.train import fit
from normscope.train.diverging import diverging_update

ONE = torch.ones(1, 1, dtype=torch.float64)


def one_weight(value=1.0):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, value)
    return net


@pytest.mark.parametrize("lr", [2.5, 4.0, 11.0])
def test_on_a_parabola_the_step_is_known(lr):
    """The loss w^2/2 grows (1 - lr)^2-fold: it exceeds 1000 when (lr - 1)^(2k) > 2000."""
    found = diverging_update(one_weight(), (ONE, 0 * ONE), "mse", lr=lr)
    expected = int(np.floor(np.log(2000) / (2 * np.log(lr - 1)))) + 1
    assert found.diverged
    assert found.step == expected
    assert found.loss_after == pytest.approx(0.5 * (lr - 1) ** (2 * expected))
    assert found.loss_before == pytest.approx(0.5 * (lr - 1) ** (2 * expected - 2))
    assert float(found.after["weight"]) == pytest.approx((1 - lr) ** expected)
    path = found.path(one_weight(), "mse", distances=[0, 0.5, 1])
    assert path.loss[0] == pytest.approx(found.loss_before)
    assert path.loss[-1] == pytest.approx(found.loss_after)
    low, high = path.diverges_between
    assert low < high <= 1
    # between them the loss is (w0 + s (w1 - w0))^2 / 2 = 1000
    w0, w1 = float(found.before["weight"]), float(found.after["weight"])
    s = (np.copysign(2000**0.5, w1) - w0) / (w1 - w0)
    assert low <= s <= high
    assert "diverged: the loss" in found.summary()


def test_a_stable_rate_gives_the_last_update():
    found = diverging_update(one_weight(), (ONE, 0 * ONE), "mse", lr=1.5, max_steps=7)
    assert not found.diverged
    assert found.reason == ""
    assert found.step == 7
    assert found.loss_after == pytest.approx(0.5 * 0.5**14)
    assert "No update of 7 diverged" in found.summary()
    assert "did not diverge" in repr(found)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_updates_are_those_of_a_training(loss):
    model = nn.Sequential(nn.Flatten(), ns.network("mlp:64-8-10", norm="batch")).double()
    twin = copy.deepcopy(model)
    options = {"lr": 0.05, "momentum": 0.9, "batch_size": 32, "seed": 3}
    found = diverging_update(model, "digits", loss, max_steps=6, **options)
    run = fit(twin, "digits", loss, steps=6, **options)
    np.testing.assert_array_equal(found.losses, run.losses)
    for name, p in twin.named_parameters():
        assert torch.equal(found.after[name], p), name
    assert found.initial_loss == run.losses[0]


def test_not_finite_is_divergence_and_the_model_is_left_alone():
    data = (BY_NAME["mlp-relu-ce"].inputs, BY_NAME["mlp-relu-ce"].targets)
    model = BY_NAME["mlp-relu-ce"].build()
    lost = diverging_update(model, data, "cross_entropy", lr=1e200)
    assert lost.diverged
    assert not np.isfinite(lost.loss_after)
    assert "the loss is" in lost.reason
    model = BY_NAME["bn1d-batch-ce"].build()
    state = copy.deepcopy(model.state_dict())
    now = torch.get_rng_state()
    assert diverging_update(model, data, "cross_entropy", lr=1e300).diverged
    assert torch.equal(torch.get_rng_state(), now)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    assert all(p.grad is None for p in model.parameters())


def test_the_rule_and_bad_input():
    data = (ONE, 0 * ONE)
    early = diverging_update(one_weight(), data, "mse", lr=3.0, divergence=Divergence(5.0, 1.0))
    assert early.step == 2
    with pytest.raises(InputError, match="needs a learning rate"):
        diverging_update(one_weight(), data, "mse")
    with pytest.raises(InputError, match="max_steps"):
        diverging_update(one_weight(), data, "mse", lr=1.0, max_steps=0)
    with pytest.raises(InputError, match="Pass either loss"):
        diverging_update(one_weight(), data, lr=1.0)
    with pytest.raises(InputError, match="one sample"):
        diverging_update(
            mlp(nn.BatchNorm1d(4)), (torch.ones(1, 3), torch.ones(1, 2)), "mse", lr=1.0
        )


def test_batches_of_any_form():
    def loss_fn(model, batch):
        return (model(batch["x"]) ** 2).mean() / 2

    found = diverging_update(one_weight(), [{"x": ONE}], loss_fn=loss_fn, lr=11.0)
    assert (found.step, found.diverged) == (2, True)
    assert set(found.batch) == {"x"}
