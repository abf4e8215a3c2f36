"""Gamma decay and loss gaps in closed form: linear, ReLU and softplus students; weight norm."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from normscope.checks import Array, checked_number, checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.registry import check_choice
from normscope.theory.batch_statistics import (
    Number,
    checked_batch_size,
    gaussian_deviation_mean,
    gaussian_inverse_deviation_mean,
    gaussian_inverse_variance_mean,
    log_deviation_mean,
    log_inverse_deviation_mean,
)
from normscope.theory.layer_gap import gamma_decay_strength, loss_gap

LINEAR = "docs/design/0004, Linear student"
SCALES = {"half": 1.0, "full": 2.0}
REACH, NODES = 12.0, 4801  # of the trapezoid rule; its error is below rounding


def _scale(loss_scale: str) -> float:
    check_choice("loss_scale", loss_scale, SCALES)
    return SCALES[loss_scale]


def _checked_decay(zeta: float) -> float:
    value = checked_number(zeta, "zeta")
    if value < 0:
        raise InputError(f"zeta must be at least 0: a negative one rewards growth. Got {zeta!r}.")
    return value


def _checked_correlation(correlation: float) -> float:
    value = checked_number(correlation, "correlation")
    if abs(value) > 1:
        raise InputError(f"A correlation lies between -1 and 1. Got {correlation!r}.")
    return value


@equation(LUO2019, "App. C.2, hard ReLU")
def relu_decay(batch_size: ArrayLike, *, centered: bool = True, loss_scale: str = "half") -> Number:
    r"""Gamma decay of a hard ReLU unit with Gaussian h and beta = 0.

    .. math:: \zeta = \frac{1}{8M} + \frac{1}{4M} = \frac{3}{8M}

    Symbols: M ``batch_size``; the first term from sigma_B, the second from mu_B, absent if not
    ``centered``; twice that for ``loss_scale="full"``.
    Holds for: labels from the model; leading order in 1/M.
    """
    m = checked_batch_size(batch_size)
    return _scale(loss_scale) * (1 / (8 * m) + float(centered) / (4 * m))


@equation(LUO2019, "App. C.3")
def linear_decay(
    batch_size: ArrayLike, *, centered: bool = True, loss_scale: str = "half"
) -> Number:
    r"""Gamma decay of a linear unit with Gaussian h, at gamma = correlation = 1.

    .. math:: \zeta = \frac{3}{4M},\quad \frac{1}{4M}\ \text{uncentered},\quad
              \frac{1}{2M}\ \text{uncentered, full scale}

    Symbols: M ``batch_size``; ``centered``: the batch mean is subtracted; ``loss_scale``: "half"
    is 1/2 (y - yhat)^2, "full" is (y - yhat)^2.
    Holds for: leading order in 1/M; only the value at gamma = 1 is that of batch norm, whose gap
    is linear in gamma.
    """
    m = checked_batch_size(batch_size)
    return _scale(loss_scale) * (1 / (4 * m) + float(centered) / (2 * m))


@equation(LUO2019, "App. C.3, exact")
def linear_decay_bracket(batch_size: ArrayLike, *, mean_part: bool = True) -> Number:
    r"""The Gamma-function form of the linear unit's decay, half scale.

    .. math:: \zeta = \frac12\left\{1 - \sqrt{2M}\,\frac{\Gamma((M-2)/2)}{\Gamma((M-1)/2)} +
              c\,\frac{M}{M-3}\right\}

    Symbols: M ``batch_size``; c = 1 + 1/M with the part of mu_B (``mean_part``), else 1.
    Holds for: M > 3, Gaussian h, statistics independent of the sample; exact. Tends to 3/(4M), or
    1/(4M) without the part of mu_B.
    Differs from the paper: as far as legible it prints c = 1 and simplifies to 3/(4M).
    """
    m = checked_batch_size(batch_size, above=3, what="E[1/sigma_B^2] does not exist below")
    factor = 1 + 1 / m if mean_part else np.ones_like(m)
    first = np.expm1(log_inverse_deviation_mean(m, centered=True))
    return -first + 0.5 * (factor * gaussian_inverse_variance_mean(m) - 1)


@equation(NORMSCOPE, LINEAR)
def linear_decay_exact(
    batch_size: ArrayLike, *, centered: bool = True, loss_scale: str = "half"
) -> Number:
    r"""Exact gap of a linear unit under independent noise at gamma = correlation = 1.

    .. math:: \zeta = \frac12 - E[1/\sigma_B] + \frac{c}{2} E[1/\sigma_B^2]

    Symbols: sigma_B of M ``batch_size`` Gaussian values; c = 1 + 1/M if ``centered``, else 1, with
    M - 1 or M degrees of freedom.
    Holds for: M > 3 centered, M > 2 uncentered; exact.
    """
    return linear_gap_independent(batch_size, centered=centered, loss_scale=loss_scale)


@equation(NORMSCOPE, LINEAR)
def linear_gap_in_batch(
    batch_size: ArrayLike,
    *,
    gamma: float = 1.0,
    correlation: float = 1.0,
    centered: bool = True,
    loss_scale: str = "half",
) -> Number:
    r"""Loss gap of a linear unit under batch norm, Gaussian h, teacher of variance 1.

    .. math:: E[l_{BN}] - l_{PN} = \gamma r\,(1 - E[\sigma_B])

    Symbols: gamma; r ``correlation`` of teacher and student; sigma_B of M ``batch_size`` values.
    Holds for: every gamma, r and M > 1 (M > 0 uncentered); exact. Tends to 3 gamma r/(4M), or
    gamma r/(4M) uncentered.
    Differs from the paper: gamma^2 there; the two agree at gamma = r = 1.
    """
    lost = -np.expm1(log_deviation_mean(batch_size, centered=centered))
    slope = checked_number(gamma, "gamma") * _checked_correlation(correlation)
    return _scale(loss_scale) * slope * lost


@equation(NORMSCOPE, LINEAR)
def linear_gap_independent(
    batch_size: ArrayLike,
    *,
    gamma: float = 1.0,
    correlation: float = 1.0,
    centered: bool = True,
    loss_scale: str = "half",
) -> Number:
    r"""Loss gap of a linear unit whose statistics come from other samples.

    .. math:: -\gamma r\,(E[1/\sigma_B] - 1) + \tfrac12\gamma^2\left(c\,E[1/\sigma_B^2] - 1\right)

    Symbols: gamma; r ``correlation``; sigma_B of M ``batch_size`` values; c = 1 + 1/M if
    ``centered``, else 1.
    Holds for: M > 3 centered, M > 2 uncentered; exact.
    """
    first = np.expm1(log_inverse_deviation_mean(batch_size, centered=centered))
    second = _noise_square(batch_size, centered=centered) - 1
    scale, r = checked_number(gamma, "gamma"), _checked_correlation(correlation)
    return _scale(loss_scale) * (0.5 * scale**2 * second - scale * r * first)


def _noise_square(batch_size: ArrayLike, *, centered: bool) -> Number:
    """E[((n - mu_B)/sigma_B)^2] of an independent sample."""
    inverse2 = gaussian_inverse_variance_mean(batch_size, centered=centered)
    return (1 + float(centered) / np.asarray(batch_size, float)) * inverse2


@equation(NORMSCOPE, LINEAR)
def linear_scale_in_batch(
    batch_size: ArrayLike, *, correlation: float = 1.0, centered: bool = True
) -> Number:
    r"""The gamma that minimizes a linear unit's loss under batch norm.

    .. math:: \gamma = r\,E[\sigma_B]

    Symbols: r ``correlation``; sigma_B of M ``batch_size`` Gaussian values.
    Holds for: exact. Tends to r (1 - 3/(4M)), or r (1 - 1/(4M)) if not ``centered``.
    """
    return _checked_correlation(correlation) * gaussian_deviation_mean(
        batch_size, centered=centered
    )


@equation(NORMSCOPE, LINEAR)
def linear_scale_independent(
    batch_size: ArrayLike, *, correlation: float = 1.0, centered: bool = True
) -> Number:
    r"""The gamma that minimizes a linear unit's loss under independent noise.

    .. math:: \gamma = r\,\frac{E[1/\sigma_B]}{c\,E[1/\sigma_B^2]}

    Symbols: r ``correlation``; sigma_B of M ``batch_size`` values; c = 1 + 1/M if ``centered``.
    Holds for: exact. Tends to r (1 - 5/(4M)) if not ``centered``.
    """
    inverse = gaussian_inverse_deviation_mean(batch_size, centered=centered)
    return (
        _checked_correlation(correlation) * inverse / _noise_square(batch_size, centered=centered)
    )


@equation(NORMSCOPE, LINEAR)
def linear_scale_decayed(zeta: float, *, correlation: float = 1.0) -> float:
    r"""The gamma that minimizes half the squared error of a linear unit plus zeta gamma^2.

    .. math:: \gamma = \frac{r}{1 + 2\zeta}

    Symbols: zeta, half scale; r ``correlation``.
    Holds for: population norm, Gaussian h, teacher of variance 1; exact.
    """
    return _checked_correlation(correlation) / (1 + 2 * _checked_decay(zeta))


@equation(LUO2019, "Eq. (3), softplus unit")
def softplus_decay(gamma: float, beta: float, batch_size: float) -> float:
    r"""Strength zeta of Eq. (3) for a softplus unit with Gaussian n.

    .. math:: \zeta = \frac{1}{4M}E[\mathrm{sig}(\gamma n+\beta) n^2] +
              \frac{1}{2M}E[\mathrm{sig}(\gamma n+\beta)]

    Symbols: gamma, beta; M ``batch_size``; sig the logistic function, A'' of A' = softplus.
    Holds for: as Eq. (3), see ``gamma_decay_strength``.
    Differs from the paper: softplus is A', not A.
    """
    gamma, beta = checked_number(gamma, "gamma"), checked_number(beta, "beta")
    n, w = _gaussian_nodes()
    return gamma_decay_strength(
        expit(gamma * n + beta), n, batch_size, excess_kurtosis=0.0, weights=w
    )


@equation(NORMSCOPE, "docs/design/0004, The complete gap of a layer")
def softplus_gap(
    gamma: float,
    beta: float,
    batch_size: float,
    *,
    target_scale: float,
    target_shift: float,
    in_batch: bool = True,
    normalized: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> float:
    r"""R_f + R_q of a softplus unit with labels softplus(t n + u).

    .. math:: l' = \mathrm{sp}(\gamma n+\beta) - \mathrm{sp}(t n + u),\quad
              l'' = \mathrm{sig}(\gamma n+\beta)

    Symbols: gamma, beta; t ``target_scale``, u ``target_shift``; M ``batch_size``; n Gaussian, or
    ``normalized`` nodes with ``weights`` of any law of mean 0 and variance 1.
    Holds for: as ``loss_gap``.
    """
    if normalized is None:
        nodes, w = _gaussian_nodes()
    else:
        nodes = checked_numbers(normalized, "normalized")
        w = np.ones(nodes.shape) if weights is None else checked_numbers(weights, "weights")
    h = checked_number(gamma, "gamma") * nodes + checked_number(beta, "beta")
    scale = checked_number(target_scale, "target_scale")
    target = scale * nodes + checked_number(target_shift, "target_shift")
    slope = np.logaddexp(0, h) - np.logaddexp(0, target)
    return loss_gap(slope, expit(h), nodes, gamma, batch_size, in_batch=in_batch, weights=w)


def _gaussian_nodes() -> tuple[Array, Array]:
    n = np.linspace(-REACH, REACH, NODES)
    density = np.exp(-(n**2) / 2)
    return n, density / density.sum()


@equation(LUO2019, "Eq. (4)")
def population_to_weight_norm(
    gamma: float, beta: float, *, population_mean: float, weight_norm: float, input_variance: float
) -> tuple[float, float]:
    r"""Population norm as weight norm: v and b of v w.x/||w|| + b.

    .. math:: v = \gamma/\sqrt a,\quad b = \beta - \gamma\mu_P/(\sqrt a\,\|w\|)

    Symbols: gamma, beta; mu_P ``population_mean`` of w.x; ||w|| ``weight_norm``; a
    ``input_variance`` of each input.
    Holds for: inputs of covariance a I, statistics of the population; exact. With statistics of a
    training set of the size of the input, sigma is not sqrt(a) ||w||.
    Differs from the paper: it prints gamma/a, right only if a is the standard deviation.
    """
    for name, value in (("weight_norm", weight_norm), ("input_variance", input_variance)):
        if checked_number(value, name) <= 0:
            raise InputError(f"{name} must be above 0. Got {value!r}.")
    v = checked_number(gamma, "gamma") / np.sqrt(input_variance)
    shift = v * checked_number(population_mean, "population_mean") / weight_norm
    return float(v), float(checked_number(beta, "beta") - shift)
