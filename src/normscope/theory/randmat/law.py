"""The Fuss-Catalan law: squared singular values of a product of M large Gaussian matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import binom

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError
from normscope.refs import BJORCK2018, NORMSCOPE, equation
from normscope.seeds import numpy_generator
from normscope.theory.randmat._angles import (
    Angles,
    angles_of_mass,
    inside_support,
    integration_nodes,
    log_edge,
    safe_log,
)
from normscope.theory.randmat._inputs import Variances, checked_factors, log_scale


@equation(BJORCK2018, "Eq. (9)")
def squared_of_angle(angle: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""The squared singular value x that belongs to an angle.

    .. math:: x = \prod_i\sigma_i^2\,\frac{\sin((M+1)\varphi)^{M+1}}{\sin\varphi\,\sin(M\varphi)^M}

    Symbols: phi ``angle``; M ``num_factors``; sigma_i^2 / N the variance of the entries of factor
    i, ``variances``. x falls from the edge at phi = 0 to 0 at phi = pi / (M + 1).
    Holds for: 0 < phi < pi / (M + 1).
    Differs from the paper: the factor prod sigma_i^2, which is printed as if it were 1.
    """
    factors = checked_factors(num_factors)
    phi = checked_numbers(angle, "angle")
    width = np.pi / (factors + 1)
    if not ((phi > 0) & (phi < width)).all():
        raise InputError(
            f"angle must lie between 0 and pi / (num_factors + 1) = {width:.6g}, both excluded: "
            f"beyond, x is not one-to-one. Got values from {phi.min():.6g} to {phi.max():.6g}."
        )
    log_x = Angles(factors, np.log1p(-phi / width)).log_square()
    return np.exp(log_x + log_scale(variances, factors))


@equation(BJORCK2018, "Theorem 1, support")
def squared_edge(num_factors: int, *, variances: Variances = 1.0) -> float:
    r"""The end of the support, to which the largest squared singular value tends.

    .. math:: x_+ = \prod_i\sigma_i^2\,(M+1)^{M+1}/M^M

    Symbols: M ``num_factors``; sigma_i^2 ``variances``. About e (M + 1/2) for many factors.
    Holds for: N to infinity; at finite N the largest value scatters by a share N^(-2/3).
    Differs from the paper: prod sigma_i^2 is printed as 1.
    """
    factors = checked_factors(num_factors)
    return float(np.exp(log_edge(factors) + log_scale(variances, factors)))


@equation(BJORCK2018, "Eq. (5), (10)")
def squared_density(x: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""Density of the squared singular values of X_1 ... X_M.

    .. math:: \rho(x) = \frac1{\pi x}\frac{\sin((M+1)\varphi)}{\sin(M\varphi)}\sin\varphi,
              \quad x = x(\varphi)

    Symbols: ``x`` squared singular value; phi the angle of Eq. (9); M ``num_factors``. With
    ``variances`` sigma_i^2 the density is rho(x / s) / s, s = prod sigma_i^2.
    Holds for: N to infinity. Zero outside the support; infinite at x = 0, as x^(-M/(M+1)).
    Differs from the paper: it calls x a singular value; it is a squared one. (10) is a density in
    x, not in phi.
    """
    factors = checked_factors(num_factors)
    scale = log_scale(variances, factors)
    given = checked_numbers(x, "x")
    inside, at = inside_support(safe_log(given) - scale, factors)
    made = np.where(given == 0, np.inf, 0.0)
    made[inside] = np.exp(at.log_density() - scale)
    return made


@equation(NORMSCOPE, "docs/design/0005, Distribution function")
def squared_cdf(x: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""Share of the squared singular values that are at most x.

    .. math:: F(x) = 1 - \frac1\pi\left[(M+1)\varphi -
              M\,\frac{\sin\varphi\,\sin((M+1)\varphi)}{\sin(M\varphi)}\right]

    Symbols: phi the angle of ``x`` by Eq. (9); M ``num_factors``; sigma_i^2 ``variances``.
    Holds for: N to infinity. Relative precision down to x = 0.
    """
    factors = checked_factors(num_factors)
    given = checked_numbers(x, "x")
    inside, at = inside_support(safe_log(given) - log_scale(variances, factors), factors)
    made = np.where(given > 0, 1.0, 0.0)
    made[inside] = at.mass()
    return made


@equation(NORMSCOPE, "docs/design/0005, Distribution function")
def squared_quantile(share: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""The x below which a given share of the squared singular values lies.

    .. math:: F(x_q) = q

    Symbols: q ``share``; F :func:`squared_cdf`; M ``num_factors``; sigma_i^2 ``variances``.
    Holds for: 0 <= q <= 1; 0 gives 0 and 1 the edge.
    """
    factors = checked_factors(num_factors)
    scale = log_scale(variances, factors)
    q = checked_numbers(share, "share")
    if not ((q >= 0) & (q <= 1)).all():
        bad = q[(q < 0) | (q > 1)].ravel()[0]
        raise InputError(f"share is a probability, from 0 to 1. Got {float(bad)!r}.")
    made = np.where(q > 0, squared_edge(factors, variances=variances), 0.0)
    inside = (q > 0) & (q < 1)
    made[inside] = np.exp(angles_of_mass(q[inside], factors).log_square() + scale)
    return made


@equation(NORMSCOPE, "docs/design/0005, Moments and sampling")
def squared_moment(order: float, num_factors: int, *, variances: Variances = 1.0) -> float:
    r"""Mean of x^k: the Fuss-Catalan numbers.

    .. math:: E\,x^k = \prod_i\sigma_i^{2k}\,\frac1{kM+1}\binom{k(M+1)}{k}

    Symbols: k ``order``; M ``num_factors``; sigma_i^2 ``variances``. First 1, second M + 1.
    Holds for: N to infinity, any real k > -1 / (M + 1); below, the mean is infinite: an error.
    """
    factors = checked_factors(num_factors)
    k = float(checked_numbers(order, "order"))
    if k <= -1 / (factors + 1):
        raise InputError(
            f"The mean of x**order is infinite for order <= -1 / (num_factors + 1) = "
            f"{-1 / (factors + 1):.4g}, because the density diverges at 0. Got order = {k!r}."
        )
    with np.errstate(over="ignore"):
        value = binom(k * (factors + 1), k) / (k * factors + 1)
        value *= np.exp(k * log_scale(variances, factors))
    if not np.isfinite(value):
        raise InputError(
            f"The moment of order {k:g} of {factors} factors exceeds float64. Take a lower order."
        )
    return float(value)


def squared_mean(
    function: Callable[[Array], Array], num_factors: int, *, variances: Variances = 1.0
) -> float:
    """Mean of a function of the squared singular values, by integration over the angle.

    Args:
        function: from an array of x to an array of the same shape; it may diverge at x = 0 if
            the mean is finite (a logarithm, a small negative power).
        num_factors: M.
        variances: sigma_i^2, one or one per factor.

    Returns:
        The mean, to about 1e-13 of the mean of |function| where the function is smooth inside.
        x below 2e-308 is taken as 2e-308: a share 10**(-308 / (M + 1)) of the law.
    """
    factors = checked_factors(num_factors)
    at, weights = integration_nodes(factors)
    log_x = at.log_square() + log_scale(variances, factors)
    x = np.maximum(np.exp(log_x), np.finfo(float).tiny)
    values = np.asarray(function(x), dtype=np.float64)
    if values.shape not in ((), x.shape):
        raise InputError(
            f"function must give one number for every x: an array of shape {x.shape}. "
            f"It gave shape {values.shape}."
        )
    bad = ~np.isfinite(np.broadcast_to(values, x.shape))
    if bad.any():
        raise InputError(
            "function must be finite on the support, from 0 (excluded) to the edge. "
            f"At x = {x[bad][0]:.6g} it is not."
        )
    return float(np.sum(weights * values))


@equation(NORMSCOPE, "docs/design/0005, Moments and sampling")
def squared_samples(
    count: int, num_factors: int, *, variances: Variances = 1.0, seed: int = 0
) -> Array:
    r"""Independent draws from the law, as products of beta variables.

    .. math:: x = x_+\prod_{j=1}^M B_j,\quad
              B_j \sim \mathrm{Beta}\left(\tfrac{j}{M+1},\ \tfrac{M+1+j}{M(M+1)}\right)

    Symbols: x_+ the edge; M ``num_factors``; sigma_i^2 ``variances``; ``count`` draws.
    Holds for: exactly the law at N to infinity. The singular values of one matrix are not
    independent: they repel each other and fill the law far more evenly.
    """
    factors, number = checked_factors(num_factors), checked_count(count, "count")
    rng = numpy_generator(seed, "fuss-catalan", factors)
    made = np.full(number, squared_edge(factors, variances=variances))
    for j in range(1, factors + 1):
        made *= rng.beta(j / (factors + 1), (factors + 1 + j) / (factors * (factors + 1)), number)
    return made
