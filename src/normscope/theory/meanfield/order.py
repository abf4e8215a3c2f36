"""Order parameters of a network, and what each layer adds to the Gram matrix of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from normscope.checks import Array
from normscope.refs import KARAKIDA2019, NORMSCOPE, WEI2019, equation
from normscope.theory.integrals import derivative_product_slope
from normscope.theory.meanfield.networks import Networks

Rows = list[Array]
Pair = tuple[Array, Array]  # of one sample, of two
HiddenLayer = Callable[[int, Pair, Pair], tuple[tuple[Array, ...], Pair]]


@dataclass(frozen=True)
class Forward:
    """Forward order parameters; suffix ``_t`` one sample with itself, ``_st`` two samples."""

    q_t: Array  # (L, n), variance of the pre-activation
    q_st: Array  # (L, n), covariance of two samples
    in_t: Array  # (L, n), squared norm per unit of each layer's input
    in_st: Array  # (L, n), overlap of two samples
    arg_t: Array  # (L-1, n), variance that reaches the activation (after the norm)
    arg_st: Array  # (L-1, n), covariance that reaches the activation
    scale2: Array  # (L-1, n), squared gain of the norm: 1, or gamma^2 over its variance
    slope_t: Array  # (L-1, n), E phi'(u)^2
    slope_st: Array  # (L-1, n), E phi'(u) phi'(v) of two samples


def stacked_forward(nets: Networks, whole: Sequence[Rows], hidden: Sequence[Rows]) -> Forward:
    """The fields of ``Forward`` from lists of rows; those of hidden layers may be empty."""
    inner = [np.array(rows, dtype=float).reshape(len(rows), nets.count) for rows in hidden]
    return Forward(*map(np.array, whole), *inner)


def forward_pass(nets: Networks, first: Pair, hidden: HiddenLayer) -> Forward:
    """The recursion through all layers, from the ``first`` squared norm and overlap.

    ``hidden`` tells of a hidden layer, by its index, its q and its input, the last five fields of
    ``Forward``, and the norm and the overlap of what it passes on, before any pooling.
    """
    inputs, outputs, rows = [first], [], []
    for layer in range(nets.depth):
        weight, bias = nets.weight_variance[layer], nets.bias_variance[layer]
        outputs.append((weight * inputs[-1][0] + bias, weight * inputs[-1][1] + bias))
        if layer < nets.depth - 1:
            row, hats = hidden(layer, outputs[-1], inputs[-1])
            rows.append(row)
            inputs.append(pooled(nets, layer + 1, *hats))
    whole = [[pair[i] for pair in pairs] for pairs in (outputs, inputs) for i in (0, 1)]
    return stacked_forward(nets, whole, [[row[i] for row in rows] for i in range(5)])


@dataclass(frozen=True)
class OrderParameters:
    """Forward and backward order parameters.

    ``same_*`` sums delta_a . delta_a over positions, ``cross_*`` delta_a . delta_b over different
    positions (zero unless a pooling head correlates them); dense layers have one position.
    """

    forward: Forward
    same_t: Array  # (L, n)
    same_st: Array  # (L, n)
    cross_t: Array  # (L, n)
    cross_st: Array  # (L, n)


@dataclass(frozen=True)
class GramTerms:
    """What each layer adds to T F*: its diagonal and its off-diagonal entries."""

    diagonal: Array  # (L, n)
    offdiagonal: Array  # (L, n)


def pooled(nets: Networks, layer: int, hat_t: Array, hat_st: Array) -> tuple[Array, Array]:
    """What the next layer sees of the hats: averaged over positions under a pooling head.

    Different positions of one sample overlap like two samples (centred iid pixels).
    """
    count = nets.pool_count(layer)
    return hat_t / count + (1 - 1 / count) * hat_st, hat_st


@equation(NORMSCOPE, "docs/design/0002, position sums")
@equation(WEI2019, "Eq. (22), (25), (38), (43)")
@equation(KARAKIDA2019, "Eq. (7)")
def backward(nets: Networks, forward: Forward) -> OrderParameters:
    r"""Backward order parameters from the read-out down.

    .. math:: \tilde q^l = \sigma_w^2\, g^l\, I_{\phi'}^l\, \tilde q^{l+1}, \quad \tilde q^L = 1

    Symbols: g ``scale2`` of the norm; I_phi' ``slope_t`` or ``slope_st``; sigma_w^2 of layer l+1.
    Holds for: width to infinity, statistics of norms held constant.
    Differs from the paper: q-tilde is summed over positions, so that the dense recursion holds
    verbatim for convolutions; Karakida's index range is l = L-1..1; Wei's position average
    (124) is dropped.
    """
    one = np.ones(nets.count)
    same_t, same_st, cross_t, cross_st = [one], [one], [0 * one], [0 * one]
    for layer in range(nets.depth - 1, 0, -1):
        gain = nets.weight_variance[layer] * forward.scale2[layer - 1]
        gain_t, gain_st = gain * forward.slope_t[layer - 1], gain * forward.slope_st[layer - 1]
        count = nets.pool_count(layer)
        above_t, above_st = same_t[0], same_st[0]
        same_t.insert(0, gain_t * above_t / count)
        same_st.insert(0, gain_st * above_st / count)
        cross_t.insert(0, gain_st * (cross_t[0] + above_t * (1 - 1 / count)))
        cross_st.insert(0, gain_st * (cross_st[0] + above_st * (1 - 1 / count)))
    return OrderParameters(forward, *map(np.array, (same_t, same_st, cross_t, cross_st)))


@equation(WEI2019, "Eq. (44)-(45)")
@equation(KARAKIDA2019, "Eq. (11), (S.10)")
def weight_terms(nets: Networks, order: OrderParameters) -> GramTerms:
    r"""Entries of T F* from the weights of each layer.

    .. math:: M_{l-1}\, \tilde q^l_t\, \hat q^{l-1}_t,\quad
              M_{l-1}\,\tilde q^l_{st}\,\hat q^{l-1}_{st}

    Symbols: M_(l-1) ``fan_in``; q-tilde the backward, q-hat the forward order parameters.
    Holds for: width to infinity.
    Differs from the paper: Karakida (11) is printed with two tildes; Wei (45) multiplies position
    averages and overcounts by orders of magnitude for strided convolutions.
    """
    f = order.forward
    return GramTerms(
        nets.fan_in * (order.same_t * f.in_t + order.cross_t * f.in_st),
        nets.fan_in * (order.same_st + order.cross_st) * f.in_st,
    )


@equation(KARAKIDA2019, "Sec. 3.1, biases")
def bias_terms(order: OrderParameters) -> GramTerms:
    r"""Entries of T F* from the biases of each layer.

    .. math:: \tilde q^l_t \text{ and } \tilde q^l_{st}

    Symbols: q-tilde the backward order parameters, summed over all pairs of positions.
    Holds for: width to infinity; relative to the weights they are O(1/width).
    """
    return GramTerms(order.same_t + order.cross_t, order.same_st + order.cross_st)


@equation(NORMSCOPE, "docs/design/0002, linearised kernel")
def overlap_slope(nets: Networks, order: OrderParameters) -> Array:
    r"""A2': how fast the off-diagonal A2 grows with the overlap of two inputs.

    .. math:: A_2' = \partial_{\hat q^0_{st}} \sum_l M_{l-1}\,\tilde q^l_{st}\,\hat q^{l-1}_{st}

    Symbols: A2 the off-diagonal entry of T F* (weights); q-hat^0_st the input overlap.
    Holds for: dense networks without batch statistics; analytic derivative of the recursion.
    """
    f = order.forward
    rise = [np.ones(nets.count)]  # d in_st
    bend = []  # d slope_st
    for layer, act in enumerate(nets.activations):
        # The covariance at the activation moves with the input overlap through this factor.
        step = nets.weight_variance[layer] * f.scale2[layer] * rise[-1]
        bend.append(derivative_product_slope(act, f.arg_t[layer], f.arg_st[layer]) * step)
        rise.append(f.slope_st[layer] * step)
    tilt = [np.zeros(nets.count)]  # d q-tilde_st
    for layer in range(nets.depth - 1, 0, -1):
        gain = nets.weight_variance[layer] * f.scale2[layer - 1]
        change = tilt[0] * f.slope_st[layer - 1] + order.same_st[layer] * bend[layer - 1]
        tilt.insert(0, gain * change)
    slope = nets.fan_in * (np.array(tilt) * f.in_st + order.same_st * np.array(rise))
    return np.asarray(slope.sum(axis=0))
