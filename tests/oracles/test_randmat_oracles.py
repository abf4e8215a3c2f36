"""Products of Gaussian matrices against high precision, known laws and implicit iterations."""

import math

import mpmath
import numpy as np
import pytest
from scipy.linalg import lu_factor, lu_solve
from scipy.special import digamma

from normscope.theory import randmat as rm

CERTAIN = 2.23  # over sqrt(n): a KS distance that chance exceeds once in 1e4


def precise_log10_condition(factors) -> tuple[float, float]:
    """log10 of condition number and largest singular value, from an SVD with 200 digits."""
    with mpmath.workdps(200):
        product = mpmath.eye(len(factors[0]))
        for factor in factors:
            product = mpmath.matrix(factor.tolist()) * product
        values = mpmath.svd_r(product, compute_uv=False)
        return float(mpmath.log10(max(values) / min(values))), float(mpmath.log10(max(values)))


def numpy_draws(seed: int, depth: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, size)) for _ in range(depth)]


def test_the_published_draw():
    """N = 24, M = 20, numpy's default_rng(1), X_20 ... X_1: 19.097; explicit products miss it."""
    factors = numpy_draws(1, 20, 24)
    made = rm.product_conditioning(factors)
    exact, largest = precise_log10_condition(factors)
    assert exact == pytest.approx(19.097, abs=5e-4)
    assert made.log10_condition[0, -1] == pytest.approx(exact, abs=1e-9)
    assert made.log10_largest[0, -1] == pytest.approx(largest, abs=1e-12)
    explicit = np.linalg.multi_dot(factors[::-1])
    assert abs(np.log10(np.linalg.cond(explicit)) - exact) > 0.1


@pytest.mark.parametrize(("seed", "depth", "size"), [(0, 20, 24), (1, 60, 12), (2, 200, 3)])
def test_condition_numbers_in_high_precision(seed, depth, size):
    factors = list(rm.gaussian_factors(depth, size, seed=seed))
    made = rm.product_conditioning(factors)
    exact, largest = precise_log10_condition(factors)
    assert made.log10_condition[0, -1] == pytest.approx(exact, abs=1e-8)
    assert made.log10_largest[0, -1] == pytest.approx(largest, abs=1e-10)
    by_depth = rm.conditioning_by_depth(depth, size, runs=1, seed=seed)
    np.testing.assert_allclose(by_depth.log10_condition, made.log10_condition, atol=1e-8)


@pytest.mark.parametrize("m", range(1, 8))
def test_one_large_product_follows_the_law_of_squares(m):
    spectrum = rm.product_spectrum(m, 1000, seed=0)
    assert spectrum.distance[0] < 0.005
    s = spectrum.values[0]
    steps = np.arange(1001) / 1000
    misread = np.sort(rm.squared_cdf(s, m))  # the printed reading: s itself has the density
    assert np.abs(misread - steps[1:]).max() > 0.1
    assert s[0] == pytest.approx(rm.singular_edge(m), rel=0.05)


def test_smallest_singular_value_of_one_matrix_follows_edelman():
    """P(N s_min > t) = exp(-t^2/2 - t) for N to infinity; mean of log kappa = log N + 1.537."""
    size, runs = 60, 400
    made = rm.conditioning_by_depth(1, size, runs=runs, seed=5)
    t = np.sort(size * 10.0 ** made.log10_smallest[:, 0])
    below = 1 - np.exp(-(t**2) / 2 - t)
    steps = np.arange(runs + 1) / runs
    distance = max(np.abs(below - steps[1:]).max(), np.abs(below - steps[:-1]).max())
    assert distance < CERTAIN / math.sqrt(runs)
    logs = made.log10_condition[:, 0] * math.log(10)
    error = logs.std(ddof=1) / math.sqrt(runs)
    assert abs(logs.mean() - math.log(size) - 1.537) < 5 * error


def test_growth_with_depth_is_that_of_the_lyapunov_exponents():
    """Per factor: log s_max by [log(2/N) + psi(N/2)]/2, log s_min by [log(2/N) + psi(1/2)]/2."""
    size, depth, start, runs = 4, 160, 40, 24
    made = rm.conditioning_by_depth(depth, size, runs=runs, seed=2)
    for logs, end in ((made.log10_largest, size / 2), (made.log10_smallest, 0.5)):
        rates = (logs[:, -1] - logs[:, start - 1]) * math.log(10) / (depth - start)
        expected = (math.log(2 / size) + digamma(end)) / 2
        assert abs(rates.mean() - expected) < 5 * rates.std(ddof=1) / math.sqrt(runs)


def test_means_of_logs_rise_with_depth():
    made = rm.conditioning_by_depth(10, 100, runs=20, seed=0)
    frame = made.to_frame()
    assert (np.diff(frame.log10_condition_median) > 0).all()
    assert (np.diff(frame.log10_largest) > 0).all()


@pytest.mark.slow
def test_thirty_factors_of_size_1000_by_implicit_iterations():
    """No product and no inverse is formed: Rayleigh quotients of power iterations, in logs.

    The inverse is dominated by one direction, so twenty iterations settle it; the product needs
    more, and its quotient approaches from below.
    """
    depth, size = 30, 1000
    made = rm.conditioning_by_depth(depth, size, runs=1, seed=0)
    factors = list(rm.gaussian_factors(depth, size, seed=0))
    solved = [lu_factor(f) for f in factors]
    inverse = _iterated(
        [lambda v, f=f: lu_solve(f, v, trans=1) for f in solved],
        [lambda v, f=f: lu_solve(f, v) for f in solved],
        size,
        steps=20,
    )
    assert -made.log10_smallest[0, -1] == pytest.approx(inverse, abs=1e-6)
    product = _iterated(
        [lambda v, f=f: f @ v for f in factors], [lambda v, f=f: f.T @ v for f in factors], size,
        steps=150,
    )  # fmt: skip
    assert made.log10_largest[0, -1] == pytest.approx(product, abs=1e-3)
    assert made.log10_condition[0, 0] < 5
    assert made.log10_condition[0, -1] > 40


def _iterated(forth, back, size, *, steps) -> float:
    """log10 of the norm of ... F_2 F_1 by power iteration on F^T F, rescaled at every factor."""
    vector = np.random.default_rng(0).standard_normal(size)
    for _ in range(steps):
        vector /= np.linalg.norm(vector)
        log10 = 0.0
        for apply in forth:
            vector, log10 = _rescaled(apply(vector), log10)
        for apply in reversed(back):
            vector, _ = _rescaled(apply(vector), 0.0)
    return log10


def _rescaled(vector, log10):
    norm = np.linalg.norm(vector)
    return vector / norm, log10 + np.log10(norm)
