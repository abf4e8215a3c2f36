"""The record of a training."""

import dataclasses

import numpy as np

from normscope.data import load_data
from normscope.nn import network
from normscope.train import fit


def test_updates_until_the_loss_of_an_epoch_is_below_a_level():
    found = fit(network("mlp:64-10"), load_data("digits").flat(), "cross_entropy", lr=0.1, steps=60)
    window, level = 7, float(np.mean(found.losses[20:27]))
    first = next(k for k in range(7, 61) if np.mean(found.losses[k - 7 : k]) < level + 1e-9)
    assert 7 < first == found.updates_below(level + 1e-9, window) <= 27
    assert found.updates_below(-1.0, window) is None  # never
    slow = dataclasses.replace(found, losses=np.array([3.0, 3, 3, 1, 1, 0, 0, 0]))
    assert slow.updates_below(1.0, 2) == 6  # (1 + 0) / 2 is the first mean below 1
    assert dataclasses.replace(slow, outcome="diverged").updates_below(9.0) is None
