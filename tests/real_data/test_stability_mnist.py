"""Limits of batch-norm networks on MNIST: the loss decides whether sharpness predicts them."""

import functools
import math

import pytest
import torch
from torch.nn import functional

import normscope as ns
from normscope.data import load_data
from normscope.nn import network
from normscope.train import max_stable_lr

pytestmark = [pytest.mark.real_data, pytest.mark.slow]


def threshold(model, data, momentum):
    """2 (1 + mu) / lambda_max of the Fisher matrix on 400 samples, train-mode batch norm."""
    x, y = data.images[:400], functional.one_hot(data.labels[:400], 10).float()
    risk = ns.Risk(model, x, y, loss="mse", statistics="batch")
    return 2 * (1 + momentum) / ns.top_eigenvalues(ns.fisher(risk)).largest


def decades(bound, reference):
    return math.log10(bound.low / reference), math.log10(bound.high / reference)


@pytest.mark.parametrize("gamma", [0.4, 1.0, 3.0])
def test_weis_networks_under_squared_loss_follow_the_sharpness(gamma):
    """Width 1000, momentum 0.9: from gamma 1 on divergence is at the threshold.

    At gamma 0.4 the loss shoots up to a hundred and comes back at rates up to 1.45 times the
    threshold, so that divergence by the rule is above it; learning stops there.
    """
    torch.set_default_dtype(torch.float32)
    data = load_data("mnist")
    model = torch.nn.Sequential(torch.nn.Flatten(), network("wei-mlp", gamma=gamma))
    critical = threshold(model, data, 0.9)
    found = max_stable_lr(model, data, "mse", momentum=0.9, seeds=1, tol=0.1)
    low, high = decades(found.diverges, critical)
    print(f"gamma {gamma}: threshold {critical:.4g}, diverges {low:+.3f} to {high:+.3f} decades")
    assert found.ok
    if gamma >= 1:
        assert low > -0.1
        assert high < 0.1
    else:
        assert low > -0.1
        assert high < 0.2
    if gamma <= 1:
        below, above = decades(found.does_not_learn, critical)
        print(f"  does not learn {below:+.3f} to {above:+.3f} decades")
        assert below > -0.1
        assert above < 0.1


def test_under_cross_entropy_gamma_does_not_matter():
    """Gamma changes the sharpness a thousandfold, and the limit not at all."""
    torch.set_default_dtype(torch.float32)
    data = load_data("mnist")
    limits, critical = {}, {}
    make = functools.partial(network, "mlp:784-256-256-10", norm="batch")
    for gamma in (0.1, 1.0, 3.0):
        factory = functools.partial(make, gamma=gamma)
        critical[gamma] = threshold(factory(seed=0), data, 0.0)
        limits[gamma] = max_stable_lr(factory, data, "cross_entropy", tol=0.1)
        print(f"gamma {gamma}: threshold {critical[gamma]:.4g}, {limits[gamma]!r}")
    middles = [limit.diverges.lr for limit in limits.values()]
    assert max(middles) < 2 * min(middles)
    assert max(critical.values()) > 100 * min(critical.values())
    under_mse = max_stable_lr(make(gamma=3.0), data, "mse", tol=0.1, seeds=1)
    print(f"gamma 3 under mse: {under_mse!r}")
    assert limits[3.0].diverges.low > 100 * under_mse.diverges.high


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_far_above_the_limit_training_fails(loss):
    """At 4 times the limit of either criterion at least 90 % of fresh seeds fail it."""
    torch.set_default_dtype(torch.float32)
    data, fails = load_data("mnist"), []
    for norm in (None, "batch", "layer"):
        factory = functools.partial(network, "mlp:784-100-100-10", norm=norm)
        options = {"loss": loss, "momentum": 0.9}
        found = max_stable_lr(factory, data, tol=0.1, criterion="does-not-learn", **options)
        for bound in (found.diverges, found.does_not_learn):
            assert bound.closed, bound.reason
            far = 4 * bound.lr
            for seed in (10, 11, 12):
                again = max_stable_lr(
                    factory, data, seeds=[seed], bracket=(far / 1.5, far), tol=1.0, **options
                )
                trial = next(trial for trial in again.trials if trial.lr == far)
                fails.append(trial.diverged if bound is found.diverges else not trial.learned)
        print(norm, loss, found.diverges, found.does_not_learn, fails[-6:])
    assert len(fails) == 18
    assert sum(fails) >= 0.9 * len(fails)
