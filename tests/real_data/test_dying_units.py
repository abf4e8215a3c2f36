"""Huang's Fig. XIII at initialization: dying and full units of a 20-layer network on MNIST."""

import numpy as np
import pytest
from scipy import stats

from normscope.data import load_data
from normscope.measure.probes.activations import activations
from normscope.nn import network

pytestmark = pytest.mark.real_data
WIDTHS = "-".join(["784", *["256"] * 19, "10"])


def counts(norm):
    model = network(f"mlp:{WIDTHS}", norm=norm, init="he").float()
    images = load_data("mnist").subset(6000).flat()
    batch = next(iter(images.batches(6000)))
    found = activations(model, [batch], histogram=0)
    return [np.array([int(getattr(s, kind).sum()) for s in found.rectified])
            for kind in ("dying", "full")]  # fmt: skip


def test_without_norm_they_grow_in_number_with_depth():
    for found in counts(None):
        assert len(found) == 19
        assert stats.spearmanr(np.arange(19), found).statistic > 0.8
        assert found[-1] > 20
        assert found[0] <= 2


def test_with_batch_norm_there_is_none():
    for found in counts("batch"):
        assert found.max() == 0
