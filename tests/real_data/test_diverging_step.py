"""Bjorck's Figs 5, 6 and 24 on CIFAR-10: the step that blows up, and the loss along the gradient.

ResNet-110 at Xavier initialization, batch 64: about 80 CPU seconds on one thread.
"""

import numpy as np
import pytest
from scipy.stats import spearmanr

import normscope as ns
from normscope.measure.probes.landscape import landscape
from normscope.train.diverging import diverging_update

pytestmark = pytest.mark.real_data

SMALL = [0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3]
LARGE = [0, 1e-3, 1e-2, 3e-2, 1e-1, 1, 3, 10]


@pytest.fixture(scope="module")
def batch():
    return next(iter(ns.load_data("cifar10").batches(64, seed=0)))


def network(norm):
    return ns.network("resnet110", norm=norm, init="xavier", seed=0).float()


@pytest.fixture(scope="module")
def gradient_lines(batch):
    """Fig. 24: the first batch, theta - t grad, without and with batch norm."""
    return {
        norm: landscape(network(norm), [batch], "cross_entropy", distances=distances)
        for norm, distances in ((None, SMALL), ("batch", LARGE))
    }


def test_batch_norm_bears_far_larger_steps(gradient_lines):
    plain, normed = gradient_lines[None], gradient_lines["batch"]
    for line in (plain, normed):
        print(line.summary())
        print(dict(zip(line.distances.tolist(), line.loss.tolist(), strict=True)))
    # measured: 1e-4 and 0.03
    assert plain.largest_decrease <= 1e-3
    assert normed.largest_decrease >= 30 * plain.largest_decrease
    # features stay bounded under batch norm: the loss grows linearly, not exponentially
    at = dict(zip(normed.distances.tolist(), normed.loss.tolist(), strict=True))
    assert at[10] / at[1] < 100
    assert 0.7 < np.log10(at[10] / at[1]) < 1.7
    at = dict(zip(plain.distances.tolist(), plain.loss.tolist(), strict=True))
    assert not at[1e-3] < 1e6 * at[1e-4]


def test_signals_explode_with_depth_in_the_diverging_update(batch, gradient_lines):
    """Figs 5 and 6 at a rate just above the limit, which the line along the gradient gives."""
    model = network(None)
    low, high = gradient_lines[None].diverges_between
    assert high < low * 1.05
    assert not diverging_update(model, [batch], "cross_entropy", lr=low, max_steps=1).diverged
    update = diverging_update(model, [batch], "cross_entropy", lr=high * 1.001, max_steps=1)
    print(update.summary())
    assert update.diverged
    path = update.path(model, "cross_entropy", distances=np.linspace(0, 1, 9))
    print(path.summary(), path.loss, sep="\n")
    assert path.loss[-1] > max(1e3, 10 * update.initial_loss)
    assert path.diverges_between[0] > 0.9  # far from where the gradient was taken
    assert path.loss[4] < update.initial_loss  # half way it still lowers the loss
    growth = growth_by_depth(path)
    # lower layers stay as they are, the last ones explode (those between need not be in order)
    assert np.median(growth[:37]) < 1
    assert np.median(growth[-10:]) > 10


def test_a_rate_of_two_thousandths_diverges_without_batch_norm_only(batch):
    model = network(None)
    update = diverging_update(model, [batch], "cross_entropy", lr=0.002, max_steps=3)
    assert update.diverged
    path = update.path(model, "cross_entropy", distances=[0, 1])
    assert not path.loss[-1] <= 1e3
    growth = growth_by_depth(path)
    stages = [np.median(growth[a:b]) for a, b in ((0, 37), (37, 73), (73, 109))]
    assert stages[0] < 1e-6 * stages[1]
    assert stages[1] < 1e-6 * stages[2]
    normed = diverging_update(network("batch"), [batch], "cross_entropy", lr=0.002, max_steps=3)
    assert not normed.diverged
    assert normed.loss_after < normed.initial_loss


def growth_by_depth(path):
    """Variance after the update over that before, of the 109 convolutions; it rises with depth."""
    assert len(path.layers) == 110
    growth = path.growth[:109, -1]
    print({k: float(f"{growth[k - 1]:.2g}") for k in (2, 20, 38, 56, 74, 92, 109)})
    order = spearmanr(np.arange(109), growth)
    print("rank correlation", order.statistic)
    assert order.statistic > 0
    assert order.pvalue < 1e-6
    return growth
