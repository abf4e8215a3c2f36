"""Every probe x every network: parameters, buffers, gradients, generators, modes, hooks stay."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch
from torch import nn

import normscope as ns
from cases import ROSTER
from fingerprints import fingerprint, prepared
from normscope.errors import NormscopeError
from normscope.measure import ablation, unit_statistics

# One entry per measurement that takes (model, data, loss); the completeness test below finds
# those that are missing.
PROBES = {
    "ablation": lambda m, d, loss, statistics: ablation(
        m, d, loss, statistics=statistics, shares=[0, 0.5], orders=1
    ),
    "activations": ns.activations,
    "conditioning": ns.conditioning,
    "gradient_noise": ns.gradient_noise,
    "gradients": ns.gradients,
    "landscape": ns.landscape,
    "order_parameters": ns.order_parameters,
    "unit_statistics": unit_statistics,
    "bn_regularization": lambda m, d, loss, statistics: ns.bn_regularization(
        m, d, loss, batch_size=2, num_batches=4
    ),
    "max_stable_lr": lambda m, d, loss, statistics: ns.max_stable_lr(
        m, d, loss, steps=2, seeds=1, tol=0.5
    ),
    "examine": lambda m, d, loss, statistics: ns.examine(m, d, loss),
    "what_if": lambda m, d, loss, statistics: ns.what_if(m, d, ["gamma=0.5"], loss, limits=False),
}


def test_roster_holds_every_measurement():
    found = {
        name
        for name in ns.__all__
        if inspect.isfunction(value := getattr(ns, name))
        and list(inspect.signature(value).parameters)[:3] == ["model", "data", "loss"]
    }
    alike = {"suggest_lr", "plan_examination"}  # do what max_stable_lr and examine do
    elsewhere = {"ablation", "unit_statistics", "what_if"}  # not in ns, or of other arguments
    assert found - {"fit", "evaluate"} - alike == set(PROBES) - elsewhere


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("case", ROSTER, ids=str)
def test_probe_leaves_the_network_as_it_was(case, name):
    """Also where the probe cannot measure the network and says so."""
    model = prepared(case)
    data = (case.inputs, case.targets)
    before = fingerprint(model, *data)
    failure = None
    try:
        PROBES[name](model, data, case.loss, statistics=case.statistics)
    except NormscopeError as error:  # any other error is a defect
        failure = str(error)
    assert fingerprint(model, *data) == before
    assert failure is None or len(failure) > 40


PASSES = {"left": 0}  # outside the module: a measurement puts back what a module holds


class Exploding(nn.Module):
    """Is interrupted in the middle of a pass, as by Ctrl-C."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.norm(self.a(x))
        PASSES["left"] -= 1
        if PASSES["left"] < 0:
            raise KeyboardInterrupt
        return self.b(torch.relu(h))


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("passes", [0, 2])
def test_probe_leaves_the_network_as_it_was_after_an_interruption(name, passes):
    """A measurement that gives a partial answer instead of the interruption may do so."""
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    model = Exploding()
    model.norm.running_mean.normal_()
    before = fingerprint(model, x, y)
    PASSES["left"] = passes
    with contextlib.suppress(KeyboardInterrupt):
        PROBES[name](model, [(x, y)] * 4, "mse", statistics="batch")
    assert PASSES["left"] < 0
    assert fingerprint(model, x, y) == before
    assert torch.overrides._get_current_function_mode() is None
