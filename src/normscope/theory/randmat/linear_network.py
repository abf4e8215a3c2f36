"""One layer of a linear network is a set of linear systems (Bjorck et al., Appendix C)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError
from normscope.refs import BJORCK2018, equation
from normscope.results.randmat import LinearReduction


@equation(BJORCK2018, "Eq. (6)")
def linear_loss(weights: Sequence[ArrayLike], inputs: ArrayLike, *, targets: ArrayLike) -> float:
    r"""Squared error of a linear network.

    .. math:: \|A_t \cdots A_2 A_1 x - y\|^2

    Symbols: A_1, ..., A_t ``weights`` in the order in which they act; x ``inputs`` (n, m), one
    column per sample; y ``targets`` (outputs, m).
    Holds for: any shapes that fit; the norm is Frobenius', a sum over samples.
    """
    layers, x, y = _checked(weights, inputs, targets)
    return float(np.sum((_applied(layers, x) - y) ** 2))


@equation(BJORCK2018, "Appendix C, Proposition 1")
def linear_gradient(
    weights: Sequence[ArrayLike], inputs: ArrayLike, *, targets: ArrayLike, layer: int = 1
) -> Array:
    r"""Gradient of the squared error in one weight matrix.

    .. math:: \frac{\partial}{\partial A_i}\|\bar A A_i z - y\|^2
              = 2 \bar A^T (\bar A A_i z - y) z^T

    Symbols: A_i ``weights`` number ``layer``, from 1; A-bar the product of those above it; z the
    ``inputs`` seen through those below it; y ``targets``.
    Holds for: any shapes that fit.
    """
    layers, x, y = _checked(weights, inputs, targets)
    index = _checked_layer(layer, layers)
    above, below = _above(layers, index), _applied(layers[: index - 1], x)
    return 2 * above.T @ (above @ layers[index - 1] @ below - y) @ below.T


@equation(BJORCK2018, "Eq. (8)")
def linear_reduction(
    weights: Sequence[ArrayLike], inputs: ArrayLike, *, targets: ArrayLike, layer: int = 1
) -> LinearReduction:
    r"""The independent linear systems that training one layer comes to.

    .. math:: \|\bar A A_i z - y\|^2 = \|\bar A \bar A_i - \bar y\|^2 + C,\quad
              z = U (\Sigma\ 0) V^T,\ \bar A_i = A_i U \Sigma,\ \bar y = (yV)_{1:n}

    Symbols: A_i ``weights`` number ``layer``, from 1; A-bar the product of those above it; z (n, m)
    the ``inputs`` seen through those below it; y ``targets``; C what no A_i can change. Each column
    of A-bar_i is one problem min |A-bar a - b|^2.
    Holds for: z of full row rank, m >= n.
    Differs from the paper: y V^T is printed for y V; C is |y|^2 - |y-bar|^2. Gradient descent in
    A_i is not gradient descent in A-bar_i: its condition number has the factor kappa(z)^2 as well.
    """
    layers, x, y = _checked(weights, inputs, targets)
    index = _checked_layer(layer, layers)
    below = _applied(layers[: index - 1], x)
    left, scales, right = _full_rank_svd(below, index)
    reduced = y @ right.T
    rest = y - reduced @ right  # its square is C without cancellation
    return LinearReduction(
        layer=index,
        matrix=_above(layers, index),
        targets=reduced,
        left=left,
        scales=scales,
        constant=float(np.sum(rest**2)),
    )


def _full_rank_svd(below: Array, layer: int) -> tuple[Array, Array, Array]:
    """Thin SVD of what layer ``layer`` sees; an error if a direction of it is missing."""
    n, m = below.shape
    left, scales, right = np.linalg.svd(below, full_matrices=False)
    rank = int(np.sum(scales > max(n, m) * np.finfo(float).eps * scales.max(initial=0.0)))
    if rank < n:
        raise InputError(
            f"The inputs of layer {layer} have {n} features but rank {rank} over {m} samples: "
            "directions without data leave the layer undetermined. Give more samples than features "
            "and weights of full rank below the layer, or project the inputs on their range."
        )
    return left, scales, right


def _applied(layers: list[Array], x: Array) -> Array:
    for weight in layers:
        x = weight @ x
    return x


def _above(layers: list[Array], index: int) -> Array:
    """A-bar: the product of the layers above number ``index``; the identity above the last."""
    return _applied(layers[index:], np.eye(len(layers[index - 1])))


def _checked_layer(layer: int, layers: list[Array]) -> int:
    index = checked_count(layer, "layer", why="the first weight matrix")
    if index > len(layers):
        raise InputError(f"layer counts from 1 to the {len(layers)} weight matrices. Got {layer}.")
    return index


def _checked(
    weights: Sequence[ArrayLike], inputs: ArrayLike, targets: ArrayLike
) -> tuple[list[Array], Array, Array]:
    """Finite matrices whose shapes fit into A_t ... A_1 x - y."""
    layers = [_matrix(weight, f"weight {i}") for i, weight in enumerate(weights, start=1)]
    if not layers:
        raise InputError("weights is empty. Give the matrices of at least one layer.")
    x, y = _matrix(inputs, "inputs"), _matrix(targets, "targets")
    width, name = len(x), "inputs has"
    for number, weight in enumerate(layers, start=1):
        if weight.shape[1] != width:
            raise InputError(
                f"Weight {number} has shape {weight.shape}, but {name} {width} rows: it must have "
                "as many columns. Samples are the columns of inputs and targets."
            )
        width, name = len(weight), f"weight {number} has"
    if y.shape != (width, x.shape[1]):
        raise InputError(
            f"targets must have shape ({width}, {x.shape[1]}): outputs times samples. "
            f"Got {y.shape}."
        )
    return layers, x, y


def _matrix(value: ArrayLike, name: str) -> Array:
    matrix = checked_numbers(value, name)
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"{name} must be a matrix with entries. Got shape {matrix.shape}.")
    return matrix
