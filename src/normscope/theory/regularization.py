"""Batch norm as population norm plus gamma decay: strengths and loss gaps, for given samples.

Three parts: the law of the batch statistics (``batch_statistics``), the gap of one layer whose
loss, slopes and curvatures are known sample by sample (here), and closed forms for one-layer
students (``decay_closed_forms``). All names can be had from here.

Conventions: total loss = loss + zeta gamma^2. "half" is the loss 1/2 (y - yhat)^2, "full" the loss
(y - yhat)^2, whose zeta is twice as large. In-batch: the sample whose loss is measured belongs to
the batch, as in batch norm; independent: the statistics come from other samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.theory.batch_statistics import checked_batch_size
from normscope.theory.batch_statistics import correlated_mean_variance as correlated_mean_variance
from normscope.theory.batch_statistics import deviation_mean as deviation_mean
from normscope.theory.batch_statistics import deviation_variance as deviation_variance
from normscope.theory.batch_statistics import effective_batch_size as effective_batch_size
from normscope.theory.batch_statistics import gaussian_deviation_mean as gaussian_deviation_mean
from normscope.theory.batch_statistics import (
    gaussian_inverse_deviation_mean as gaussian_inverse_deviation_mean,
)
from normscope.theory.batch_statistics import (
    gaussian_inverse_variance_mean as gaussian_inverse_variance_mean,
)
from normscope.theory.batch_statistics import mean_deviation_covariance as mean_deviation_covariance
from normscope.theory.batch_statistics import mean_variance as mean_variance
from normscope.theory.decay_closed_forms import linear_decay as linear_decay
from normscope.theory.decay_closed_forms import linear_decay_bracket as linear_decay_bracket
from normscope.theory.decay_closed_forms import linear_decay_exact as linear_decay_exact
from normscope.theory.decay_closed_forms import linear_gap_in_batch as linear_gap_in_batch
from normscope.theory.decay_closed_forms import linear_gap_independent as linear_gap_independent
from normscope.theory.decay_closed_forms import linear_scale_decayed as linear_scale_decayed
from normscope.theory.decay_closed_forms import linear_scale_in_batch as linear_scale_in_batch
from normscope.theory.decay_closed_forms import linear_scale_independent as linear_scale_independent
from normscope.theory.decay_closed_forms import (
    population_to_weight_norm as population_to_weight_norm,
)
from normscope.theory.decay_closed_forms import relu_decay as relu_decay
from normscope.theory.decay_closed_forms import softplus_decay as softplus_decay
from normscope.theory.decay_closed_forms import softplus_gap as softplus_gap
from normscope.theory.layer_gap import decay_from_deviation as decay_from_deviation
from normscope.theory.layer_gap import decay_from_mean as decay_from_mean
from normscope.theory.layer_gap import first_order_gap as first_order_gap
from normscope.theory.layer_gap import gamma_decay_strength as gamma_decay_strength
from normscope.theory.layer_gap import loss_gap as loss_gap
from normscope.theory.layer_gap import second_order_gap as second_order_gap

CORRELATED = "docs/design/0004, Correlated positions"


@equation(LUO2019, "App. C.4")
def deep_decay(normalized: ArrayLike, curvature: ArrayLike, batch_size: float) -> Array:
    r"""Gamma decay of every neuron of one layer inside a network: the paper's diagonal form.

    .. math:: \zeta_i = \frac12 \left\langle H_{ii}\left[\frac{\rho_i+2}{4M} n_i^2 +
              \frac1M\right]\right\rangle

    Symbols: n ``normalized`` (P, neurons), the population; H_ii ``curvature`` (P, neurons), second
    derivative of each sample's loss in h_PN; M ``batch_size``; rho excess kurtosis of n.
    Holds for: one batch-norm layer, neurons of which the noise is independent, labels drawn from
    the model; leading order in 1/M.
    Differs from the paper: the factor 1/2 of diag(H), not legible there, follows from Eq. (3).
    """
    n, h = _samples(normalized, curvature)
    m = checked_batch_size(batch_size)
    rho = np.mean(n**4, axis=0) - 3
    return 0.5 * np.mean(h * ((rho + 2) / (4 * m) * n**2 + 1 / m), axis=0)


@equation(NORMSCOPE, "docs/design/0004, The complete gap of a layer")
def deep_first_order(
    normalized: ArrayLike,
    slope: ArrayLike,
    gamma: ArrayLike,
    batch_size: float,
    *,
    in_batch: bool = True,
) -> float:
    r"""First-order part R_f of the loss gap of one layer inside a network.

    .. math:: R_f = \frac1M\left\langle\sum_i G_i\gamma_i\left(\tfrac{3(\rho_i+2)}{8} n_i -
              \tfrac{n_i^3}{2} + \tfrac{s_i}{2}\right)\right\rangle

    Symbols: n ``normalized`` and G ``slope`` (P, neurons), the slope of each sample's loss in
    h_PN; gamma (neurons,); M ``batch_size``; rho, s moments of n. Not ``in_batch``: n/2 replaces
    -n^3/2.
    Holds for: n of mean 0 and variance 1 over the P samples; neglects O(M^-2).
    Differs from the paper: absent there; zero on average if labels are drawn from the model.
    """
    n, g = _samples(normalized, slope)
    m = checked_batch_size(batch_size)
    rho, skew = np.mean(n**4, axis=0) - 3, np.mean(n**3, axis=0)
    own = -(n**3) / 2 if in_batch else n / 2
    shift = 3 * (rho + 2) / 8 * n + own + skew / 2
    return float(np.mean(g * shift, axis=0) @ _per_neuron(gamma, n.shape[1]) / m)


@equation(NORMSCOPE, "docs/design/0004, The complete gap of a layer")
def deep_second_order(
    normalized: ArrayLike, hessian: ArrayLike, gamma: ArrayLike, batch_size: float
) -> float:
    r"""Second-order part R_q of the loss gap, with the terms between neurons.

    .. math:: R_q = \frac{1}{2M}\left\langle\sum_{ik} H_{ik}\gamma_i\gamma_k\left[E n_in_k +
              \tfrac{n_in_k}{4}(E n_i^2n_k^2-1) + \tfrac{n_i}{2}E n_i^2n_k +
              \tfrac{n_k}{2}E n_k^2n_i\right]\right\rangle

    Symbols: n ``normalized`` (P, neurons); H ``hessian`` (P, neurons, neurons) of each sample's
    loss in h_PN; gamma (neurons,); M ``batch_size``.
    Holds for: n of mean 0 and variance 1 over the P samples; neglects O(M^-2); H of a ReLU network
    lacks the curvature of its kinks.
    Differs from the paper: only i = k and no skewness there; all neurons see the same batch, so
    that the other terms are of the same order.
    """
    n, h = checked_numbers(normalized, "normalized"), checked_numbers(hessian, "hessian")
    if n.ndim != 2 or h.shape != (*n.shape, n.shape[1]):
        raise InputError(
            f"normalized is (samples, neurons) and hessian (samples, neurons, neurons). Got shapes "
            f"{n.shape} and {h.shape}."
        )
    m = checked_batch_size(batch_size)
    scales = _per_neuron(gamma, n.shape[1])
    scaled = h * np.outer(scales, scales)
    squares = n**2
    count = len(n)
    plain = n.T @ n / count
    quartic = squares.T @ squares / count - 1
    cubic = squares.T @ n / count  # E n_i^2 n_k
    pairs = plain + 0.25 * n[:, :, None] * n[:, None, :] * quartic
    pairs = pairs + 0.5 * n[:, :, None] * cubic + 0.5 * n[:, None, :] * cubic.T
    return float(np.sum(scaled * pairs) / count / (2 * m))


@equation(NORMSCOPE, CORRELATED)
def measured_decay(
    scale_curvature: ArrayLike,
    shift_curvature: ArrayLike,
    *,
    mean_variance: ArrayLike,
    deviation_variance: ArrayLike,
) -> Any:
    r"""Gamma decay from measured variances of the batch statistics and two curvatures.

    .. math:: \zeta_i = \tfrac12\left[v_{\sigma,i}\,\partial^2 L/\partial\gamma_i^2 +
              v_{\mu,i}\,\partial^2 L/\partial\beta_i^2\right]

    Symbols: L mean loss under population norm; ``scale_curvature``, ``shift_curvature`` its second
    derivatives in gamma_i and beta_i; v_mu, v_sigma variances of mu_B and sigma_B over sigma_P^2.
    Holds for: any layer, convolutions included; the diagonal form, as the paper's App. C.4, which
    is the case v_mu = 1/M, v_sigma = (rho+2)/(4M).
    Differs from the paper: correlated positions enter through v_mu and v_sigma.
    """
    v_mu = checked_numbers(mean_variance, "mean_variance")
    v_sigma = checked_numbers(deviation_variance, "deviation_variance")
    if np.any(v_mu < 0) or np.any(v_sigma < 0):
        raise InputError("Variances of batch statistics are not negative.")
    by_scale = checked_numbers(scale_curvature, "scale_curvature")
    by_shift = checked_numbers(shift_curvature, "shift_curvature")
    return 0.5 * (v_sigma * by_scale + v_mu * by_shift)


@equation(NORMSCOPE, CORRELATED)
def noise_covariance(sample_means: ArrayLike, sample_squares: ArrayLike) -> Array:
    r"""Covariance of what one sample adds to the noise of deviation and mean, (2C, 2C).

    .. math:: \Sigma = \mathrm{Cov}_b\,(q_b/2,\ m_b)

    Symbols: m ``sample_means`` (P, C), mean over positions of n; q ``sample_squares`` (P, C), mean
    over positions of n^2. First C rows: deviation, last C: mean.
    Holds for: batches drawn from the P samples with replacement; exact for mu_B and the batch mean
    of squares, whose covariance is Sigma / M.
    """
    m, q = _samples(sample_means, sample_squares)
    parts = np.concatenate([q / 2, m], axis=1)
    parts = parts - parts.mean(axis=0)
    return parts.T @ parts / len(parts)


@equation(NORMSCOPE, CORRELATED)
def correlated_first_order(
    deviation_slopes: ArrayLike,
    mean_slopes: ArrayLike,
    *,
    sample_means: ArrayLike,
    sample_squares: ArrayLike,
    batch_size: float,
    in_batch: bool = True,
    centered: bool = True,
) -> float:
    r"""First-order part R_f where each sample has several positions.

    .. math:: R_f = \frac1M\left\langle\sum_i A_i\left(\tfrac{q_i - Eq_i}{2} - \tfrac{V^m_i}{2} -
              \tfrac{3V^q_i}{8}\right) + B_i\left(m_i - \tfrac{C_i}{2}\right)\right\rangle

    Symbols: A ``deviation_slopes``, B ``mean_slopes`` (P, C): slope of each sample's loss in a
    relative increase of sigma_B and in an increase of mu_B / sigma_P; m ``sample_means``, q
    ``sample_squares`` (P, C): means over positions of n and n^2; V^m, V^q, C their variances and
    covariance; M ``batch_size``. Not ``in_batch``: without m_i and q_i - E q_i. Not ``centered``
    (root mean square in place of sigma_B): without V^m.
    Holds for: any number of positions, correlated as they are; neglects O(M^-2). With one position
    it is ``deep_first_order``.
    """
    a, b = _samples(deviation_slopes, mean_slopes)
    m, q = _samples(sample_means, sample_squares)
    if m.shape != a.shape:
        raise InputError(
            f"Slopes and moments are of the same samples and channels. Got shapes {a.shape} and "
            f"{m.shape}."
        )
    m, q = m - m.mean(axis=0), q - q.mean(axis=0)
    spread = float(centered) * np.mean(m**2, axis=0) / 2 + 3 * np.mean(q**2, axis=0) / 8
    mixed = np.mean(m * q, axis=0) / 2
    own = float(in_batch)
    terms = a * (own * q / 2 - spread) + b * (own * m - mixed)
    return float(np.mean(np.sum(terms, axis=1)) / checked_batch_size(batch_size))


@equation(NORMSCOPE, CORRELATED)
def correlated_second_order(
    curvature: ArrayLike, covariance: ArrayLike, *, batch_size: float
) -> float:
    r"""Second-order part R_q from the mean curvature in the noise variables.

    .. math:: R_q = \frac{1}{2M}\,\mathrm{tr}(\langle T\rangle\,\Sigma)

    Symbols: T ``curvature`` (2C, 2C): mean Hessian of each sample's loss in a relative increase of
    sigma_B (first C) and an increase of mu_B / sigma_P (last C); Sigma ``covariance``, of
    ``noise_covariance``; M ``batch_size``.
    Holds for: any number of positions; neglects O(M^-2). With one position it is
    ``deep_second_order``.
    """
    t, sigma = checked_numbers(curvature, "curvature"), checked_numbers(covariance, "covariance")
    if t.shape != sigma.shape or t.ndim != 2:
        raise InputError(
            f"Curvature and covariance are square and alike. Got shapes {t.shape}, {sigma.shape}."
        )
    return float(np.sum(t * sigma) / (2 * checked_batch_size(batch_size)))


def _samples(first: ArrayLike, second: ArrayLike) -> tuple[Array, Array]:
    a, b = checked_numbers(first, "samples"), checked_numbers(second, "samples")
    if a.ndim != 2 or a.shape != b.shape or not a.size:
        raise InputError(
            f"Both arrays are (samples, neurons), of one shape and not empty. Got {a.shape} and "
            f"{b.shape}."
        )
    return a, b


def _per_neuron(gamma: ArrayLike, neurons: int) -> Array:
    values = checked_numbers(gamma, "gamma")
    if values.shape not in ((), (neurons,)):
        raise InputError(f"gamma is one number, or one per neuron: {neurons}. Got {values.shape}.")
    return np.broadcast_to(values, (neurons,))
