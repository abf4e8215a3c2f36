"""Merged moments: the same however the rows are cut, and right where squares would cancel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.measure.probes import _conditioning_moments as raw
from normscope.measure.probes.moments import ChannelMoments, SecondMoment
from normscope.measure.probes.spectra import moment_spectrum


def rows(n, d, seed, shift=0.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=dtype) + shift


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 10**6))
def test_cut_rows_give_the_moments_of_all_rows(sizes, seed):
    x = rows(sum(sizes), 3, seed, shift=2.0)
    channels, second = ChannelMoments(), SecondMoment()
    for part in x.split(sizes):
        channels.add(part)
        second.add(part)
    assert channels.count == second.count == len(x)
    torch.testing.assert_close(channels.mean, x.mean(0))
    torch.testing.assert_close(channels.variance, x.var(0, unbiased=False))
    torch.testing.assert_close(second.matrix(), x.T @ x / len(x))
    torch.testing.assert_close(second.mean, x.mean(0))
    covariance = torch.cov(x.T, correction=0).reshape(3, 3)
    torch.testing.assert_close(second.matrix(centred=True), covariance)


def test_small_variance_on_a_large_mean_in_float32():
    """mean of squares minus squared mean would leave no digit: 1e4^2 against 1e-2^2."""
    exact = 1e-2 * rows(4000, 2, 0) + 1e4
    x = exact.float()
    moments = ChannelMoments()
    for part in x.split(500):
        moments.add(part)
    torch.testing.assert_close(
        moments.variance, x.double().var(0, unbiased=False), rtol=1e-6, atol=0
    )


def test_rows_of_images_are_positions():
    moments = ChannelMoments()
    x = rows(4 * 5, 3, 1).reshape(4, 5, 3)
    moments.add(x)
    assert moments.count == 20
    torch.testing.assert_close(moments.mean, x.mean((0, 1)))


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 7), st.integers(-30, 30), st.integers(0, 10**6))
def test_maps_are_rows_at_any_scale(samples, positions, power, seed):
    """Maps (samples, channels, positions) in float32, in two parts, from 1e-30 to 1e30."""
    exact = (10.0**power * rows(2 * samples * positions, 3, seed, shift=1.0)).float()
    maps = exact.reshape(2, samples, positions, 3).transpose(2, 3)
    moments = ChannelMoments()
    for part in maps:
        moments.add_maps(part)
    x = exact.double()
    assert moments.count == len(x)
    torch.testing.assert_close(moments.mean, x.mean(0), rtol=1e-5, atol=1e-6 * 10.0**power)
    expected = x.var(0, unbiased=False)
    torch.testing.assert_close(moments.variance, expected, rtol=1e-4, atol=1e-9 * 100.0**power)


def test_maps_of_small_variance_on_a_large_mean():
    x = (1e-2 * rows(4000, 2, 0) + 1e4).float()
    moments = ChannelMoments()
    for part in x.reshape(8, 5, 100, 2).transpose(2, 3):
        moments.add_maps(part)
    torch.testing.assert_close(
        moments.variance, x.double().var(0, unbiased=False), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("count", [2, 5, 6, 7, 40])
def test_few_long_rows_have_the_spectrum_of_the_whole_matrix(count):
    x = rows(count, 12, 3)
    moment = raw.RawMoment()
    for part in x.split(2):
        moment.add(part)
    found = moment.spectrum(torch.float64)
    full = moment_spectrum(x.T @ x / count)
    np.testing.assert_allclose(found.values, full.values, atol=1e-13)
    torch.testing.assert_close(moment.matrix(), x.T @ x / count)


def test_large_moment_of_many_rows_is_refused_and_holds_nothing(monkeypatch):
    monkeypatch.setattr(raw, "LARGEST", 10)
    moment = raw.RawMoment()
    for part in rows(40, 12, 3).split(5):
        moment.add(part)
    assert moment.too_large
    assert not moment._few
    assert moment._sum is None
