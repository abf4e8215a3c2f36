"""One neuron under batch statistics: gamma decay and loss gap from samples or quadrature nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_number, checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.theory.batch_statistics import checked_batch_size, checked_law

COMPLETE = "docs/design/0004, The complete gap of a layer"


@equation(LUO2019, "Eq. (3), from mu_B")
def decay_from_mean(
    curvature: ArrayLike, batch_size: float, *, weights: ArrayLike | None = None
) -> float:
    r"""Gamma decay that the batch mean causes.

    .. math:: \zeta_\mu = \frac{1}{2M}\,\langle A''(h)\rangle

    Symbols: A'' ``curvature`` (P,), second derivative of each sample's loss in h_PN; M
    ``batch_size``; the mean is over samples, or with ``weights`` over quadrature nodes.
    Holds for: second order of the expansion, leading order in 1/M.
    """
    c, w = _weighted(curvature, weights)
    return float(w @ c / (2 * checked_batch_size(batch_size)))


@equation(LUO2019, "Eq. (3), from sigma_B")
def decay_from_deviation(
    curvature: ArrayLike,
    normalized: ArrayLike,
    batch_size: float,
    *,
    excess_kurtosis: float | None = None,
    weights: ArrayLike | None = None,
) -> float:
    r"""Gamma decay that the batch deviation causes.

    .. math:: \zeta_\sigma = \frac{\rho+2}{8M}\,I(\gamma),\quad
              I(\gamma) = \langle A''(h) n^2\rangle

    Symbols: A'' ``curvature``, n ``normalized`` (P,); M ``batch_size``; rho ``excess_kurtosis``,
    by default that of n; means over samples or with ``weights``.
    Holds for: second order of the expansion, leading order in 1/M.
    Differs from the paper: it prints the mean squared slope for I(gamma). The two agree only if
    labels are drawn from the model; at a noise-free optimum the squared slope is 0.
    """
    c, w, n, rho, _ = _sampled(curvature, normalized, weights, excess_kurtosis)
    return float((rho + 2) * (w @ (c * n**2)) / (8 * checked_batch_size(batch_size)))


@equation(LUO2019, "Eq. (3)")
def gamma_decay_strength(
    curvature: ArrayLike,
    normalized: ArrayLike,
    batch_size: float,
    *,
    excess_kurtosis: float | None = None,
    weights: ArrayLike | None = None,
) -> float:
    r"""Strength zeta of Eq. (3): batch norm is population norm plus zeta gamma^2.

    .. math:: \zeta = \frac{\rho+2}{8M}\,\langle A'' n^2\rangle + \frac{1}{2M}\langle A''\rangle

    Symbols: as in ``decay_from_deviation`` and ``decay_from_mean``.
    Holds for: labels whose mean given the input is the model's own, no skewness; leading order in
    1/M. Otherwise use ``loss_gap``.
    """
    from_deviation = decay_from_deviation(
        curvature, normalized, batch_size, excess_kurtosis=excess_kurtosis, weights=weights
    )
    return from_deviation + decay_from_mean(curvature, batch_size, weights=weights)


@equation(NORMSCOPE, COMPLETE)
def first_order_gap(
    slope: ArrayLike,
    normalized: ArrayLike,
    gamma: float,
    batch_size: float,
    *,
    excess_kurtosis: float | None = None,
    skewness: float | None = None,
    in_batch: bool = True,
    weights: ArrayLike | None = None,
) -> float:
    r"""First-order part R_f of E[loss under batch norm] - loss under population norm.

    .. math:: R_f = \frac{\gamma}{M}\left\langle l'\left(\tfrac{3(\rho+2)}{8}n - \tfrac{n^3}{2} +
              \tfrac{s}{2}\right)\right\rangle

    Symbols: l' ``slope``, n ``normalized`` (P,); gamma; M ``batch_size``; rho ``excess_kurtosis``
    and s ``skewness``, by default those of n. Not ``in_batch``: n/2 replaces -n^3/2.
    Holds for: n of mean 0 and variance 1; neglects O(M^-2).
    Differs from the paper: dropped there, since it vanishes for a well-specified model at its
    optimum; elsewhere it is of the same order as R_q.
    """
    g, w, n, rho, skew = _sampled(slope, normalized, weights, excess_kurtosis, skewness)
    own = -(n**3) / 2 if in_batch else n / 2
    shift = 3 * (rho + 2) / 8 * n + own + skew / 2
    scale, size = checked_number(gamma, "gamma"), checked_batch_size(batch_size)
    return float(scale * (w @ (g * shift)) / size)


@equation(NORMSCOPE, COMPLETE)
def second_order_gap(
    curvature: ArrayLike,
    normalized: ArrayLike,
    gamma: float,
    batch_size: float,
    *,
    excess_kurtosis: float | None = None,
    skewness: float | None = None,
    weights: ArrayLike | None = None,
) -> float:
    r"""Second-order part R_q of the loss gap.

    .. math:: R_q = \frac{\gamma^2}{2M}\left\langle l''\left(\tfrac{\rho+2}{4}n^2 + s n +
              1\right)\right\rangle

    Symbols: l'' ``curvature``, n ``normalized`` (P,); gamma; M ``batch_size``; rho
    ``excess_kurtosis`` and s ``skewness``, by default those of n.
    Holds for: n of mean 0 and variance 1; neglects O(M^-2).
    Differs from the paper: s n is missing there.
    """
    c, w, n, rho, skew = _sampled(curvature, normalized, weights, excess_kurtosis, skewness)
    spread = (rho + 2) / 4 * n**2 + skew * n + 1
    scale, size = checked_number(gamma, "gamma"), checked_batch_size(batch_size)
    return float(scale**2 * (w @ (c * spread)) / (2 * size))


@equation(NORMSCOPE, COMPLETE)
def loss_gap(
    slope: ArrayLike,
    curvature: ArrayLike,
    normalized: ArrayLike,
    gamma: float,
    batch_size: float,
    *,
    excess_kurtosis: float | None = None,
    skewness: float | None = None,
    in_batch: bool = True,
    weights: ArrayLike | None = None,
) -> float:
    r"""Loss under batch norm, mean over batches, minus loss under population norm.

    .. math:: E[l_{BN}] - l_{PN} = R_f + R_q + O(M^{-2})

    Symbols: as in ``first_order_gap`` and ``second_order_gap``.
    Holds for: n of mean 0 and variance 1; all terms of order 1/M.
    """
    law: dict[str, Any] = {"excess_kurtosis": excess_kurtosis, "skewness": skewness}
    law["weights"] = weights
    first = first_order_gap(slope, normalized, gamma, batch_size, in_batch=in_batch, **law)
    return first + second_order_gap(curvature, normalized, gamma, batch_size, **law)


def _weighted(values: ArrayLike, weights: ArrayLike | None) -> tuple[Array, Array]:
    array = checked_numbers(values, "slopes and curvatures").ravel()
    if not array.size:
        raise InputError("There are no samples: give slopes or curvatures of at least one.")
    if weights is None:
        return array, np.full(array.size, 1 / array.size)
    given = _like(weights, array, "weights")
    if np.any(given < 0) or not given.sum() > 0:
        raise InputError("Weights of quadrature nodes are not negative, and not all of them are 0.")
    return array, given / given.sum()


def _like(values: ArrayLike, other: Array, name: str = "normalized") -> Array:
    array = checked_numbers(values, name).ravel()
    if array.shape != other.shape:
        raise InputError(
            f"{name} must hold one number per sample, {other.size} of them as slopes and "
            f"curvatures do. Got {array.size}."
        )
    return array


def _sampled(
    values: ArrayLike,
    normalized: ArrayLike,
    weights: ArrayLike | None,
    kurtosis: float | None,
    skewness: float | None = None,
) -> tuple[Array, Array, Array, float, float]:
    """Values, weights and n, checked; excess kurtosis and skewness, of n where none is given."""
    array, w = _weighted(values, weights)
    n = _like(normalized, array)
    rho = float(checked_law(1.0, float(w @ n**4) - 3 if kurtosis is None else kurtosis)[1])
    skew = float(w @ n**3) if skewness is None else checked_number(skewness, "skewness")
    return array, w, n, rho, skew
