"""Limits that are no single switch: with momentum, divergence is not monotone in the rate."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from normscope.train import fit, max_stable_lr


def deep_linear(seed):
    torch.manual_seed(seed)
    sizes = ((5, 6), (6, 6), (6, 6), (6, 3))
    model = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in sizes]).double()
    return model, (torch.randn(30, 5).double(), torch.randn(30, 3).double())


def small(number):
    """Tanh, ReLU or no activation, two to four layers."""
    rng = np.random.default_rng(number)
    torch.manual_seed(number)
    kind, depth = (nn.Tanh, nn.ReLU, nn.Identity)[number % 3], 2 + number // 3 % 3
    width, inputs = int(rng.integers(5, 12)), int(rng.integers(3, 8))
    sizes = [inputs, *[width] * (depth - 1), 3]
    pairs = itertools.pairwise(sizes)
    layers = [part for a, b in pairs for part in (nn.Linear(a, b), kind())]
    data = torch.randn(40, inputs).double(), torch.randn(40, 3).double()
    return nn.Sequential(*layers[:-1]).double(), data


def contradictions(model, data, found, *, momentum, rates=14):
    """Rates up to a factor 1.5 outside the interval with the outcome of the other side."""
    options = {"momentum": momentum, "batch_size": len(data[0])}

    def diverges(lr, steps):
        return fit(copy.deepcopy(model), data, "mse", lr=lr, steps=steps, **options).diverged

    ratios = np.geomspace(1.02, 1.5, rates)
    below = [lr for lr in found.low / ratios if diverges(float(lr), 50)]
    return below + [lr for lr in found.high * ratios if not diverges(float(lr), 200)]


@pytest.mark.parametrize("seed", [1, 3])
def test_a_deep_linear_network_with_momentum_has_no_single_limit(seed):
    """A bisection alone ends at [0.728, 0.736] for the first one, which survives 0.77."""
    model, data = deep_linear(seed)
    found = max_stable_lr(model, data, "mse", momentum=0.9, batch_size=30, seeds=1)
    assert found.diverges.interleaved
    assert "no single limit" in found.reason
    assert found.high > 1.05 * found.low
    assert contradictions(model, data, found, momentum=0.9) == []


def test_rates_beside_both_ends_are_tried():
    model, data = deep_linear(0)
    found = max_stable_lr(model, data, "mse", momentum=0.9, batch_size=30, seeds=1)
    below = [t.lr for t in found.trials if found.low / 1.5 <= t.lr < found.low]
    above = [t.lr for t in found.trials if found.high < t.lr <= 1.51 * found.high]
    assert len(below) >= 5
    assert len(above) >= 5
    assert not found.diverges.interleaved
    assert found.high < 1.02 * found.low  # nothing contradicts: as narrow as asked


@pytest.mark.slow
def test_intervals_of_many_networks_are_rarely_contradicted_without_a_word():
    """Of these 24, half with momentum 0.9, a plain bisection is contradicted in silence in 13.

    The border is irregular at every scale, so that a few rates miss some contradictions.
    """
    silent = 0
    for number in range(24):
        model, data = small(number)
        momentum = 0.9 if number % 2 else 0.0
        found = max_stable_lr(model, data, "mse", momentum=momentum, batch_size=40, seeds=1)
        wrong = contradictions(model, data, found, momentum=momentum)
        silent += bool(wrong and not found.diverges.interleaved)
    assert silent <= 4
