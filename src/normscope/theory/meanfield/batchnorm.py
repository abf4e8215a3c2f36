"""Batch norm in three readings: as printed, frozen statistics, and the full Jacobian."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array
from normscope.refs import KARAKIDA2019, NORMSCOPE, WEI2019, YANG2019, equation
from normscope.spec import Activation, activation
from normscope.theory.integrals import (
    derivative_product_mean,
    hermite_moment,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import Forward, GramTerms, Pair, forward_pass, pooled
from normscope.theory.quadrature import gaussian_pair_mean


@equation(KARAKIDA2019, "Eq. (S.68)-(S.70)")
def batch_norm_hats(
    phi: str | Activation, gamma: ArrayLike, *, count: ArrayLike, of: str = "function"
) -> tuple[Array, Array]:
    r"""Squared norm and overlap of the activations behind a batch norm.

    .. math:: \hat q_t = \gamma^2 I_\phi[1,1],\quad \hat q_{st} = \gamma^2 I_\phi[1, -1/(n-1)]

    for positively homogeneous phi; for smooth phi, with m_j = E phi(gamma z) He_j(z),

    .. math:: \hat q_t = E\phi^2 - E[\phi^2 He_4]/(4n),\quad
              \hat q_{st} = m_0^2 - (m_1^2 + m_2^2/2 + m_0 m_4/2)/n

    Symbols: gamma ``gamma``; n ``count``, the values behind each statistic (infinite allowed);
    ``of="derivative"`` puts phi' in the place of phi (without the factor gamma^2).
    Holds for: wide networks; homogeneous phi exactly for n >= 2, smooth phi up to O(1/n^2).
    Differs from the paper: the denominators of (S.68)-(S.69) need a square root.
    """
    act = activation(phi)
    g, n = np.broadcast_arrays(np.asarray(gamma, float), np.asarray(count, float))
    slopes = of == "derivative"
    pair_mean = derivative_product_mean if slopes else product_mean
    if act.homogeneous:
        size = np.ones_like(g) if slopes else g**2
        one, two = (pair_mean(act, 1.0, overlap) for overlap in (1.0, -1 / (n - 1)))
        return np.asarray(size * one), np.asarray(size * two)
    m0, m1, m2, m4 = (hermite_moment(act, g, degree=j, of=of) for j in (0, 1, 2, 4))
    fourth = hermite_moment(act, g, degree=4, of="derivative_square" if slopes else "square")
    power = (second_moment_of_derivative if slopes else second_moment)(act, g**2)
    return power - fourth / (4 * n), m0**2 - (m1**2 + m2**2 / 2 + m0 * m4 / 2) / n


@equation(WEI2019, "Eq. (23)-(25), (39)-(43)")
def printed_forward(nets: Networks) -> Forward:
    r"""Forward order parameters as the paper prints them, T to infinity.

    .. math:: \tilde q^l = \gamma_l^2\sigma_w^2 E\phi'^2\,\tilde q^{l+1}/q^l

    Symbols: q^l = sigma_w^2 q-hat^(l-1) + sigma_b^2, which the paper takes for the variance.
    Holds for: nothing; kept beside the corrected forms. The batch variance of a unit is
    q - q_xy: for gamma = 0.1 each backward step is off by a factor 75.
    """
    return _forward(nets, printed=True)


@equation(NORMSCOPE, "docs/design/0002, frozen statistics")
@equation(WEI2019, "Eq. (23)-(25), corrected")
def frozen_forward(nets: Networks) -> Forward:
    r"""Forward order parameters with statistics held constant, variance corrected.

    .. math:: s_l^2 = q^l_t - q^l_{st} = \sigma_w^2(\hat q^{l-1}_t - \hat q^{l-1}_{st}),\quad
              E[1/s^2] = \frac{n}{(n-3)\,s_l^2}

    Symbols: s^2 the variance over the data of one unit; n the values behind each statistic.
    Holds for: wide networks, n > 3.
    Differs from the paper: it divides by q instead of s^2, and has T to infinity only.
    """
    return _forward(nets, printed=False)


def _forward(nets: Networks, *, printed: bool) -> Forward:
    def hidden(layer: int, q: Pair, inputs: Pair) -> tuple[tuple[Array, ...], Pair]:
        act, gamma = nets.activations[layer], nets.gamma[layer]
        n = np.full(nets.count, np.inf) if printed else nets.statistics_count(layer + 1)
        spread = q[0] if printed else nets.weight_variance[layer] * (inputs[0] - inputs[1])
        # n = inf gives 1; written so that inf/inf does not appear
        scale2 = gamma**2 / spread / (1 - 3 / n)
        slopes = batch_norm_hats(act, gamma, count=n, of="derivative")
        row = (gamma**2, -(gamma**2) / (n - 1), scale2, *slopes)
        return row, batch_norm_hats(act, gamma, count=n)

    return forward_pass(nets, (np.ones(nets.count), np.zeros(nets.count)), hidden)


@equation(WEI2019, "Eq. (44)-(45)")
def terms_as_printed(nets: Networks, forward: Forward) -> Array:
    r"""f_l of the paper, convolutions included, T to infinity: (L, n).

    .. math:: f_l = N_{l-1}\left((|K_l|-1)\tilde q^l_{\alpha\beta,xy} + \tilde q^l_{xy}\right)
              \left((|K_l|-1)\hat q^{l-1}_{\alpha\beta,xy} + \hat q^{l-1}_{xy}\right)

    Symbols: K_l positions of layer l; all backward parameters start at 1 as printed.
    Holds for: dense networks; strided convolutions are overcounted by orders of magnitude.
    """
    tilde = [np.ones(nets.count)]
    for layer in range(nets.depth - 1, 0, -1):
        gain = nets.weight_variance[layer] * forward.scale2[layer - 1]
        tilde.insert(0, gain * forward.slope_st[layer - 1] * tilde[0])
    # different positions obey the recursion of equal ones, so each bracket is |K| times it
    return np.asarray(nets.fan_in * nets.positions**2 * np.array(tilde) * forward.in_st)


@dataclass(frozen=True)
class TrainGram:
    """Terms of T F* under train-mode batch norm, by kind of parameter."""

    weight: GramTerms
    bias: GramTerms
    shift: GramTerms  # beta
    scale: GramTerms  # gamma


@equation(YANG2019, "gradient explosion rate, ReLU, large batch")
@equation(NORMSCOPE, "docs/design/0002, train-mode batch norm")
def gradient_growth(phi: str | Activation, gamma: ArrayLike) -> Array:
    r"""Growth of the squared gradient per hidden layer towards the input, large batches.

    .. math:: \frac{\gamma^2 E\phi'(\gamma z)^2}{E\phi(\gamma z)^2 - (E\phi(\gamma z))^2}

    Symbols: gamma ``gamma``, the same in neighbouring layers.
    Holds for: wide networks, T to infinity; ReLU gives pi/(pi-1) = 1.467 for every gamma.
    """
    act = activation(phi)
    g = np.asarray(gamma, dtype=float)
    spread = second_moment(act, g**2) - hermite_moment(act, g, degree=0) ** 2
    return np.asarray(g**2 * second_moment_of_derivative(act, g**2) / spread)


@equation(NORMSCOPE, "docs/design/0002, train-mode batch norm")
def train_gram(nets: Networks) -> tuple[TrainGram, Forward, Array]:
    r"""T F* of a train-mode batch-norm network, with the full Jacobian of the statistics.

    .. math:: D^{L-1} = \frac{\gamma^2\sigma_w^2}{s^2}\left[E\phi'^2\,I -
              \frac{(E\phi')^2 + (E\phi' z)^2}{n}\,11^T\right],\quad
              D^l = \frac{\gamma_l^2\sigma_w^2 E\phi'^2}{s_l^2}\,D^{l+1}

    .. math:: T F^*_{st} = M_{L-1}\hat q^{L-1}_{st} +
              \sum_{l<L} M_{l-1}(\hat q^{l-1}_t - \hat q^{l-1}_{st})\,D^l_{st}

    Symbols: s^2 = sigma_w^2 (q-hat_t - q-hat_st) at T to infinity; n the values behind each
    statistic; only the last term uses the hats at finite n.
    Holds for: wide networks, n >> 1; hidden layers run high by O(1/T) + O(1/width). For n = 2 the
    hidden terms are exactly 0.
    Differs from the paper: it holds the statistics constant.

    Returns:
        the terms by kind, the forward order parameters at T to infinity, and the diagonal of D.
    """
    forward = _forward(replace(nets, samples=np.full(nets.count, np.inf)), printed=False)
    depth = nets.depth
    diagonal, offdiagonal = _propagated(nets, forward)
    last_t, last_st = _last_hats(nets)
    spread = forward.in_t - forward.in_st
    weight = GramTerms(
        np.vstack([nets.fan_in[:-1] * spread[:-1] * diagonal, nets.fan_in[-1:] * last_t]),
        np.vstack([nets.fan_in[:-1] * spread[:-1] * offdiagonal, nets.fan_in[-1:] * last_st]),
    )
    readout = np.zeros((depth, nets.count))
    readout[-1] = 1.0  # hidden biases are removed by the batch mean: exactly zero
    shift, scale = _affine_terms(nets, diagonal, offdiagonal)
    return TrainGram(weight, GramTerms(readout, readout), shift, scale), forward, diagonal


def _projections(nets: Networks, layer: int) -> tuple[Array, Array, Array]:
    """E phi'^2, (E phi')^2 and (E phi' z)^2 at gamma z for hidden ``layer``."""
    act, gamma = nets.activations[layer - 1], nets.gamma[layer - 1]
    first = hermite_moment(act, gamma, degree=0, of="derivative")
    second = hermite_moment(act, gamma, degree=1, of="derivative")
    return second_moment_of_derivative(act, gamma**2), first**2, second**2


def _propagated(nets: Networks, forward: Forward) -> tuple[Array, Array]:
    """Diagonal and off-diagonal of D^l, l = 1..L-1: (L-1, n) each."""
    diagonal: list[Array] = []
    offdiagonal: list[Array] = []
    for layer in range(nets.depth - 1, 0, -1):
        power, first, second = _projections(nets, layer)
        gain = nets.weight_variance[layer] * forward.scale2[layer - 1]
        count = nets.pool_count(layer)
        if not diagonal:
            common = (first + second) / nets.statistics_count(layer)
            # two values are always -1 and 1 behind the norm: nothing passes down
            gain = np.where(nets.statistics_count(layer) == 2, 0.0, gain)
            diagonal.insert(0, gain * (power / count - common))
            offdiagonal.insert(0, -gain * common)
        else:
            diagonal.insert(0, gain * power / count * diagonal[0])
            offdiagonal.insert(0, gain * power / count * offdiagonal[0])
    shape = (nets.depth - 1, nets.count)
    return np.array(diagonal).reshape(shape), np.array(offdiagonal).reshape(shape)


def _last_hats(nets: Networks) -> tuple[Array, Array]:
    layer = nets.depth - 1
    if layer == 0:
        return np.ones(nets.count), np.zeros(nets.count)
    act, gamma = nets.activations[-1], nets.gamma[-1]
    hats = batch_norm_hats(act, gamma, count=nets.statistics_count(layer))
    return pooled(nets, layer, *hats)


def _affine_terms(
    nets: Networks, diagonal: Array, offdiagonal: Array
) -> tuple[GramTerms, GramTerms]:
    """Terms of beta and gamma; below the last hidden layer only what varies over the batch acts."""
    shape = (nets.depth, nets.count)
    shift_t, shift_st, scale_t, scale_st = (np.zeros(shape) for _ in range(4))
    for layer in range(1, nets.depth):
        act, gamma = nets.activations[layer - 1], nets.gamma[layer - 1]
        power, first, second = _projections(nets, layer)
        weight = nets.weight_variance[layer]
        scaled_power = power + hermite_moment(act, gamma, degree=2, of="derivative_square")
        if layer == nets.depth - 1:
            n = nets.statistics_count(layer)
            shift = pooled(nets, layer, *batch_norm_hats(act, gamma, count=n, of="derivative"))
            scale = pooled(nets, layer, scaled_power, scaled_pair(act, gamma, -1 / (n - 1)))
            shift_t[layer - 1], shift_st[layer - 1] = weight * shift[0], weight * shift[1]
            scale_t[layer - 1], scale_st[layer - 1] = weight * scale[0], weight * scale[1]
        else:
            count = nets.pool_count(layer)
            by_shift = weight * (power - first) / count
            by_scale = weight * (scaled_power - second) / count
            for rows, source in ((0, diagonal[layer]), (1, offdiagonal[layer])):
                (shift_t, shift_st)[rows][layer - 1] = by_shift * source
                (scale_t, scale_st)[rows][layer - 1] = by_scale * source
    return GramTerms(shift_t, shift_st), GramTerms(scale_t, scale_st)


def scaled_pair(act: Activation, gamma: Array, correlation: Array) -> Array:
    """E g(z) g(z') with g(z) = z phi'(gamma z): what the gain of a norm sees."""
    if act.homogeneous:  # Euler: z phi'(z) = phi(z)
        return product_mean(act, 1.0, correlation)

    def mean(g: float, c: float) -> float:
        kinks = tuple(k / g for k in act.kinks) if g > 0 else ()
        return float(
            gaussian_pair_mean(lambda z: z * np.asarray(act.derivative(g * z)), 1.0, c, kinks=kinks)
        )

    return np.array([mean(g, c) for g, c in zip(gamma, correlation, strict=True)])
