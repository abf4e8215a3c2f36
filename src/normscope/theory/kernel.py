"""Real data: the Gram matrix of the inputs through the recursions, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError, TheoryError
from normscope.refs import KARAKIDA2019, NORMSCOPE, equation
from normscope.spec import Activation, NetworkSpec, activation
from normscope.theory.integrals import derivative_product_mean, product_mean
from normscope.theory.quadrature import gaussian_pair_mean

__all__ = ["PairwiseGram", "input_gram", "mean_inverse_variance", "pairwise_gram"]

Array = NDArray[np.float64]
LARGEST = 1e100  # of an input


@dataclass(frozen=True)
class PairwiseGram:
    """T F* of one output on real data, by kind of parameter, and the kernels behind it."""

    weight: Array  # (L, T, T)
    bias: Array  # (L, T, T)
    shift: Array  # (L, T, T), zero where the norm has no beta
    scale: Array  # (L, T, T), zero where the norm has no gamma
    hats: Array  # (L, T, T), input kernel of each layer
    tildes: Array  # (L, T, T), backward kernel of each layer


def input_gram(inputs: object) -> Array:
    """X X^T / N_0 of real inputs (T, ...), checked for NaN and for too few samples."""
    try:
        data = np.asarray(inputs)
        data = data if np.iscomplexobj(data) else np.asarray(data, dtype=float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"inputs must be an array of real numbers, one sample per row. Got {type(inputs)!r}, "
            f"which is not: {error}"
        ) from None
    if np.iscomplexobj(data):
        raise InputError("inputs must be real numbers. Got complex ones; take real or imag.")
    if data.ndim < 2 or data.shape[0] < 2:
        raise InputError(
            "inputs must hold at least two samples, one per row: (samples, features). "
            f"Got shape {data.shape}."
        )
    if not np.isfinite(data).all():
        row = int(np.flatnonzero(~np.isfinite(data.reshape(len(data), -1)).all(axis=1))[0])
        raise InputError(f"inputs contain NaN or infinity, first in sample {row}. Clean the data.")
    flat = data.reshape(len(data), -1)
    largest = float(np.abs(flat).max(initial=0.0))
    if largest > LARGEST:
        raise InputError(
            f"inputs are as large as {largest:.3g}: their products leave the range of float64. "
            "Standardize the data."
        )
    return np.asarray(flat @ flat.T / flat.shape[1])


@equation(NORMSCOPE, "docs/design/0002, pairwise kernel")
def mean_inverse_variance(covariance: Array) -> float:
    r"""E[1/s^2] for the batch variance s^2 of a Gaussian unit.

    .. math:: E[1/s^2] = \int_0^\infty \prod_j (1 + 2\lambda_j u/T)^{-1/2}\, du

    Symbols: lambda_j the eigenvalues of the ``covariance`` (T, T) of the unit's values over the
    batch, centred over both indices.
    Holds for: rank 3 at least; exact. Independent samples give T / ((T-3) s^2).
    """
    values = np.clip(np.linalg.eigvalsh(covariance), 0.0, None) / len(covariance)
    values = values[values > 1e-12 * values[-1]]
    if len(values) < 3:
        raise InputError(
            f"Batch norm with statistics held constant needs inputs that span at least 3 "
            f"directions after centring. Found {len(values)}: the mean of 1/variance over random "
            "weights is infinite. Use more samples, or inputs that are not copies."
        )
    # u = exp(x) / sum(lambda): smooth in x, so the trapezoid rule converges geometrically
    x = np.linspace(-40.0, 160.0, 4001)
    log_product = np.log1p(2 * values / values.sum() * np.exp(x)[:, None]).sum(axis=1)
    return float(np.exp(x - log_product / 2).sum() * (x[1] - x[0]) / values.sum())


@equation(NORMSCOPE, "docs/design/0002, pairwise kernel")
@equation(KARAKIDA2019, "Eq. (5)-(7), (S.3)")
def pairwise_gram(spec: NetworkSpec, gram: Array) -> PairwiseGram:
    r"""T F* of one output for a given input Gram matrix.

    .. math:: T F^*_{st} = \sum_l M_{l-1}\,\tilde q^l_{st}\,\hat q^{l-1}_{st}

    with every order parameter a T x T matrix and I_phi of unequal variances. Batch norm with
    statistics held constant centres the kernel and divides by its mean variance (backward by the
    mean of 1/variance); layer norm divides by each sample's own.

    Symbols: q-hat^0 ``gram`` = X X^T / N_0.
    Holds for: dense networks without residual branches, width to infinity at fixed data.
    """
    if any(layer.is_conv for layer in spec.layers) or spec.branch_scale is not None:
        raise TheoryError(
            "Real inputs are covered for dense networks without residual branches: pixels of real "
            "images are correlated, and the convolutional theory needs homogeneous positions. "
            "Leave inputs out, or measure the network on the data (fisher, top_eigenvalues)."
        )
    hats, kernels, scales = [gram], [], []
    for layer in spec.layers[:-1]:
        kernel, scale = _normalised(
            layer.weight_variance * hats[-1] + layer.bias_variance,
            None if layer.norm is None else layer.norm.kind,
            1.0 if layer.norm is None else layer.norm.gamma,
        )
        variance = np.diag(kernel)
        act = activation(layer.activation or "linear")
        kernels.append((act, kernel))
        scales.append(scale)
        hats.append(product_mean(act, variance[:, None], kernel, variance2=variance[None, :]))
    size = len(gram)
    zero = np.zeros((size, size))
    tildes = [np.ones((size, size))]
    shifts, gains = [zero], [zero]
    for number in range(spec.depth - 1, 0, -1):
        act, kernel = kernels[number - 1]
        layer, above = spec.layers[number - 1], spec.layers[number].weight_variance * tildes[0]
        variance = np.diag(kernel)
        slope = derivative_product_mean(act, variance[:, None], kernel, variance2=variance[None, :])
        tildes.insert(0, above * slope * scales[number - 1])
        parts = () if layer.norm is None else layer.norm.parts
        gain = 1.0 if layer.norm is None else layer.norm.gamma
        shifts.insert(0, above * slope if "shift" in parts else zero)
        gains.insert(0, above * _scaled_slope(act, kernel, gain) if "scale" in parts else zero)
    fan_in = np.array(spec.fan_ins, dtype=float)[:, None, None]
    stacked, back = np.array(hats), np.array(tildes)
    return PairwiseGram(
        fan_in * back * stacked, back, np.array(shifts), np.array(gains), stacked, back
    )


def _normalised(kernel: Array, kind: str | None, gamma: float) -> tuple[Array, Array]:
    """The kernel behind the norm, and the squared gain of the norm for each pair."""
    if kind is None:
        return kernel, np.ones_like(kernel)
    if kind == "layer":
        silent = np.flatnonzero(np.diag(kernel) == 0)
        if silent.size:
            raise InputError(
                f"Sample {silent[0]} of inputs is zero, and there are no biases: layer norm would "
                "divide by its spread, which is zero. Leave it out, or use bias_variance > 0."
            )
        scale = gamma**2 / np.sqrt(np.outer(np.diag(kernel), np.diag(kernel)))
        return kernel * scale, scale
    centred = kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()
    scale = np.full_like(kernel, gamma**2 * mean_inverse_variance(centred))
    return centred * gamma**2 / np.mean(np.diag(centred)), scale


def _scaled_slope(act: Activation, kernel: Array, gamma: float) -> Array:
    """E z phi'(u) z' phi'(v): what the gain of a norm sees; u = gamma z."""
    variance = np.diag(kernel)
    if act.homogeneous:  # Euler: u phi'(u) = phi(u)
        mean = product_mean(act, variance[:, None], kernel, variance2=variance[None, :])
    else:
        mean = gaussian_pair_mean(
            lambda u: u * np.asarray(act.derivative(u)),
            variance[:, None],
            kernel,
            variance2=variance[None, :],
            kinks=act.kinks,
        )
    return mean / gamma**2
