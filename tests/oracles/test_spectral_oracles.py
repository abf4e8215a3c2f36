"""The spectral solvers against scipy and against laws of random matrices."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh

from normscope.measure.operators.base import TensorOperator
from normscope.measure.spectral import spectral_density, top_eigenvalues, trace
from spectra import DiagonalOperator, clustered, factor, rotated, symmetric


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("which", "scipy_which"), [("largest", "LA"), ("smallest", "SA"), ("magnitude", "LM")]
)
def test_against_eigsh(which, scipy_which, seed):
    matrix = symmetric(120, seed)
    mine = top_eigenvalues(
        TensorOperator(matrix, symmetric=True), 5, which=which, tol=1e-8, seed=seed
    )
    theirs = eigsh(matrix.numpy(), 5, which=scipy_which, return_eigenvectors=False)
    assert np.allclose(np.sort(mine.values), np.sort(theirs), rtol=1e-8)


def count_of_eigsh(values, k, tol):
    """Products and error of scipy's Lanczos from a random vector."""
    count = 0

    def matvec(vector):
        nonlocal count
        count += 1
        return values * vector.ravel()

    start = np.random.default_rng(0).normal(size=len(values))
    op = ScipyOperator((len(values), len(values)), matvec=matvec, dtype=np.float64)
    found = eigsh(op, k, which="LA", tol=tol, v0=start, return_eigenvectors=False)
    return count, np.abs(np.sort(found)[::-1] - values[:k]).max()


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("spread", [0.3, 0.1, 0.03])
def test_no_more_products_than_eigsh_on_leading_clusters(spread, k):
    rng = np.random.default_rng(1)
    top = np.sort(1 - spread * np.append(0, rng.uniform(0, 1, 9)))[::-1]
    values = np.concatenate([top, np.sort(rng.uniform(0, 0.1, 1000))[::-1]])
    theirs, _ = count_of_eigsh(values, k, 1e-3)
    counts = [top_eigenvalues(DiagonalOperator(values), k, seed=s).matvecs for s in range(5)]
    # a few more products are spent on the probe, which eigsh does without: see the next test
    assert np.median(counts) <= 1.2 * theirs


def test_finds_all_copies_where_eigsh_does_not():
    values = np.concatenate([np.ones(10), np.linspace(0.1, 0, 1000)])
    _, error = count_of_eigsh(values, 10, 1e-3)
    mine = top_eigenvalues(DiagonalOperator(values), 10)
    assert error > 0.5  # the reason for the probes
    assert np.allclose(mine.values, 1, rtol=1e-3)
    assert mine.matvecs <= 60


def marchenko_pastur(t, ratio):
    """Density of X^T X / rows for a (rows, n) Gaussian X with ratio = n / rows < 1."""
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    inside = np.clip((high - t) * (t - low), 0, None)
    return np.sqrt(inside) / (2 * np.pi * ratio * t)


def test_wishart_density_follows_marchenko_pastur():
    rows, n = 2000, 1000
    normal = factor(rows, n, seed=11)
    op = TensorOperator(normal.T @ normal / rows, psd=True)
    grid = np.linspace(0.2, 2.7, 11)
    result = spectral_density(op, num_vectors=10, steps=40, seed=0, width=0.05, grid=grid)
    low, high = (1 - np.sqrt(0.5)) ** 2, (1 + np.sqrt(0.5)) ** 2
    for t, density, error in zip(grid, result.density, result.density_error, strict=True):
        expected, _ = quad(
            lambda x, t=t: (
                marchenko_pastur(x, 0.5)
                * np.exp(-(((x - t) / 0.05) ** 2) / 2)
                / (0.05 * np.sqrt(2 * np.pi))
            ),
            low,
            high,
            points=[t] if low < t < high else None,
        )
        # eigenvalues of one Wishart matrix are rigid: its own deviation is of order 1 / n
        assert abs(density - expected) <= 5 * error + 10 / n
    assert result.moment(1).value == pytest.approx(
        1, abs=5 * result.moment(1).standard_error + 0.01
    )


def test_wishart_edges():
    rows, n = 1600, 400
    normal = factor(rows, n, seed=3)
    op = TensorOperator(normal.T @ normal / rows, psd=True)
    # Tracy-Widom: fluctuations of order n^(-2/3) around the edges (1 +- 1/2)^2, five of them
    scale = 5 * n ** (-2 / 3)
    assert top_eigenvalues(op).values[0] == pytest.approx(2.25, abs=2.25 * scale)
    assert top_eigenvalues(op, which="smallest").values[0] == pytest.approx(0.25, abs=2.25 * scale)


def test_goe_edges():
    n = 500
    matrix = symmetric(n, seed=2) * np.sqrt(2 / n)  # semicircle of radius 2
    op = TensorOperator(matrix, symmetric=True)
    for which, edge in (("largest", 2.0), ("smallest", -2.0)):
        found = top_eigenvalues(op, which=which).values[0]
        # Tracy-Widom (beta = 1): edge + n^(-2/3) x, mean of x -1.21, standard deviation 1.27
        x = (abs(found) - abs(edge)) * n ** (2 / 3)
        assert abs(x + 1.21) <= 5 * 1.27


def test_trace_against_the_eigenvalues_and_the_density():
    values = np.linspace(0, 1, 400) ** 4
    op = TensorOperator(rotated(values), psd=True)
    estimate = trace(op, num_matvecs=80)
    moment = spectral_density(op, num_vectors=5, steps=30).moment(1)
    assert abs(estimate.value - values.sum()) <= 5 * estimate.standard_error
    gap = abs(estimate.value / 400 - moment.value)
    assert gap <= 5 * np.hypot(estimate.standard_error / 400, moment.standard_error)


@pytest.mark.parametrize("k", [1, 2, 10])
def test_failures_on_clustered_spectra_are_as_rare_as_claimed(k):
    """Over spectra made to mislead, the error is within tol as often as ``confidence`` says."""
    rng, repeats, confidence = np.random.default_rng(k), 40, 0.8
    errors = []
    for seed in range(repeats):
        values = clustered(rng)
        result = top_eigenvalues(
            DiagonalOperator(values), k, seed=seed, confidence=confidence, max_matvecs=150
        )
        if result.converged:
            errors.append(np.max(np.abs(result.values - values[:k]) / result.bounds))
    wrong = np.mean(np.array(errors) > 1)
    assert len(errors) > 0.6 * repeats
    assert wrong <= (1 - confidence) + 3 * np.sqrt(0.2 * 0.8 / len(errors))
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(errors))  # what the docstring says, amply


def test_torch_and_scipy_agree_on_a_gram_matrix_in_float32():
    normal = factor(200, 50, seed=8).float()
    gram = normal @ normal.T
    mine = top_eigenvalues(TensorOperator(gram, psd=True), 3, tol=1e-5).values
    theirs = np.sort(torch.linalg.eigvalsh(gram.double()).numpy())[::-1][:3]
    assert np.allclose(mine, theirs, rtol=1e-5)
