"""Layer norm on the outputs: random statistics, corrected bounds, the leading matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from normscope.checks import Array
from normscope.refs import KARAKIDA2019, NORMSCOPE, equation
from normscope.seeds import numpy_generator

LIMIT_SAMPLES = 4096  # samples that stand for T to infinity
DRAWS = 128  # independent draws of the outputs
HEAVY = 5  # outputs up to which sigma^-4 has no finite mean
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@equation(KARAKIDA2019, "Eq. (24)-(26), eta")
def output_norm_statistics(outputs: Array) -> tuple[float, float, float]:
    r"""eta_1, eta_2, eta_3 of realised outputs.

    .. math:: \eta_1 = \langle\sigma^{-2}\rangle,\ \eta_2 = \langle\sigma^{-4}\rangle,\
              \eta_3^2 = \frac1{T^2}\sum_{tt'} g(t,t')^2/(\sigma_t^2\sigma_{t'}^2)

    Symbols: ``outputs`` (T, C) before the norm; sigma_t^2 their variance over outputs, g the
    correlation of two samples' outputs.
    Holds for: C > 2, no sample with equal outputs.
    Differs from the paper: eta_3 is a root-mean-square; as printed (a mean) the "upper bound" is
    violated.
    """
    sigma2, unit = _standardized(outputs)
    moment = (unit / sigma2[:, None]).T @ unit / (len(unit) * unit.shape[1])
    eta3 = float(np.linalg.norm(moment))  # sum over t, t' in C x C instead of T x T
    return float(np.mean(1 / sigma2)), float(np.mean(1 / sigma2**2)), eta3


def _standardized(outputs: Array) -> tuple[Array, Array]:
    """Variances over the outputs of each sample, and the outputs in units of them."""
    centred = outputs - outputs.mean(axis=1, keepdims=True)
    sigma2 = np.mean(centred**2, axis=1)
    return sigma2, centred / np.sqrt(sigma2)[:, None]


@equation(KARAKIDA2019, "Eq. (25)-(26)")
def output_norm_bounds(
    diagonal: float,
    offdiagonal: float,
    *,
    samples: float,
    outputs: int,
    etas: tuple[float, float, float],
) -> tuple[float, float, float]:
    r"""Second moment s and bounds of lambda_max with layer norm on the outputs.

    .. math:: s = \frac{(\eta_3^2-\eta_1^2)T + (C-2)(\eta_1^2 T - \eta_2)}{T}A_2^2 +
              \frac{(C-2)\eta_2}{T}A_1^2,\quad
              \frac{s}{(C-2)\eta_1 A_1} \le \lambda_{\max} \le \sqrt s

    Symbols: A1 ``diagonal``, A2 ``offdiagonal`` of T F* before the norm; C ``outputs``; T
    ``samples``, infinity allowed; eta ``etas``. s is alpha^2 M^2 times the paper's.
    Holds for: C > 2, leading order in the width.
    Differs from the paper: eta_3 as in :func:`output_norm_statistics`.
    """
    eta1, eta2, eta3 = etas
    rest = outputs - 2
    s = (eta3**2 - eta1**2 + rest * (eta1**2 - eta2 / samples)) * offdiagonal**2
    s += rest * eta2 / samples * diagonal**2
    return s, s / (rest * eta1 * diagonal), float(np.sqrt(s))


@equation(NORMSCOPE, "docs/design/0002, layer norm on the outputs")
def output_norm_leading(outputs: Array, offdiagonal: float, *, gap: float = 0.0) -> float:
    r"""lambda_max with layer norm on realised outputs, that of the leading matrix.

    .. math:: \lambda_{\max}\left(\frac{A_2}{T}\sum_t
              \frac{I_C - \tfrac1C 11^T - \tfrac1C n_t n_t^T}{\sigma_t^2\lambda - g}\,\lambda
              \right) = \lambda,\quad g = \frac{A_1 - A_2}{T}

    Symbols: n_t the normalized ``outputs`` (T, C) of sample t, sigma_t^2 their variance; A2
    ``offdiagonal``; g ``gap``. lambda is the largest root; g = 0 gives A2 times an eigenvalue.
    Holds for: A2 >= 0, exact for the leading matrix; networks lie up to 8 % above.
    """
    sigma2, unit = _standardized(outputs)
    width = unit.shape[1]

    def top(shift: float) -> float:  # of the mean of P_t / (sigma_t^2 - shift)
        weights = 1 / (sigma2 - shift)
        inner = (unit * weights[:, None]).T @ unit / (width * len(unit))
        centre = np.eye(width) - 1 / width
        return offdiagonal * float(np.linalg.eigvalsh(np.mean(weights) * centre - inner)[-1])

    alone, largest = top(0.0), gap / float(sigma2.min())  # the two parts without one another
    if gap <= 0 or offdiagonal <= 0:
        return max(alone, largest)
    low = max(alone, largest * (1 + 1e-12))
    if top(gap / low) <= low:  # the root is there, to rounding
        return low
    high = (alone + largest) * (1 + 1e-9)
    return float(brentq(lambda value: top(gap / value) - value, low, high, rtol=1e-12))


@dataclass(frozen=True)
class OutputNormEstimate:
    """Means over seeded draws of the outputs, medians for five outputs or fewer.

    The standard error and the quantiles are those of ``lambda_max``.
    """

    eta1: float
    lower: float
    lambda_max: float
    upper: float
    standard_error: float
    quantiles: dict[str, float]


@equation(NORMSCOPE, "docs/design/0002, layer norm on the outputs")
def output_norm_estimate(
    q_t: float,
    q_st: float,
    *,
    diagonal: float,
    offdiagonal: float,
    samples: float,
    outputs: int,
    seed: int,
) -> OutputNormEstimate:
    r"""Layer-norm quantities over random Gaussian outputs: means, or medians for C <= 5.

    .. math:: u_k(t) = \sqrt{q_{st}}\,g_k + \sqrt{q_t - q_{st}}\,\xi_k(t)

    Symbols: q_t, q_st variance and covariance of the read-out; g, xi standard normal.
    Holds for: width to infinity (outputs are then Gaussian); 4096 samples stand for T to
    infinity. For C <= 5 the fourth inverse moment has no finite mean: heavy tails, so medians.
    """
    count = int(min(samples, LIMIT_SAMPLES))
    rng = numpy_generator(seed, "layer norm outputs")
    rows = []
    for _ in range(DRAWS):
        common = np.sqrt(max(q_st, 0.0)) * rng.standard_normal((1, outputs))
        u = common + np.sqrt(max(q_t - q_st, 0.0)) * rng.standard_normal((count, outputs))
        etas = output_norm_statistics(u)
        _, lower, upper = output_norm_bounds(
            diagonal, offdiagonal, samples=samples, outputs=outputs, etas=etas
        )
        leading = output_norm_leading(u, offdiagonal, gap=(diagonal - offdiagonal) / samples)
        rows.append((etas[0], lower, leading, upper))
    table = np.array(rows)
    ordered = np.sort(table[:, 2])
    if outputs <= HEAVY:
        # one standard error of a median: the ranks n/2 -+ sqrt(n)/2, whatever the distribution
        low, high = (round((DRAWS + sign * np.sqrt(DRAWS)) / 2) for sign in (-1, 1))
        error, centre = float(ordered[high - 1] - ordered[low]) / 2, np.median(table, axis=0)
    else:
        error, centre = float(ordered.std(ddof=1) / np.sqrt(DRAWS)), table.mean(axis=0)
    quantiles = {f"{level:g}": float(np.quantile(ordered, level)) for level in QUANTILES}
    eta1, lower, top, upper = (float(x) for x in centre)
    return OutputNormEstimate(eta1, lower, top, upper, error, quantiles)
