"""Networks without norms, and with layer norm: a covariance map per layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from normscope.refs import KARAKIDA2019, WEI2019, equation
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import Forward, pooled

__all__ = ["layer_norm_forward", "plain_forward"]

Array = NDArray[np.float64]


@equation(WEI2019, "Eq. (20)-(21), (34)-(36)")
@equation(KARAKIDA2019, "Eq. (5)-(6)")
def plain_forward(nets: Networks, *, norm2: float = 1.0, overlap: float = 0.0) -> Forward:
    r"""Forward order parameters of a network without norms.

    .. math:: q^l = \sigma_w^2 \hat q^{l-1} + \sigma_b^2, \quad
              \hat q^l_t = I_\phi[q^l_t, q^l_t],\ \hat q^l_{st} = I_\phi[q^l_t, q^l_{st}]

    Symbols: q-hat^0_t ``norm2`` and q-hat^0_st ``overlap`` of the inputs.
    Holds for: width to infinity, relative error O(1/sqrt(width)).
    Differs from the paper: Wei's base case is printed with 0 and 1 swapped; Karakida's (5) must
    stop at the linear read-out. For convolutions with centred inputs, different positions of two
    samples overlap like equal ones, so one recursion serves both.
    """
    return _recursion(nets, norm2, overlap, layer_norm=False)


@equation(KARAKIDA2019, "Eq. (S.74), (S.82)-(S.87)")
def layer_norm_forward(nets: Networks, *, norm2: float = 1.0, overlap: float = 0.0) -> Forward:
    r"""Forward order parameters with layer norm before every activation.

    .. math:: v^l = \sigma_w^2 \hat q^{l-1}_t + \sigma_b^2,\quad c^l = q^l_{st}/v^l,\quad
              \hat q^l_t = I_\phi[\gamma^2,\gamma^2],\ \hat q^l_{st} = I_\phi[\gamma^2,\gamma^2 c^l]

    Symbols: v ``q_t`` the variance over the units of one sample; gamma the norm's gain.
    Holds for: width to infinity; statistics of one sample over many units do not fluctuate.
    Differs from the paper: (S.82)-(S.87) print tildes for hats; gamma is 1 there.
    """
    return _recursion(nets, norm2, overlap, layer_norm=True)


def _recursion(nets: Networks, norm2: float, overlap: float, *, layer_norm: bool) -> Forward:
    in_t, in_st = [np.full(nets.count, norm2)], [np.full(nets.count, overlap)]
    q_t, q_st = [], []
    arg_t, arg_st, scale2, slope_t, slope_st = [], [], [], [], []
    for layer in range(nets.depth):
        weight, bias = nets.weight_variance[layer], nets.bias_variance[layer]
        q_t.append(weight * in_t[-1] + bias)
        q_st.append(weight * in_st[-1] + bias)
        if layer == nets.depth - 1:
            break
        act = nets.activations[layer]
        gain = nets.gamma[layer] ** 2 / q_t[-1] if layer_norm else np.ones(nets.count)
        a, b = gain * q_t[-1], gain * q_st[-1]
        arg_t.append(a)
        arg_st.append(b)
        scale2.append(gain)
        slope_t.append(second_moment_of_derivative(act, a))
        slope_st.append(derivative_product_mean(act, a, b))
        hats = pooled(nets, layer + 1, second_moment(act, a), product_mean(act, a, b))
        in_t.append(hats[0])
        in_st.append(hats[1])
    inner = [_rows(x, nets) for x in (arg_t, arg_st, scale2, slope_t, slope_st)]
    return Forward(*map(np.array, (q_t, q_st, in_t, in_st)), *inner)


def _rows(rows: list[Array], nets: Networks) -> Array:
    return np.array(rows, dtype=float).reshape(len(rows), nets.count)
