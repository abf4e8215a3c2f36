"""Residual networks without norms."""

from __future__ import annotations

import numpy as np

from normscope.refs import NORMSCOPE, equation
from normscope.theory.integrals import (
    derivative_product_mean,
    product_mean,
    second_moment,
    second_moment_of_derivative,
)
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import GramTerms, OrderParameters, stacked_forward


@equation(NORMSCOPE, "docs/design/0002, residual networks")
def residual_gram(nets: Networks) -> tuple[OrderParameters, GramTerms, GramTerms]:
    r"""Order parameters and Gram terms of x_l = x_(l-1) + beta (W_l phi(x_(l-1)) + b_l).

    .. math:: q^{l+1} = q^l + \beta^2(\sigma_w^2\hat q^l + \sigma_b^2),\quad
              \tilde q^l = \tilde q^{l+1}(1 + \beta^2\sigma_w^2 I_{\phi'}^l)

    and A = sum_l c_l M q-tilde^l q-hat^(l-1), c_l = beta^2 inside the residual part, else 1.

    Symbols: beta ``branch_scale``; the first layer and the read-out are plain.
    Holds for: width to infinity; measured networks run 1-2 % low at width 300.

    Returns:
        order parameters, the terms of the weights, the terms of the biases.
    """
    beta2 = np.ones(nets.count) if nets.branch_scale is None else nets.branch_scale**2
    depth = nets.depth
    branch = np.ones((depth, nets.count))  # c_l
    branch[1 : depth - 1] = beta2
    one = np.ones(nets.count)
    q_t, q_st, in_t, in_st = [0 * one], [0 * one], [one], [0 * one]
    slope_t, slope_st = [], []
    for layer in range(depth):
        weight, bias = nets.weight_variance[layer], nets.bias_variance[layer]
        keep = 1.0 if 0 < layer < depth - 1 else 0.0
        q_t.append(keep * q_t[-1] + branch[layer] * (weight * in_t[-1] + bias))
        q_st.append(keep * q_st[-1] + branch[layer] * (weight * in_st[-1] + bias))
        if layer == depth - 1:
            break
        act = nets.activations[layer]
        slope_t.append(second_moment_of_derivative(act, q_t[-1]))
        slope_st.append(derivative_product_mean(act, q_t[-1], q_st[-1]))
        in_t.append(second_moment(act, q_t[-1]))
        in_st.append(product_mean(act, q_t[-1], q_st[-1]))
    tilde_t, tilde_st = [one], [one]
    for layer in range(depth - 1, 0, -1):
        keep = 0.0 if layer == depth - 1 else 1.0
        gain = branch[layer] * nets.weight_variance[layer]
        tilde_t.insert(0, tilde_t[0] * (keep + gain * slope_t[layer - 1]))
        tilde_st.insert(0, tilde_st[0] * (keep + gain * slope_st[layer - 1]))
    hidden = (q_t[1:-1], q_st[1:-1], [one] * (depth - 1), slope_t, slope_st)
    forward = stacked_forward(nets, (q_t[1:], q_st[1:], in_t, in_st), hidden)
    same_t, same_st = np.array(tilde_t), np.array(tilde_st)
    order = OrderParameters(forward, same_t, same_st, 0 * same_t, 0 * same_st)
    weights = GramTerms(
        branch * nets.fan_in * same_t * forward.in_t, branch * nets.fan_in * same_st * forward.in_st
    )
    return order, weights, GramTerms(branch * same_t, branch * same_st)
