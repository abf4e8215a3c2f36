"""Means over two sites of functions of Gaussian values, on kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from normscope.checks import Array
from normscope.spec import Activation
from normscope.theory.graph.algebra import Algebra
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.quadrature import gaussian_mean, gaussian_pair_mean, hermite_coefficients

TERMS = 128  # of the Hermite series of a smooth function
LEFT = 1e-7  # share of a function beyond these terms from which it is integrated pair by pair

Function = Callable[[Any], Any]


class PairMeans(NamedTuple):
    """Means over one Gaussian value z at two sites."""

    value: Array  # phi phi
    slope: Array  # phi' phi'


def piecewise(act: Activation) -> float | None:
    """The slope below zero of a ReLU, leaky ReLU or identity; None for other activations."""
    slopes = {"linear": 1.0, "relu": 0.0, "leaky_relu": act.parameter}
    return slopes.get(act.family or "")


def correlation(algebra: Algebra, kernel: Array) -> Array:
    """The kernel in units of its diagonal; 1 with itself, and where a variance is zero."""
    variance = np.maximum(algebra.diagonal(kernel), 0.0)
    product = algebra.rows(variance) * algebra.columns(variance)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.where(product > 0, kernel / np.sqrt(product), 1.0)
    return algebra.with_diagonal(np.clip(rho, -1.0, 1.0), np.ones_like(variance))


def pair_means(algebra: Algebra, kernel: Array, act: Activation) -> PairMeans:
    """E phi phi' of a centred Gaussian with this kernel, and of the slopes."""
    variance = np.maximum(algebra.diagonal(kernel), 0.0)
    if act.family is not None:
        rows = algebra.rows(variance) * algebra.ones()
        columns = algebra.columns(variance)
        value = product_mean(act, rows, kernel, variance2=columns)
        slope = derivative_product_mean(act, rows, kernel, variance2=columns)
    else:
        value = _series(algebra, kernel, act.function, act.kinks)
        slope = _series(algebra, kernel, act.derivative, act.kinks)
    return PairMeans(
        algebra.with_diagonal(value, second_moment(act, variance)),
        algebra.with_diagonal(slope, second_moment_of_derivative(act, variance)),
    )


def channel_mean(algebra: Algebra, kernel: Array, act: Activation) -> Array:
    """E phi at each site, a profile."""
    variance = np.maximum(algebra.diagonal(kernel), 0.0)
    below = piecewise(act)
    if below is not None:
        return (1 - below) * np.sqrt(variance / (2 * np.pi))
    return gaussian_mean(act.function, variance, kinks=act.kinks)


def pulled_means(algebra: Algebra, kernel: Array, act: Activation) -> Array:
    """E z phi'(z) z' phi'(z'), what a gain in front of an activation sees."""
    if piecewise(act) is not None:  # z phi'(z) = phi(z)
        return pair_means(algebra, kernel, act).value

    def pulled(z: Any) -> Any:
        return z * np.asarray(act.derivative(z))

    variance = np.maximum(algebra.diagonal(kernel), 0.0)
    own = gaussian_mean(lambda z: pulled(z) ** 2, variance, kinks=act.kinks)
    return algebra.with_diagonal(_series(algebra, kernel, pulled, act.kinks), own)


def _series(algebra: Algebra, kernel: Array, function: Function, kinks: tuple[float, ...]) -> Array:
    variance = np.maximum(algebra.diagonal(kernel), 0.0)
    distinct, index = np.unique(variance, return_inverse=True)
    rho = correlation(algebra, kernel)
    if not kinks:
        table, error = hermite_coefficients(function, distinct, TERMS)
        power = gaussian_mean(lambda x: np.asarray(function(x)) ** 2, distinct)
        left = np.abs(power - (table**2).sum(1)) <= LEFT * power
        if left.all() and (error < 1e-8).all():
            total, factor = algebra.zeros(), algebra.ones()
            sizes = np.abs(table).max(0)
            last = int(np.flatnonzero(sizes > 1e-9 * sizes.max()).max(initial=0))
            for k in range(last + 1):
                c = table[index.reshape(variance.shape), k]
                total += algebra.outer(c, c) * factor
                factor = factor * rho
            return total
    rows = algebra.rows(variance) * algebra.ones()
    columns = algebra.columns(variance) * algebra.ones()
    covariance = rho * np.sqrt(rows * columns)
    return gaussian_pair_mean(function, rows, covariance, variance2=columns, kinks=kinks)


def sphere_pair_means(
    algebra: Algebra, kernel: Array, act: Activation, dimension: float, step: float = 0.05
) -> PairMeans:
    """``pair_means`` of a batch-normalized channel, whose length over the batch is fixed.

    With g(c) the Gaussian mean at scale c, the mean over the sphere is
    g(1) + (g'(1) - g''(1)) / (4 nu); the correction is zero for ReLU.
    """
    zero = pair_means(algebra, kernel, act)
    if piecewise(act) is not None:
        return zero
    up = pair_means(algebra, (1 + step) ** 2 * kernel, act)
    down = pair_means(algebra, (1 - step) ** 2 * kernel, act)

    def corrected(g: Array, high: Array, low: Array) -> Array:
        first, second = (high - low) / (2 * step), (high - 2 * g + low) / step**2
        return g + (first - second) / (4 * dimension)

    return PairMeans(*(corrected(*three) for three in zip(zero, up, down, strict=True)))
