"""Histograms with bins that are joined as data comes: no value is lost or misplaced."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normscope.measure.probes._histograms import StreamedHistograms


def streamed(batches, bins=8):
    made = StreamedHistograms(bins)
    for batch in batches:
        maps = torch.as_tensor(batch)
        made.add(maps, maps.amin((0, 2)), maps.amax((0, 2)))
    return made.result()


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(-2, 2)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_counts_are_those_of_the_final_bins(batches, seed):
    """Batches of any place and width (powers of ten), three channels."""
    rng = np.random.default_rng(seed)
    maps = [c + 10.0**w * rng.normal(size=(2, 3, 5)) for c, w in batches]
    found = streamed(maps)
    values = np.concatenate(maps).swapaxes(0, 1).reshape(3, -1)
    for channel in range(3):
        edges = found.edges(channel)
        assert edges[0] <= values[channel].min()
        assert values[channel].max() <= edges[-1]
        expected = np.histogram(values[channel], edges)[0]
        assert found.counts[channel].tolist() == expected.tolist()


def test_half_of_the_bins_are_used_at_least():
    rng = np.random.default_rng(0)
    maps = [k * rng.uniform(-1, 1, size=(50, 1, 40)) for k in (1.0, 3.0, 9.0, 27.0)]
    found = streamed(maps, bins=64)
    occupied = np.flatnonzero(found.counts[0])
    assert occupied[-1] - occupied[0] + 1 >= 16
    assert found.counts.sum() == 8000


def test_density_integrates_to_one():
    found = streamed([np.random.default_rng(0).normal(size=(9, 2, 30))])
    for channel in range(2):
        assert np.isclose((found.density(channel) * found.width[channel]).sum(), 1.0)


def test_constant_channels_have_bins_too():
    for value in (0.0, 3.0, -1e-30, 1e30):
        found = streamed([np.full((2, 1, 4), value), np.full((1, 1, 4), value)])
        assert found.counts.sum() == 12
        assert np.isfinite(found.edges()).all()
        assert found.width[0] > 0


def test_float32_values():
    maps = np.random.default_rng(1).normal(size=(20, 2, 50)).astype(np.float32)
    found = streamed([maps[:10], maps[10:]], bins=16)
    for channel in range(2):
        expected = np.histogram(maps[:, channel].astype(float), found.edges(channel))[0]
        assert found.counts[channel].tolist() == expected.tolist()


def test_bimodality_is_sarles_coefficient():
    rng = np.random.default_rng(0)
    values = np.stack([rng.normal(size=400), rng.exponential(size=400), np.full(400, 2.5)])
    found = streamed([values[None]], bins=64)
    for channel, coefficient in enumerate(found.bimodality()[:2]):
        edges = found.edges(channel)
        middles = np.repeat((edges[1:] + edges[:-1]) / 2, found.counts[channel])
        expected = (stats.skew(middles) ** 2 + 1) / stats.kurtosis(middles, fisher=False)
        assert coefficient == pytest.approx(expected)
    assert np.isnan(found.bimodality()[2])


def test_bimodality_of_known_distributions():
    even = (np.arange(4000) + 0.5) / 4000
    points = np.where(even < 0.5, -1.0, 1.0)
    rows = np.stack([even, stats.norm.ppf(even), points])
    found = streamed([rows[None]], bins=200).bimodality()
    np.testing.assert_allclose(found, [5 / 9, 1 / 3, 1], rtol=0.01)
