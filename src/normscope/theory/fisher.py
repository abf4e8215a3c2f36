"""Eigenvalue statistics of the Fisher matrix F = J^T J / T, and the learning rate they allow.

``A1`` and ``A2`` are the diagonal and off-diagonal entries of T F* for one output, summed over
layers (alpha kappa_1 M and alpha kappa_2 M in Karakida's notation): widths cancel from every
formula when written with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array
from normscope.errors import InputError
from normscope.refs import KARAKIDA2019, NORMSCOPE, WEI2019, equation


@equation(KARAKIDA2019, "Eq. (11)")
def kappas(
    diagonal: ArrayLike, offdiagonal: ArrayLike, *, widths: Sequence[int], unit: float
) -> tuple[float, float, float]:
    r"""alpha, kappa_1 and kappa_2 of the paper from the sums A1 and A2.

    .. math:: \kappa_1 = A_1/(\alpha M),\ \kappa_2 = A_2/(\alpha M),\quad
              \alpha = \sum_{l=1}^{L-1} \alpha_l\alpha_{l-1}

    Symbols: A1 ``diagonal``, A2 ``offdiagonal``; M ``unit``; alpha_l = ``widths[l]``/M, l = 0..L-1.
    Holds for: dense networks.
    Differs from the paper: (11) must read tilde times hat.
    """
    ratios = [w / unit for w in widths]
    alpha = sum(a * b for a, b in zip(ratios[1:], ratios[:-1], strict=True))
    return alpha, float(np.sum(diagonal)) / alpha / unit, float(np.sum(offdiagonal)) / alpha / unit


@equation(WEI2019, "Eq. (44), (146)")
@equation(KARAKIDA2019, "Eq. (10)")
def mean_direction(diagonal: ArrayLike, offdiagonal: ArrayLike, *, samples: ArrayLike) -> Array:
    r"""Rayleigh quotient of F in the direction of the mean gradient: the outlier.

    .. math:: \lambda_{\max} \approx \frac{(T-1)A_2 + A_1}{T}

    Symbols: A1 ``diagonal``, A2 ``offdiagonal``; T ``samples``, infinity allowed.
    Holds for: any T, width to infinity, A2 > 0. It is a lower bound for every network.
    Differs from the paper: Wei (153) multiplies two averages, wrong at O(1/T).
    """
    t = np.asarray(samples, dtype=float)
    return np.asarray(
        (1 - 1 / t) * np.asarray(offdiagonal, float) + np.asarray(diagonal, float) / t
    )


@equation(KARAKIDA2019, "Eq. (S.13)")
def second_moment_bound(
    diagonal: ArrayLike, offdiagonal: ArrayLike, *, samples: ArrayLike, outputs: ArrayLike
) -> Array:
    r"""Upper bound of lambda_max from the second moment of the spectrum.

    .. math:: \lambda_{\max} \le \sqrt{\mathrm{tr} F^{*2}} =
              \sqrt{C\left(A_2^2 + (A_1^2 - A_2^2)/T\right)}

    Symbols: C ``outputs``; T ``samples``; A1 ``diagonal``, A2 ``offdiagonal``.
    Holds for: leading order in the width; finite networks add fluctuations to tr F*^2.
    """
    a1, a2 = np.asarray(diagonal, float), np.asarray(offdiagonal, float)
    t = np.asarray(samples, dtype=float)
    return np.asarray(np.sqrt(np.asarray(outputs, float) * (a2**2 + (a1**2 - a2**2) / t)))


@equation(NORMSCOPE, "docs/design/0002, splitting")
def split_lambda_max(
    last: ArrayLike, hidden: ArrayLike, *, outputs: ArrayLike, last_width: ArrayLike
) -> Array:
    r"""lambda_max with the splitting of the C-fold eigenvalue by the read-out's overlaps.

    .. math:: \lambda_{\max} \approx f_L + \left(1 + \sqrt{C/M_{L-1}}\right)^2 \sum_{l<L} f_l

    Symbols: f_L ``last``, sum of f_l ``hidden``; C ``outputs``; M_(L-1) ``last_width``, units or
    channels.
    Holds for: C > 1 (unchanged for C = 1); a heuristic, within about 5 % of measured networks.
    """
    c = np.asarray(outputs, dtype=float)
    factor = np.where(c > 1, (1 + np.sqrt(c / np.asarray(last_width, float))) ** 2, 1.0)
    return np.asarray(np.asarray(last, float) + factor * np.asarray(hidden, float))


@equation(KARAKIDA2019, "Eq. (16)")
def mean_subtraction_trace(
    diagonal: ArrayLike, offdiagonal: ArrayLike, *, samples: ArrayLike, outputs: ArrayLike
) -> Array:
    r"""Trace of F when the batch mean of every output is subtracted.

    .. math:: \mathrm{tr} F = C (1 - 1/T)(A_1 - A_2)

    Symbols: C ``outputs``; T ``samples``; A1 ``diagonal``, A2 ``offdiagonal``.
    Holds for: width to infinity, any T.
    """
    gap = np.asarray(diagonal, float) - np.asarray(offdiagonal, float)
    return np.asarray(np.asarray(outputs, float) * (1 - 1 / np.asarray(samples, float)) * gap)


@equation(KARAKIDA2019, "Eq. (17)-(18)")
def mean_subtraction_bounds(
    diagonal: ArrayLike, offdiagonal: ArrayLike, *, samples: ArrayLike, outputs: ArrayLike
) -> tuple[Array, Array]:
    r"""Bounds of lambda_max when the batch mean of every output is subtracted.

    .. math:: (A_1 - A_2)/T \le \lambda_{\max} \le \sqrt{C/T}\,(A_1 - A_2)

    Symbols: C ``outputs``; T ``samples``; A1 ``diagonal``, A2 ``offdiagonal``.
    Holds for: T = O(width); for T = O(1), T >= 2, the lower bound is the value itself (17).
    The paper's constants c1, c2 are taken as zero: the upper bound is then not rigorous.
    Differs from the paper: (S.37) drops a factor alpha; (18) is right.
    """
    gap = np.asarray(diagonal, float) - np.asarray(offdiagonal, float)
    t = np.asarray(samples, dtype=float)
    return np.asarray(gap / t), np.asarray(gap * np.sqrt(np.asarray(outputs, float) / t))


@equation(NORMSCOPE, "docs/design/0002, linearised kernel")
def mean_subtraction_linearised(
    diagonal: ArrayLike,
    offdiagonal: ArrayLike,
    overlap_slope: ArrayLike,
    *,
    samples: ArrayLike,
    input_width: ArrayLike,
) -> Array:
    r"""lambda_max after mean subtraction, with the spread of the input overlaps.

    .. math:: \lambda_{\max} \approx \frac1T\left[A_1 - A_2 - A_2' +
              A_2'\left(1 + \sqrt{T/M_0}\right)^2\right]

    Symbols: A2' ``overlap_slope``; M_0 ``input_width``; T ``samples``, infinity allowed.
    Holds for: hidden widths >> T; contains (17) for T << M_0. For all widths near T it
    underestimates (5.2 against a measured 8.4).
    """
    a1, a2 = np.asarray(diagonal, float), np.asarray(offdiagonal, float)
    slope, m0 = np.asarray(overlap_slope, float), np.asarray(input_width, float)
    t = np.asarray(samples, dtype=float)
    # (1 + sqrt(T/M0))^2 - 1, divided by T before T can be infinite
    edge = 2 / np.sqrt(t * m0) + 1 / m0
    return np.asarray((a1 - a2) / t + slope * edge)


@equation(KARAKIDA2019, "Eq. (19)")
def last_batch_norm_bounds(
    diagonal: float, offdiagonal: float, *, samples: float, variances: ArrayLike
) -> tuple[float, float, float, float, float]:
    r"""Q1, Q2, trace and bounds of lambda_max with batch norm on the outputs.

    .. math:: Q_1 = \sum_k \sigma_k^{-2},\ Q_2 = \sum_k \sigma_k^{-4},\quad
              \frac{Q_2}{Q_1}\frac{A_1 - A_2}{T} \le \lambda_{\max} \le
              \sqrt{Q_2/T}\,(A_1 - A_2)

    Symbols: sigma_k^2 ``variances`` of the outputs over the batch; T ``samples``; A1
    ``diagonal``, A2 ``offdiagonal``. The trace returned is Q1 (A1 - A2).
    Holds for: T = O(width), c1' = c2' = 0; multiply the trace by (T-2)/T at finite T.
    Differs from the paper: (S.50) must be the projector G - u u^T/(T sigma^2), of rank T-2, so
    that F = 0 at T = 2.
    """
    sigma2 = np.asarray(variances, dtype=float)
    q1, q2 = float(np.sum(1 / sigma2)), float(np.sum(1 / sigma2**2))
    gap = diagonal - offdiagonal
    return q1, q2, q1 * gap, q2 / q1 * gap / samples, float(np.sqrt(q2 / samples)) * gap


@equation(NORMSCOPE, "docs/design/0002, variance norm on the outputs")
def last_variance_norm(
    diagonal: float,
    offdiagonal: float,
    *,
    samples: float,
    variances: ArrayLike,
    squared_means: ArrayLike,
) -> tuple[float, float, float]:
    r"""lambda_max, trace and second moment if outputs are divided by their batch deviation.

    .. math:: \lambda_k = \frac{1}{\sigma_k^2}\left(A_2 +
              \frac{A_1 - A_2}{T}\left(1 + m_k^2/\sigma_k^2\right)\right),\quad
              \lambda_{\max} = \max_k \lambda_k,\quad
              \mathrm{tr} F = \sum_k \lambda_k + \frac{T-2}{T}\frac{A_1 - A_2}{\sigma_k^2}

    Symbols: sigma_k^2 ``variances``, m_k^2 ``squared_means`` of the outputs over the batch; T
    ``samples``, infinity allowed; A1 ``diagonal``, A2 ``offdiagonal``. The second moment is that of
    the spectrum, tr F*^2.
    Holds for: leading order in the width, T >= 2, A2 > 0: the outlier is only rescaled.
    """
    sigma2 = np.asarray(variances, dtype=float)
    bulk = (diagonal - offdiagonal) / sigma2
    top = offdiagonal / sigma2 + bulk / samples * (1 + np.asarray(squared_means, float) / sigma2)
    rest = 1 - 2 / samples  # T - 2 eigenvalues bulk/T, and one of zero
    trace = float(np.sum(top + rest * bulk))
    return float(np.max(top)), trace, float(np.sum(top**2 + rest * bulk**2 / samples))


@equation(KARAKIDA2019, "Eq. (22)")
def batch_norm_lower_bound(
    last_width: ArrayLike, hat_t: ArrayLike, hat_st: ArrayLike, *, samples: ArrayLike
) -> Array:
    r"""Lower bound of lambda_max with batch norm in the hidden layers.

    .. math:: \lambda_{\max} \ge M_{L-1}\left(\frac{T-1}{T}\hat q_{st} + \frac1T\hat q_t\right)

    Symbols: M_(L-1) ``last_width``; q-hat of the last hidden layer ``hat_t``, ``hat_st``.
    Holds for: any network; essentially tight, because hidden layers add O(width/T).
    Differs from the paper: (S.65) prints alpha for alpha_(L-1).
    """
    width = np.asarray(last_width, dtype=float)
    return width * mean_direction(hat_t, hat_st, samples=samples)


@equation(WEI2019, "Eq. (7)")
@equation(KARAKIDA2019, "Eq. (27)")
def critical_lr(lambda_max: ArrayLike, *, momentum: float = 0.0) -> Array:
    r"""The learning rate above which gradient descent leaves a quadratic minimum.

    .. math:: \eta^* = 2(1+\mu)/\lambda_{\max}

    Symbols: mu ``momentum`` (heavy ball, not dampened).
    Holds for: full-batch gradient descent next to a minimum, loss (1/2)|f - y|^2 summed over
    outputs and averaged over samples; infinite for lambda_max = 0.
    """
    _check_momentum(momentum)
    value = np.asarray(lambda_max, dtype=float)
    with np.errstate(divide="ignore"):
        return np.asarray(2 * (1 + momentum) / value)


@equation(WEI2019, "footnote 1")
def best_lr_range(lambda_max: float, *, momentum: float = 0.0) -> tuple[float, float]:
    r"""Learning rates at which the sharpest mode contracts as fast as momentum allows.

    .. math:: (1-\sqrt\mu)^2 \le \eta\lambda \le (1+\sqrt\mu)^2

    Symbols: mu ``momentum``; lambda ``lambda_max``.
    Holds for: one mode of a quadratic; the spectral radius is sqrt(mu) inside, the centre is
    half the critical learning rate.
    """
    _check_momentum(momentum)
    root = float(np.sqrt(momentum))
    return (1 - root) ** 2 / lambda_max, (1 + root) ** 2 / lambda_max


@equation(WEI2019, "Eq. (5)-(6)")
def hessian_from_fisher(fisher: Array, residuals: Array, second_derivatives: Array) -> Array:
    r"""The Hessian of the squared loss from the Fisher matrix and the residual term.

    .. math:: H = F - \frac1T\sum_t\sum_k (y_k - f_k)\,\nabla\nabla f_k

    Symbols: y - f ``residuals`` (T, C); grad grad f ``second_derivatives`` (T, C, P, P); F
    ``fisher`` (P, P).
    Holds for: loss (1/2T) sum |y - f|^2; exact.
    """
    term = np.einsum("tk,tkij->ij", residuals, second_derivatives) / residuals.shape[0]
    return np.asarray(fisher - term)


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise InputError(
            f"momentum must be at least 0 and below 1. Got {momentum!r}. At 1 the velocity never "
            "decays, and no learning rate is stable."
        )
