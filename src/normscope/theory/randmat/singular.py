"""The law of the singular values themselves: s = sqrt(x) of the Fuss-Catalan law."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_numbers
from normscope.refs import NORMSCOPE, equation
from normscope.theory.randmat._angles import inside_support, safe_log
from normscope.theory.randmat._inputs import Variances, checked_factors, log_scale
from normscope.theory.randmat.law import (
    squared_edge,
    squared_moment,
    squared_quantile,
    squared_samples,
)

SECTION = "docs/design/0005, Squared singular values"


@equation(NORMSCOPE, SECTION)
def singular_density(s: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""Density of the singular values of X_1 ... X_M.

    .. math:: p(s) = 2 s\,\rho(s^2)

    Symbols: ``s`` singular value; rho :func:`squared_density`; M ``num_factors``; sigma_i^2
    ``variances``.
    Holds for: N to infinity. At s = 0 it is 2 / (pi sigma_1) for one factor and infinite for
    more, as s^(-(M-1)/(M+1)).
    Differs from the paper: rho itself is printed as the density of s.
    """
    factors = checked_factors(num_factors)
    scale = log_scale(variances, factors)
    log_s = safe_log(checked_numbers(s, "s"))
    inside, at = inside_support(2 * log_s - scale, factors)
    at_zero = 2 * np.exp(-scale / 2) / np.pi if factors == 1 else np.inf
    made = np.where(log_s == -np.inf, at_zero, 0.0)
    made[inside] = 2 * np.exp(log_s[inside] + at.log_density() - scale)
    return made


@equation(NORMSCOPE, SECTION)
def singular_cdf(s: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""Share of the singular values that are at most s.

    .. math:: P(S \le s) = F(s^2)

    Symbols: ``s`` singular value; F :func:`squared_cdf`; M ``num_factors``; sigma_i^2
    ``variances``.
    Holds for: N to infinity.
    """
    factors = checked_factors(num_factors)
    given = checked_numbers(s, "s")
    inside, at = inside_support(2 * safe_log(given) - log_scale(variances, factors), factors)
    made = np.where(given > 0, 1.0, 0.0)
    made[inside] = at.mass()
    return made


@equation(NORMSCOPE, SECTION)
def singular_quantile(share: ArrayLike, num_factors: int, *, variances: Variances = 1.0) -> Array:
    r"""The s below which a given share of the singular values lies.

    .. math:: F(s_q^2) = q

    Symbols: q ``share``; F :func:`squared_cdf`; M ``num_factors``; sigma_i^2 ``variances``.
    Holds for: 0 <= q <= 1; 0 gives 0 and 1 the edge.
    """
    return np.sqrt(squared_quantile(share, num_factors, variances=variances))


@equation(NORMSCOPE, SECTION)
def singular_moment(order: float, num_factors: int, *, variances: Variances = 1.0) -> float:
    r"""Mean of s^k.

    .. math:: E\,s^k = E\,x^{k/2}

    Symbols: k ``order``; x = s^2; M ``num_factors``; sigma_i^2 ``variances``. The second is
    prod sigma_i^2: on average, lengths are kept.
    Holds for: N to infinity, real k > -2 / (M + 1).
    """
    half = float(checked_numbers(order, "order")) / 2
    return squared_moment(half, num_factors, variances=variances)


@equation(NORMSCOPE, SECTION)
def singular_edge(num_factors: int, *, variances: Variances = 1.0) -> float:
    r"""The largest singular value of a product of large matrices.

    .. math:: s_+ = \prod_i\sigma_i\,\sqrt{(M+1)^{M+1}/M^M} \approx \sqrt{e (M + 1/2)}

    Symbols: M ``num_factors``; sigma_i^2 ``variances``.
    Holds for: N to infinity. It grows as sqrt(M).
    Differs from the paper: "linearly with the depth" is the growth of the square.
    """
    return math.sqrt(squared_edge(num_factors, variances=variances))


@equation(NORMSCOPE, SECTION)
def singular_samples(
    count: int, num_factors: int, *, variances: Variances = 1.0, seed: int = 0
) -> Array:
    r"""Independent draws from the law of the singular values.

    .. math:: s = \sqrt x

    Symbols: x as :func:`squared_samples` draws it; ``count``, M ``num_factors``, sigma_i^2
    ``variances`` as there.
    Holds for: exactly the law at N to infinity; singular values of one matrix are not independent.
    """
    return np.sqrt(squared_samples(count, num_factors, variances=variances, seed=seed))
