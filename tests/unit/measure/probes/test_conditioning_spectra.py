"""The generalized condition number, and spectra of Kronecker products."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.measurements_huang import KAPPA, KRONECKER
from normscope.errors import InputError
from normscope.measure.probes._conditioning_factors import patch_gram, patches
from normscope.measure.probes.sites import Geometry
from normscope.measure.probes.spectra import moment_spectrum
from normscope.results import eigenvalues as module
from normscope.results.eigenvalues import (
    KroneckerSpectrum,
    MomentSpectrum,
    SignedSpectrum,
    generalized_condition_number,
    share_index,
)


def spectrum(values, rtol=None):
    return MomentSpectrum.of(np.sort(np.array(values, dtype=float))[::-1], rtol=rtol)


def random_psd(rng, d, decades=2.0):
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return (q * 10 ** rng.uniform(-decades, 0, d)) @ q.T


@pytest.mark.parametrize(("values", "expected"), KAPPA)
def test_reference_values(values, expected):
    for p, kappa in expected.items():
        assert generalized_condition_number(np.array(values), p) == pytest.approx(kappa, rel=1e-9)


@pytest.mark.parametrize(
    ("p", "d", "index"),
    [(0.28, 25, 7), (0.07, 100, 7), (1.0, 5, 5), (0.01, 3, 1), (0.5, 5, 3), (0.8, 24, 20)],
)
def test_index_does_not_suffer_from_rounding(p, d, index):
    assert share_index(p, d) == index


@given(st.integers(1, 400), st.integers(1, 400))
def test_index_of_a_share_that_fits_is_exact(d, k):
    k = min(k, d)
    assert share_index(k / d, d) == k


def test_order_does_not_matter_and_small_negatives_are_zero():
    assert generalized_condition_number(np.array([1.0, 4.0, -1e-20]), 0.5) == 4.0
    assert generalized_condition_number(np.array([1.0, 4.0, -1e-20]), 1.0) == math.inf


def test_eigenvalues_at_the_floor_are_zero():
    d = 10
    eps = np.finfo(float).eps
    just_above = [1.0] * (d - 1) + [1.5 * d * eps]
    just_below = [1.0] * (d - 1) + [0.5 * d * eps]
    assert spectrum(just_above).kappa() == pytest.approx(1 / (1.5 * d * eps))
    assert spectrum(just_below).kappa() == math.inf
    assert spectrum(just_below).rank == d - 1
    assert spectrum(just_below, rtol=0.0).kappa() == pytest.approx(1 / (0.5 * d * eps))


def test_the_zero_matrix():
    zero = spectrum([0.0, 0.0])
    assert (zero.largest, zero.trace, zero.rank, zero.kappa(0.5)) == (0.0, 0.0, 0, math.inf)
    assert KroneckerSpectrum(zero, spectrum([2.0])).kappa() == math.inf


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6), st.floats(0.01, 1), st.floats(0.01, 1))
@settings(max_examples=60)
def test_scale_free_at_least_one_and_growing_with_p(seed, scale, p, q):
    matrix = random_psd(np.random.default_rng(seed), 8)
    found, scaled = moment_spectrum(matrix), moment_spectrum(scale * matrix)
    low, high = sorted((p, q))
    assert scaled.kappa(p) == pytest.approx(found.kappa(p), rel=1e-10)
    assert 1 <= found.kappa(low) <= found.kappa(high)


@pytest.mark.parametrize(("a", "b", "largest", "whole", "half", "product"), KRONECKER)
def test_kronecker_reference(a, b, largest, whole, half, product):
    left, right = spectrum(a), spectrum(b)
    both = KroneckerSpectrum(left, right)
    assert both.largest == pytest.approx(largest, rel=1e-12)
    assert both.kappa() == pytest.approx(whole, rel=1e-12)
    assert both.kappa(0.5) == pytest.approx(half, rel=1e-12)
    assert left.kappa(0.5) * right.kappa(0.5) == pytest.approx(product, rel=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 6))
@settings(max_examples=40)
def test_kronecker_against_the_dense_product(seed, m, n):
    rng = np.random.default_rng(seed)
    a, b = random_psd(rng, m, 1.5), random_psd(rng, n, 1.5)
    left, right = moment_spectrum(a), moment_spectrum(b)
    both, dense = KroneckerSpectrum(left, right), moment_spectrum(np.kron(a, b))
    assert both.largest == pytest.approx(dense.largest, rel=1e-10)
    assert both.trace == pytest.approx(dense.trace, rel=1e-10)
    assert both.kappa() == pytest.approx(left.kappa() * right.kappa(), rel=1e-12)
    np.testing.assert_allclose(both.values, dense.values, rtol=1e-8)
    for p in (0.3, 0.5, 0.8, 1.0):
        assert both.kappa(p) == pytest.approx(dense.kappa(p), rel=1e-8)


def test_kappa_80_does_not_multiply():
    rng = np.random.default_rng(0)
    left = spectrum(10 ** rng.uniform(-3, 0, 20))
    right = spectrum(10 ** rng.uniform(-3, 0, 20))
    both = KroneckerSpectrum(left, right)
    assert both.kappa(0.8) < 0.5 * left.kappa(0.8) * right.kappa(0.8)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 30), st.data())
@settings(max_examples=60)
def test_selection_without_forming_the_products(seed, m, n, data):
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-40, 40, m), rng.integers(-40, 40, n)  # many ties
    left = spectrum(2.0 ** exponents[0], rtol=0.0)
    right = spectrum(2.0 ** exponents[1] * rng.choice([1.0, 1.1], n), rtol=0.0)
    both = KroneckerSpectrum(left, right)
    k = data.draw(st.integers(1, m * n))
    expected = np.sort(np.multiply.outer(left.values, right.values).ravel())[::-1][k - 1]
    assert both.kth(k) == expected
    found = module._kth_product(left.values, right.values, k)
    assert found == pytest.approx(expected, rel=1e-15)


def test_large_products_are_selected_by_counting():
    rng = np.random.default_rng(3)
    left, right = spectrum(rng.uniform(0, 1, 1500)), spectrum(rng.uniform(0, 1, 1400))
    both = KroneckerSpectrum(left, right)
    assert both.size > module.MANY
    products = np.sort(np.multiply.outer(left.values, right.values).ravel())[::-1]
    for p in (0.1, 0.5, 0.9, 1.0):
        expected = products[0] / products[share_index(p, both.size) - 1]
        assert both.kappa(p) == pytest.approx(expected, rel=1e-14)


def test_zero_factors_make_zero_products():
    left = spectrum([4.0, 1.0, 0.0])
    right = spectrum([3.0, 1e-30])
    both = KroneckerSpectrum(left, right)
    assert both.rank == 2
    np.testing.assert_array_equal(both.values, [12.0, 3.0, 0.0, 0.0, 0.0, 0.0])
    assert both.kappa(2 / 6) == 4.0
    assert both.kappa(0.5) == math.inf


def test_magnitudes_of_an_indefinite_matrix():
    found = SignedSpectrum(np.array([2.0, 1.0, -4.0]))
    assert (found.largest, found.smallest, found.trace) == (2.0, -4.0, -1.0)
    assert found.magnitude_ratio(1.0) == 4.0
    assert found.magnitude_ratio(0.5) == 2.0


def test_float32_signals_have_a_higher_floor():
    rows = torch.randn(400, 6, dtype=torch.float32)
    rows = rows - rows.mean(1, keepdim=True)  # rows sum to zero up to float32 rounding
    moment = rows.double().T @ rows.double() / 400
    assert moment_spectrum(moment).kappa() > 1e13  # rounding looks like an eigenvalue
    assert moment_spectrum(moment, signals=torch.float32).kappa() == math.inf
    assert moment_spectrum(moment, signals=torch.float32).rank == 5


@pytest.mark.parametrize("p", [0.0, -0.1, 1.5, 80, math.nan])
def test_shares_outside_are_refused(p):
    with pytest.raises(InputError, match=r"at most 1"):
        spectrum([1.0]).kappa(p)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.ones(2, 3), "square"),
        (torch.ones(0, 0), "square"),
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (torch.tensor([[math.nan]]), "NaN"),
    ],
)
def test_what_is_no_second_moment_is_refused(matrix, message):
    with pytest.raises(InputError, match=message):
        moment_spectrum(matrix)


def test_records_survive_json():
    both = KroneckerSpectrum(spectrum([4.0, 1.0]), spectrum([3.0]))
    assert KroneckerSpectrum.from_json(both.to_json()) == both
    assert "kappa=4" in repr(both)
    assert "rank=2" in repr(both.left)


@given(st.integers(1, 3), st.data())
@settings(max_examples=80)
def test_sums_over_patches_without_laying_them_out(space, data):
    def several(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(space))

    kernel, dilation = several(1, 3), several(1, 2)
    geometry = Geometry(
        kernel=kernel,
        stride=(1, *several(1, 2)[1:]),
        padding=data.draw(st.sampled_from(["same", "valid", several(0, 2)])),
        dilation=dilation,
        groups=1,
    )
    reach = [gap * (size - 1) + 1 for size, gap in zip(kernel, dilation, strict=True)]
    shape = [size + data.draw(st.integers(0, 3)) for size in reach]
    x = torch.randn(2, 3, *shape)
    rows = patches(x, geometry).flatten(0, 1)
    gram, count = patch_gram(x, geometry)
    assert count == len(rows)
    torch.testing.assert_close(gram, rows.T @ rows, rtol=1e-12, atol=1e-12)
    if space == 2 and not isinstance(geometry.padding, str):
        unfolded = torch.nn.functional.unfold(
            x, kernel, dilation=dilation, padding=geometry.padding, stride=geometry.stride
        )
        torch.testing.assert_close(rows, unfolded.transpose(1, 2).flatten(0, 1))
