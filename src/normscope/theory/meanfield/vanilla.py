"""Networks without norms, and with layer norm: a covariance map per layer."""

from __future__ import annotations

import numpy as np

from normscope.checks import Array
from normscope.refs import KARAKIDA2019, WEI2019, equation
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import Forward, Pair, forward_pass


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
    def hidden(layer: int, q: Pair, _: Pair) -> tuple[tuple[Array, ...], Pair]:
        act = nets.activations[layer]
        gain = nets.gamma[layer] ** 2 / q[0] if layer_norm else np.ones(nets.count)
        a, b = gain * q[0], gain * q[1]
        slopes = second_moment_of_derivative(act, a), derivative_product_mean(act, a, b)
        return (a, b, gain, *slopes), (second_moment(act, a), product_mean(act, a, b))

    return forward_pass(nets, (np.full(nets.count, norm2), np.full(nets.count, overlap)), hidden)
