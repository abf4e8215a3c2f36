"""Condition number and extreme singular values of a product, by depth.

An explicit product in float64 loses its smallest singular value once the condition number passes
1e16. The norm of the inverse does not: it is built by one LU solve per factor and kept in logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError
from normscope.results.randmat import DepthConditioning
from normscope.seeds import checked_seed
from normscope.theory.randmat._inputs import (
    Variances,
    checked_factors,
    checked_size,
    checked_variances,
)
from normscope.theory.randmat._lanczos import largest_singular_value
from normscope.theory.randmat.products import gaussian_factors
from normscope.theory.randmat.singular import singular_edge

EPS = float(np.finfo(float).eps)


def conditioning_by_depth(
    num_factors: int, size: int, *, runs: int = 5, variances: Variances = 1.0, seed: int = 0
) -> DepthConditioning:
    """Condition number and extreme singular values of products of 1, 2, ..., M Gaussian matrices.

    Figures 11 and 12 of Bjorck et al. are ``conditioning_by_depth(M, 1000)``. They say "standard"
    entries: then s is N^(M/2) times ours, and the condition number is the same.

    Args:
        num_factors: M, the greatest depth; all depths of a run share their first factors.
        size: N, rows and columns, from 2.
        runs: independent products.
        variances: sigma_i^2, one or one per factor; they move s, not the condition number.
        seed: seed for all random numbers.

    Returns:
        Logarithms for every run and depth, beside the edge that theory predicts.
    """
    factors, n = checked_factors(num_factors), checked_size(size)
    given = checked_variances(variances, factors)
    # unit variances, shifted afterwards: exact, and no variance can overflow
    made = [
        _extremes(gaussian_factors(factors, n, seed=seed, run=run))
        for run in range(checked_count(runs, "runs"))
    ]
    shift = np.cumsum(np.log10(given)) / 2
    depths = np.arange(1, factors + 1)
    return DepthConditioning(
        depths=depths,
        log10_largest=np.array([one.largest for one in made]) + shift,
        log10_smallest=np.array([one.smallest for one in made]) + shift,
        log10_edge=np.log10([singular_edge(int(m)) for m in depths]) + shift,
        size=n,
        seed=checked_seed(seed),
        reason="; ".join(one.reason for one in made if one.reason),
    )


def product_conditioning(factors: Iterable[ArrayLike]) -> DepthConditioning:
    """Condition number and extreme singular values of X_1, X_2 X_1, ..., X_M ... X_2 X_1.

    Any square matrices of one size, for example the weights of a linear network. The relative error
    of the smallest singular value is about eps times the condition number of the worst factor, not
    of the product.

    Args:
        factors: in the order in which they act; read one at a time.

    Returns:
        One run. Where a factor is singular to working precision the smallest singular value is 0
        from that depth on, and ``reason`` says so.
    """
    made = _extremes(_square(factors))
    return DepthConditioning(
        depths=np.arange(1, len(made.largest) + 1),
        log10_largest=np.array([made.largest]),
        log10_smallest=np.array([made.smallest]),
        log10_edge=np.full(len(made.largest), np.nan),
        size=made.size,
        seed=None,
        reason=made.reason,
    )


@dataclass(frozen=True)
class _Extremes:
    """Log10 of the largest and of the smallest singular value at every depth."""

    largest: list[float]
    smallest: list[float]
    size: int
    reason: str


@dataclass(frozen=True)
class _Scaled:
    """10**log10 times a matrix whose largest entry is 1: products of any length fit."""

    matrix: Array
    log10: float

    @classmethod
    def of(cls, matrix: Array, log10: float = 0.0) -> _Scaled:
        largest = float(np.abs(matrix).max())
        if largest == 0:
            return cls(matrix, -np.inf)
        return cls(matrix / largest, log10 + float(np.log10(largest)))

    def log10_norm(self) -> float:
        """Log10 of the largest singular value."""
        if self.log10 == -np.inf:
            return -np.inf
        return self.log10 + float(np.log10(largest_singular_value(self.matrix)))


def _extremes(factors: Iterable[Array]) -> _Extremes:
    """Follow the product and its inverse transpose, one factor at a time."""
    largest, smallest, size, reason = [], [], 0, ""
    for depth, factor in enumerate(factors, start=1):
        step = _Scaled.of(factor)
        if depth == 1:
            size = len(factor)
            product, inverse = step, _Scaled(np.eye(size), 0.0)
        else:
            product = _Scaled.of(step.matrix @ product.matrix, product.log10 + step.log10)
        if not reason:
            solved = _solved(step.matrix, inverse.matrix)
            if solved is None:
                reason = f"factor {depth} is singular to working precision"
            else:
                inverse = _Scaled.of(solved, inverse.log10 - step.log10)
        largest.append(product.log10_norm())
        smallest.append(-np.inf if reason else -inverse.log10_norm())
    return _Extremes(largest, smallest, size, reason)


def _solved(matrix: Array, right: Array) -> Array | None:
    """X^-T times ``right``; None where X is singular to working precision."""
    lu, pivots, zero_pivot = linalg.lapack.dgetrf(matrix)
    if zero_pivot:
        return None
    inverse_condition, _ = linalg.lapack.dgecon(lu, np.linalg.norm(matrix, 1))
    if inverse_condition < len(matrix) * EPS:
        return None
    solved: Array = linalg.lapack.dgetrs(lu, pivots, right, trans=1)[0]
    return solved


def _square(factors: Iterable[ArrayLike]) -> Iterator[Array]:
    """The factors as float64 matrices of one size, from 2 rows."""
    size, depth = 0, 0
    for depth, factor in enumerate(factors, start=1):
        matrix = checked_numbers(factor, f"factor {depth}")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or size not in (0, len(matrix)):
            raise InputError(
                "The factors must be square matrices of one size: the smallest singular value is "
                f"taken from the inverse. Factor {depth} has shape {matrix.shape}"
                + (f", those before it ({size}, {size})." if size else ".")
            )
        size = checked_size(len(matrix))
        yield matrix
    if not depth:
        raise InputError("factors is empty. Give at least one square matrix.")
