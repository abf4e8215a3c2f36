"""Several networks of one shape as arrays, so that one recursion serves them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.spec import Activation, LayerSpec, NetworkSpec, activation


@dataclass(frozen=True)
class Networks:
    """n networks with the same depth, activations, norm kind and head.

    Layers are counted from 1; row l-1 of a ``(layers, n)`` array belongs to layer l.
    """

    activations: tuple[Activation, ...]  # of the L-1 hidden layers
    norm: str | None  # "batch", "layer" or None, the same in every hidden layer
    weight_variance: Array  # (L, n)
    bias_variance: Array  # (L, n)
    fan_in: Array  # (L, n)
    gamma: Array  # (L-1, n), ones without a norm
    has_scale: Array  # (L-1, n), 1 where gamma is a parameter, else 0
    has_shift: Array  # (L-1, n), 1 where beta is a parameter, else 0
    positions: Array  # (L, n), of the output of each layer
    dense: bool  # no convolutions
    outputs: Array  # (n,)
    pooled_layer: int  # the hidden layer whose positions are averaged, 0 for none
    branch_scale: Array | None  # (n,) for residual networks
    samples: Array  # (n,), number of samples T, inf for the limit

    @property
    def depth(self) -> int:
        """Number of layers with weights, L."""
        return int(self.weight_variance.shape[0])

    @property
    def count(self) -> int:
        """Number of networks solved together, N."""
        return int(self.weight_variance.shape[1])

    def pool_count(self, layer: int) -> Array:
        """Positions averaged after hidden ``layer``: its positions under a pooling head, else 1."""
        if layer == self.pooled_layer:
            return self.positions[layer - 1]
        return np.ones(self.count)

    def statistics_count(self, layer: int) -> Array:
        """Values that the batch statistics of hidden ``layer`` are taken over: T x positions."""
        return self.samples * self.positions[layer - 1]


def shape_of(spec: NetworkSpec) -> tuple[object, ...]:
    """What two specs must share to be computed in one recursion."""
    return (
        spec.depth,
        tuple(layer.activation for layer in spec.layers),
        _norm_kind(spec),
        _pooled_layer(spec),
        _dense(spec),
        spec.branch_scale is not None,
    )


def stack(specs: Sequence[NetworkSpec], samples: float) -> Networks:
    """The arrays of specs with one ``shape_of``; ``samples`` is T, infinity for the limit."""
    first = specs[0]
    layers = list(zip(*(spec.layers for spec in specs), strict=True))
    gammas = [[1.0 if x.norm is None else x.norm.gamma for x in row] for row in layers[:-1]]
    scales = [spec.branch_scale for spec in specs]
    shape = (first.depth - 1, len(specs))
    return Networks(
        activations=tuple(activation(x.activation or "linear") for x in first.layers[:-1]),
        norm=_norm_kind(first),
        weight_variance=np.array([[x.weight_variance for x in row] for row in layers]),
        bias_variance=np.array([[x.bias_variance for x in row] for row in layers]),
        fan_in=np.array([spec.fan_ins for spec in specs], dtype=float).T,
        gamma=np.array(gammas, dtype=float).reshape(shape),
        has_scale=_has(layers[:-1], "scale").reshape(shape),
        has_shift=_has(layers[:-1], "shift").reshape(shape),
        positions=np.array([spec.positions[1:] for spec in specs], dtype=float).T,
        dense=_dense(first),
        outputs=np.array([spec.outputs for spec in specs], dtype=float),
        pooled_layer=_pooled_layer(first),
        branch_scale=None if scales[0] is None else np.array(scales, dtype=float),
        samples=np.full(len(specs), float(samples)),
    )


def _has(layers: list[tuple[LayerSpec, ...]], part: str) -> Array:
    return np.array(
        [[x.norm is not None and part in x.norm.parts for x in r] for r in layers], float
    )


def _dense(spec: NetworkSpec) -> bool:
    return not any(layer.is_conv for layer in spec.layers)


def _pooled_layer(spec: NetworkSpec) -> int:
    convs = sum(layer.is_conv for layer in spec.layers)
    return convs if spec.head == "pool" else 0


def _norm_kind(spec: NetworkSpec) -> str | None:
    norms = [layer.norm for layer in spec.layers[:-1]]
    kinds = {None if norm is None else norm.kind for norm in norms}
    if len(kinds) > 1:
        names = ", ".join(
            f"{number}: {'none' if norm is None else norm.kind}"
            for number, norm in enumerate(norms, start=1)
        )
        raise TheoryError(
            f"The theory covers networks whose hidden layers share one norm. Found {names}. "
            "Measure this network instead (fisher, top_eigenvalues), or predict it with the norm "
            "on every hidden layer or on none."
        )
    for norm in norms:
        if norm is not None and not {"mean", "variance"} <= set(norm.parts):
            raise TheoryError(
                f"The theory covers norms with mean and variance. Found parts {norm.parts}. "
                "Measure this network instead (fisher, top_eigenvalues)."
            )
    if spec.branch_scale is not None and kinds not in (set(), {None}):
        raise TheoryError(
            f"The theory of residual networks covers no norm inside the branches. Found "
            f"{kinds.pop()!r}. Use norm=None, or measure this network instead."
        )
    return kinds.pop() if kinds else None
