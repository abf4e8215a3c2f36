"""Simulated products of Gaussian matrices: their factors, and all their singular values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError
from normscope.results.randmat import ProductSpectrum
from normscope.seeds import checked_seed, numpy_generator
from normscope.theory.randmat._inputs import (
    Variances,
    checked_factors,
    checked_size,
    checked_variances,
)
from normscope.theory.randmat.singular import (
    singular_cdf,
    singular_density,
    singular_edge,
    singular_quantile,
)

POINTS = 400  # of the curve in a ProductSpectrum


def gaussian_factors(
    num_factors: int, size: int, *, variances: Variances = 1.0, seed: int = 0, run: int = 0
) -> Iterator[Array]:
    """The independent matrices of one simulated product, in the order in which they act.

    Args:
        num_factors: M.
        size: N, rows and columns, from 2.
        variances: sigma_i^2, one or one per factor; entries of factor i are N(0, sigma_i^2 / N).
        seed: seed for all random numbers. A product of fewer factors begins with the same matrices.
        run: which of the independent products of this seed, from 0.

    Returns:
        An iterator over M matrices, (N, N), each drawn when it is asked for.
    """
    factors, n = checked_factors(num_factors), checked_size(size)
    scales = np.sqrt(checked_variances(variances, factors) / n)
    rng = numpy_generator(seed, "gaussian factors", checked_count(run, "run", least=0))
    return (scale * rng.standard_normal((n, n)) for scale in scales)


def product_spectrum(
    num_factors: int, size: int, *, runs: int = 1, variances: Variances = 1.0, seed: int = 0
) -> ProductSpectrum:
    """All singular values of simulated products beside the law of large matrices.

    Args:
        num_factors: M.
        size: N, rows and columns, from 2.
        runs: independent products; Figure 8 of Bjorck et al. overlays five with N = 1000.
        variances: sigma_i^2, one or one per factor.
        seed: seed for all random numbers.

    Returns:
        The values of every run, the predicted density, and the distance of the two.
    """
    factors, n = checked_factors(num_factors), checked_size(size)
    given = checked_variances(variances, factors)
    rows = range(checked_count(runs, "runs"))
    values = np.array([_values(factors, n, given, seed, run) for run in rows])
    grid = _curve_points(factors, given)
    return ProductSpectrum(
        num_factors=factors,
        values=values,
        rounding=n * np.finfo(float).eps * values[:, 0],
        distance=np.array([ks_distance(row, factors, variances=given) for row in values]),
        grid=grid,
        density=singular_density(grid, factors, variances=given),
        edge=singular_edge(factors, variances=given),
        variances=tuple(float(v) for v in given),
        seed=checked_seed(seed),
    )


def ks_distance(
    singular_values: ArrayLike, num_factors: int, *, variances: Variances = 1.0
) -> float:
    """Greatest difference between the shares of singular values below s and the law's.

    Args:
        singular_values: all N of one product, or pooled over products of one size.
        num_factors: M.
        variances: sigma_i^2, one or one per factor.

    Returns:
        The Kolmogorov-Smirnov distance. Values below N eps times the largest are rounding: they
        count as below all others, and the law is not compared there.
    """
    values = np.sort(checked_numbers(singular_values, "singular_values").ravel())
    if not values.size or values[0] < 0:
        raise InputError(
            "singular_values must hold at least one number, none below 0. "
            f"Got {values.size} numbers{f' from {values[0]:.6g}' if values.size else ''}."
        )
    steps = np.arange(values.size + 1) / values.size
    below = singular_cdf(values, num_factors, variances=variances)
    gaps = np.maximum(np.abs(below - steps[1:]), np.abs(below - steps[:-1]))
    return float(gaps[values >= values.size * np.finfo(float).eps * values[-1]].max())


def _curve_points(factors: int, variances: Array) -> Array:
    """Points of the support, close where the density diverges and where it falls to 0."""
    steps = np.linspace(0, 1, POINTS + 1)[1:]
    return singular_quantile(1 - (1 - steps**2) ** 3, factors, variances=variances)


def _values(factors: int, size: int, variances: Array, seed: int, run: int) -> Array:
    product, *others = gaussian_factors(factors, size, variances=variances, seed=seed, run=run)
    for factor in others:
        product = factor @ product
    values: Array = linalg.svdvals(product, check_finite=False, overwrite_a=True)
    return values
