"""Loss gaps of networks trained on the embedded digits: measured against the formulas."""

import numpy as np
import pytest

from normscope.measure import bn_regularization
from normscope.nn import network
from normscope.train import fit

SIZES = [16, 64, 256]


def measured(activation):
    model = network("mlp:64-24-16-10", activation=activation, seed=1)
    run = fit(model, "digits", "mse", lr=0.02, momentum=0.9, steps=150, batch_size=64)
    assert run.losses[-10:].mean() < 0.5 * run.losses[0]
    return bn_regularization(model, "digits", "mse", batch_size=SIZES, num_batches=250)


def test_softplus():
    """One layer under batch statistics, the other under population statistics: within 10 %."""
    for layer in measured("softplus").layers:
        for predicted in (layer.formula, layer.predicted):
            off = np.abs(layer.measured / predicted - 1)
            assert (off < 0.10 + 2 * layer.measured_error / predicted).all(), layer.layer
        slope = np.polyfit(np.log(SIZES), np.log(layer.measured), 1)[0]
        assert slope == pytest.approx(-1, abs=0.1)


def test_relu():
    found = measured("relu")
    for layer in found.layers:
        off = np.abs(layer.ratio - 1)[1:]  # M >= 64
        assert (off < 0.10 + 2 * layer.ratio_error[1:]).all(), layer.layer
    # a later norm takes part of the noise of an earlier one away
    total = sum(layer.measured for layer in found.layers)
    assert (found.together + 4 * found.together_error < total).all()
