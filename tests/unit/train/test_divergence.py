"""Divergence: the rule, and the step at which a training breaks it."""

import math

import pytest
import torch
from torch import nn

from normscope.errors import InputError
from normscope.train import Divergence, fit


def test_the_limit_grows_with_the_start():
    rule = Divergence()
    assert rule.limit(2.3) == 1e3
    assert rule.limit(400.0) == 4e3
    assert rule.limit(math.inf) == 1e3
    assert not rule.reason(1e3, 2.3)
    assert "1001" in rule.reason(1001.0, 2.3)
    assert "nan" in rule.reason(math.nan, 2.3)
    assert "inf" in rule.reason(math.inf, 2.3)
    with pytest.raises(InputError, match="above 0"):
        Divergence(floor=0)


class Parabola(nn.Module):
    """L = curvature / 2 w^2, whatever the input."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([float(start)]))

    def forward(self, x):
        return self.w


def parabola_run(lr, *, start=2.0, curvature=3.0, **options):
    return fit(
        Parabola(start),
        [torch.zeros(1)],
        loss_fn=lambda model, batch: 0.5 * curvature * model(batch).square().sum(),
        lr=lr,
        **options,
    )


@pytest.mark.parametrize(("lr", "start"), [(0.7, 2.0), (1.0, 2.0), (5.0, 0.1), (0.8, 100.0)])
def test_the_step_is_the_one_that_arithmetic_gives(lr, start):
    # w_t = (1 - lr curvature)^t w_0, so L_t = (1 - lr curvature)^(2t) L_0.
    first = 0.5 * 3.0 * start**2
    growth = (1 - lr * 3.0) ** 2
    step = math.floor(math.log(max(1e3, 10 * first) / first) / math.log(growth)) + 1
    run = parabola_run(lr, start=start, steps=500)
    assert (run.outcome, run.diverged_at, run.updates) == ("diverged", step, step)
    assert run.losses == pytest.approx([first * growth**t for t in range(step + 1)], rel=1e-12)
    assert [e.kind for e in run.events][-2:] == ["divergence", "done"]
    assert f"after {step} updates" in run.reason


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_boundary_is_the_classical_one(momentum):
    limit = 2 * (1 + momentum) / 3.0
    assert parabola_run(0.99 * limit, momentum=momentum, steps=400).outcome == "finished"
    assert parabola_run(1.01 * limit, momentum=momentum, steps=400).outcome == "diverged"


def test_a_loss_that_starts_above_the_floor_is_not_divergence():
    run = parabola_run(0.1, start=100.0, steps=50)
    assert run.initial_loss == 15000
    assert run.outcome == "finished"


def test_a_loss_that_is_nan_from_the_start():
    run = parabola_run(0.1, start=math.nan, steps=5)
    assert (run.outcome, run.diverged_at, run.updates) == ("diverged", 0, 0)
    assert math.isnan(run.losses[0])
    assert type(run).from_json(run.to_json()) == run


def test_the_last_update_counts_too():
    run = parabola_run(1e300, start=1e100, steps=1)
    assert (run.outcome, run.diverged_at, run.updates) == ("diverged", 1, 1)
    assert "last update: 'w' is not finite" in run.reason


def test_weights_are_those_that_gave_the_loss():
    model = Parabola(2.0)
    run = fit(
        model,
        [torch.zeros(1)],
        loss_fn=lambda m, batch: 1.5 * m(batch).square().sum(),
        lr=1.0,
        steps=50,
    )
    assert 1.5 * float(model.w.detach()) ** 2 == pytest.approx(run.final_loss, rel=1e-14)


def test_without_a_rule_it_goes_on():
    run = parabola_run(1.0, steps=30, divergence=None)
    assert (run.outcome, run.updates) == ("finished", 30)
    assert run.final_loss > 1e15


def test_divergence_in_the_last_update_is_seen_and_leaves_no_trace():
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    before = torch.get_rng_state()
    run = fit(model, [(x, y)], "mse", lr=200.0, steps=1)
    assert run.outcome == "diverged"
    assert run.diverged_at == 1
    assert "last update" in run.reason
    assert len(run.losses) == 1
    assert model[1].num_batches_tracked.item() == 1  # the extra look is not a step
    assert torch.equal(before, torch.get_rng_state())
    calm = fit(model, [(x, y)], "mse", lr=1e-6, steps=1)
    assert calm.outcome == "finished"
