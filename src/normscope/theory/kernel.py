"""Real data: the Gram matrix of the inputs through the recursions, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.refs import KARAKIDA2019, NORMSCOPE, equation
from normscope.spec import Activation, LayerSpec, NetworkSpec, activation
from normscope.theory.integrals import derivative_product_mean, product_mean
from normscope.theory.quadrature import gaussian_pair_mean

LARGEST = 1e100  # of an input
TILT_STEP = 0.75  # trapezoid rule in log x: relative error 1e-7
NO_TILT = 1e-10  # relative weight of a node that can be left out


@dataclass(frozen=True)
class PairwiseGram:
    """T F* of one output on real data, by kind of parameter, and the kernels behind it."""

    weight: Array  # (L, T, T)
    bias: Array  # (L, T, T)
    shift: Array  # (L, T, T), zero where the norm has no beta
    scale: Array  # (L, T, T), zero where the norm has no gamma
    hats: Array  # (L, T, T), input kernel of each layer
    tildes: Array  # (L, T, T), backward kernel of each layer


def checked_inputs(inputs: object) -> Array:
    """Real inputs (T, ...), checked for NaN and for too few samples."""
    try:
        data = np.asarray(inputs)
        data = data if np.iscomplexobj(data) else np.asarray(data, dtype=float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"data must be an array of real numbers, one sample per row, or a DataSet. Got "
            f"{type(inputs)!r}, which is not: {error}"
        ) from None
    if np.iscomplexobj(data):
        raise InputError("data must be real numbers. Got complex ones; take real or imag.")
    if data.ndim < 2 or data.shape[0] < 2:
        raise InputError(
            "data must hold at least two samples, one per row: (samples, features). "
            f"Got shape {data.shape}."
        )
    if not np.isfinite(data).all():
        row = int(np.flatnonzero(~np.isfinite(data.reshape(len(data), -1)).all(axis=1))[0])
        raise InputError(f"data contain NaN or infinity, first in sample {row}. Clean the data.")
    largest = float(np.abs(data).max(initial=0.0))
    if largest > LARGEST:
        raise InputError(
            f"data are as large as {largest:.3g}: their products leave the range of float64. "
            "Standardize the data."
        )
    return np.asarray(data)


def input_gram(inputs: object) -> Array:
    """X X^T / N_0 of real inputs (T, ...)."""
    data = checked_inputs(inputs)
    flat = data.reshape(len(data), -1)
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

    with every order parameter a T x T matrix and I_phi of unequal variances. Layer norm divides
    by each sample's own variance. Batch norm with statistics held constant centres the kernel; for
    homogeneous phi the means over its random variance are exact integrals,

    .. math:: E\left[\phi(u_s)\phi(u_t)/s^2\right] = \int_0^\infty
              \prod_j (1 + 2\lambda_j x/T)^{-1/2}\, I_\phi[K_x]_{st}\, dx,\quad
              K_x = K (1 + 2xK/T)^{-1}

    Symbols: q-hat^0 ``gram`` = X X^T / N_0; K the centred kernel, lambda_j its eigenvalues.
    Holds for: dense networks without residual branches, width to infinity at fixed data. Behind
    batch norm other phi are divided by the mean variance (backward: times the mean of 1/variance),
    which leaves out O(1/directions of the data).
    """
    if any(layer.is_conv for layer in spec.layers) or spec.branch_scale is not None:
        raise TheoryError(
            "Real inputs are covered for dense networks without residual branches: pixels of real "
            "images are correlated, and the convolutional theory needs homogeneous positions. "
            "Leave data out, or measure the network on the data (fisher, top_eigenvalues)."
        )
    hats, passed = [gram], []
    for layer in spec.layers[:-1]:
        kernel = layer.weight_variance * hats[-1] + layer.bias_variance
        passed.append(_passed(layer, kernel))
        hats.append(passed[-1].hat)
    size = len(gram)
    zero = np.zeros((size, size))
    tildes = [np.ones((size, size))]
    shifts, gains = [zero], [zero]
    for number in range(spec.depth - 1, 0, -1):
        layer, means = spec.layers[number - 1], passed[number - 1]
        above = spec.layers[number].weight_variance * tildes[0]
        tildes.insert(0, above * means.back)
        parts = () if layer.norm is None else layer.norm.parts
        shifts.insert(0, above * means.shift if "shift" in parts else zero)
        gains.insert(0, above * means.gain if "scale" in parts else zero)
    fan_in = np.array(spec.fan_ins, dtype=float)[:, None, None]
    stacked, back = np.array(hats), np.array(tildes)
    return PairwiseGram(
        fan_in * back * stacked, back, np.array(shifts), np.array(gains), stacked, back
    )


class _Means(NamedTuple):
    """Means over one unit u with v = phi(gamma z), z the normalized u, for each pair of samples."""

    hat: Array  # v v'
    back: Array  # (dv/du) (dv/du)', statistics held constant
    shift: Array  # (dv/dbeta) (dv/dbeta)'
    gain: Array  # (dv/dgamma) (dv/dgamma)'


def _passed(layer: LayerSpec, kernel: Array) -> _Means:
    act = activation(layer.activation or "linear")
    kind = None if layer.norm is None else layer.norm.kind
    gamma = 1.0 if layer.norm is None else layer.norm.gamma
    if kind == "batch" and act.homogeneous:
        return _batch_normed(act, _centred(kernel), gamma)
    behind, scale = _normalised(kernel, kind, gamma)
    slope = _pairs(derivative_product_mean, act, behind)
    hat = _pairs(product_mean, act, behind)
    return _Means(hat, slope * scale, slope, _scaled_slope(act, behind, gamma))


def _batch_normed(act: Activation, covariance: Array, gamma: float) -> _Means:
    """Homogeneous phi: phi(u/s) = phi(u)/s, and 1/s^2 = int_0^inf exp(-x s^2) dx tilts u."""
    hat, back = np.zeros_like(covariance), np.zeros_like(covariance)
    for weight, tilted in _tilted(covariance):
        hat += weight * _pairs(product_mean, act, tilted)
        back += weight * _pairs(derivative_product_mean, act, tilted)
    # phi' does not see the length of u, and z phi'(z) = phi(z)
    shift = _pairs(derivative_product_mean, act, covariance)
    return _Means(gamma**2 * hat, gamma**2 * back, shift, hat)


def _tilted(covariance: Array) -> Iterator[tuple[float, Array]]:
    """E[f(u)/s^2] = sum of weight times E f(u) under each covariance, s^2 = |u|^2 / T."""
    total = mean_inverse_variance(covariance)
    values, vectors = np.linalg.eigh(covariance)
    values = np.clip(values, 0.0, None)
    x = np.exp(np.arange(-40.0, 100.0, TILT_STEP)) * total
    shrunk = 1 + 2 * x[:, None] * values / len(values)
    weights = x * TILT_STEP * np.exp(-np.log(shrunk).sum(axis=1) / 2)
    for weight, factor in zip(weights, shrunk, strict=True):
        if weight > NO_TILT * total:
            yield float(weight), (vectors * (values / factor)) @ vectors.T


def _pairs(mean: Callable[..., Array], act: Activation, kernel: Array) -> Array:
    variance = np.diag(kernel)
    return mean(act, variance[:, None], kernel, variance2=variance[None, :])


def _centred(kernel: Array) -> Array:
    return kernel - kernel.mean(axis=0) - kernel.mean(axis=1)[:, None] + kernel.mean()


def _normalised(kernel: Array, kind: str | None, gamma: float) -> tuple[Array, Array]:
    """The kernel behind the norm, and the squared gain of the norm for each pair."""
    if kind is None:
        return kernel, np.ones_like(kernel)
    if kind == "layer":
        silent = np.flatnonzero(np.diag(kernel) == 0)
        if silent.size:
            raise InputError(
                f"Sample {silent[0]} of data is zero, and there are no biases: layer norm would "
                "divide by its spread, which is zero. Leave it out, or use bias_variance > 0."
            )
        scale = gamma**2 / np.sqrt(np.outer(np.diag(kernel), np.diag(kernel)))
        return kernel * scale, scale
    centred = _centred(kernel)
    scale = np.full_like(kernel, gamma**2 * mean_inverse_variance(centred))
    return centred * gamma**2 / np.mean(np.diag(centred)), scale


def _scaled_slope(act: Activation, kernel: Array, gamma: float) -> Array:
    """E z phi'(u) z' phi'(v): what the gain of a norm sees; u = gamma z."""
    variance = np.diag(kernel)
    if act.homogeneous:  # Euler: u phi'(u) = phi(u)
        mean = _pairs(product_mean, act, kernel)
    else:
        mean = gaussian_pair_mean(
            lambda u: u * np.asarray(act.derivative(u)),
            variance[:, None],
            kernel,
            variance2=variance[None, :],
            kinks=act.kinks,
        )
    return mean / gamma**2
