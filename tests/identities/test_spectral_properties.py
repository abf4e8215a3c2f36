"""Properties of the spectral solvers over random spectra."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.measure.operators.base import TensorOperator
from normscope.measure.spectral import (
    frobenius_norm,
    spectral_density,
    top_eigenvalues,
    trace,
    trace_of_square,
)
from spectra import DiagonalOperator, FactoredOperator, factor, rotated

finite = st.floats(-10, 10, allow_subnormal=False).map(lambda x: round(x, 3))
spectra = st.lists(finite, min_size=1, max_size=40).map(np.array)
which = st.sampled_from(["largest", "smallest", "magnitude"])
fixed = settings(max_examples=60, derandomize=True)


@fixed
@given(spectra, st.integers(1, 8), which, st.integers(0, 5))
def test_an_eigenvalue_lies_within_every_residual(values, k, which, seed):
    """Unconditional: converged or not, whatever the spectrum."""
    result = top_eigenvalues(
        DiagonalOperator(values), min(k, len(values)), which=which, seed=seed, max_matvecs=6
    )
    found = np.isfinite(result.values)
    distance = np.abs(result.values[found, None] - values).min(axis=1)
    assert np.all(distance <= result.residuals[found] + 1e-12 * np.abs(values).max())


@fixed
@given(spectra, st.integers(1, 8), which, st.integers(0, 5))
def test_error_never_above_the_bound(values, k, which, seed):
    k = min(k, len(values))
    key = {"largest": -values, "smallest": values, "magnitude": -np.abs(values)}[which]
    order = np.argsort(key, kind="stable")[:k]
    result = top_eigenvalues(DiagonalOperator(values), k, which=which, seed=seed, confidence=0.999)
    assert result.converged or "rounding error" in result.reason
    rounding = 1e-12 * np.abs(values).max()
    error = np.abs(result.values) - np.abs(values[order])  # +-x are equal in magnitude
    if which != "magnitude":
        error = result.values - values[order]
    assert np.all(np.abs(error) <= result.bounds + rounding)


@fixed
@given(spectra, st.floats(0.1, 10), st.integers(0, 3))
def test_scaling_scales_everything_but_the_work(values, factor, seed):
    plain = top_eigenvalues(DiagonalOperator(values), seed=seed)
    power = 2.0 ** np.round(np.log2(factor))  # exact in floating point
    scaled = top_eigenvalues(DiagonalOperator(values * power), seed=seed)
    assert np.array_equal(scaled.values, plain.values * power)
    assert np.array_equal(scaled.residuals, plain.residuals * power)
    assert scaled.matvecs == plain.matvecs


@fixed
@given(spectra, st.integers(0, 3))
def test_smallest_is_minus_the_largest_of_minus(values, seed):
    k = min(3, len(values))
    smallest = top_eigenvalues(DiagonalOperator(values), k, which="smallest", seed=seed)
    largest = top_eigenvalues(DiagonalOperator(-values), k, seed=seed)
    assert np.allclose(smallest.values, -largest.values, rtol=1e-3, atol=1e-10)


@fixed
@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 100))
def test_dual_and_primal_have_the_same_leading_eigenvalues(rows, n, seed):
    op = FactoredOperator(factor(rows, n, seed))
    exact = np.zeros(n)
    nonzero = torch.linalg.eigvalsh(op.dual.to_dense()).numpy()[::-1][:n]
    exact[: len(nonzero)] = nonzero
    k = min(n, 5)
    result = top_eigenvalues(op, k, confidence=0.99)
    assert np.allclose(result.values, exact[:k], rtol=1.5e-3, atol=1e-9 * exact[0])


@fixed
@given(spectra)
def test_sums_over_the_spectrum(values):
    """Small enough to be exact: trace, norm and density against the eigenvalues."""
    op = TensorOperator(rotated(values), symmetric=True)
    scale = 1e-10 * (1 + np.sum(values**2))
    assert abs(trace(op).value - values.sum()) <= scale
    assert abs(trace_of_square(op).value - np.sum(values**2)) <= scale
    assert abs(frobenius_norm(op).value ** 2 - np.sum(values**2)) <= scale
    density = spectral_density(op)
    assert np.allclose(density.nodes[0], np.sort(values), atol=1e-9)
    assert np.all(np.diff(density.cumulative) >= -1e-12)
