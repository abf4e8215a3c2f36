"""Specs as lists of nodes."""

from __future__ import annotations

from typing import Any

from normscope.errors import TheoryError
from normscope.spec import LayerSpec, NetworkSpec, NormSpec
from normscope.theory.graph.nodes import (
    Activate,
    Add,
    BatchNorm,
    Conv,
    Dense,
    Flatten,
    GlobalPool,
    Graph,
    Input,
    LayerNorm,
    Node,
    Scale,
)


def graph_of(spec: NetworkSpec, *, parameters: str = "weights") -> Graph:
    """The nodes of a spec, before a norm on its outputs.

    Args:
        spec: an MLP, a CNN or a residual MLP.
        parameters: ``"weights"``, or ``"all"`` with biases, gamma and beta.

    Example:
        >>> from normscope.spec import mlp
        >>> [node.name for node in graph_of(mlp([20, 50, 3], norm="batch")).nodes]
        ['input', 'layer1', 'layer1.norm', 'layer1.relu', 'layer2']
    """
    made: list[Node] = [Input("input", size=spec.input_shape)]
    spatial = len(spec.input_shape) > 1
    stream = ""  # the node that the next residual branch is added to
    for number, layer in enumerate(spec.layers, start=1):
        name = f"layer{number}"
        if spatial and not layer.is_conv:
            spatial = False
            made.append(_flattened(spec, number, _last(made)))
        made.append(_affine(name, layer, _last(made), parameters))
        if spec.branch_scale is not None and 1 < number < spec.depth:
            made.append(Scale(f"{name}.scale", _last(made), factor=spec.branch_scale))
            made.append(Add(f"{name}.add", (stream, made[-1].name)))
        stream = made[-1].name
        if layer.norm is not None:
            made.append(_norm(f"{name}.norm", layer.norm, _last(made), parameters))
        if layer.activation is not None:
            word = layer.activation.split("(")[0]
            made.append(Activate(f"{name}.{word}", _last(made), activation=layer.activation))
    return Graph(tuple(made))


def _last(made: list[Node]) -> tuple[str, ...]:
    return (made[-1].name,)


def _flattened(spec: NetworkSpec, number: int, inputs: tuple[str, ...]) -> Node:
    if number > 1 and spec.head == "pool":
        return GlobalPool("pool", inputs)
    return Flatten("flatten", inputs)


def _affine(name: str, layer: LayerSpec, inputs: tuple[str, ...], parameters: str) -> Node:
    common: dict[str, Any] = {
        "outputs": layer.outputs,
        "weight_variance": layer.weight_variance,
        "bias_variance": layer.bias_variance,
        "parameters": ("weight",) if parameters == "weights" else ("weight", "bias"),
    }
    if layer.kernel is None:
        return Dense(name, inputs, **common)
    window: dict[str, Any] = {
        "kernel": layer.kernel,
        "stride": layer.stride,
        "padding": layer.padding,
    }
    return Conv(name, inputs, **common, **window)


def _norm(name: str, norm: NormSpec, inputs: tuple[str, ...], parameters: str) -> Node:
    if not {"mean", "variance"} <= set(norm.parts):
        raise TheoryError(
            f"The theory covers norms with mean and variance. {name!r} has parts {norm.parts}. "
            "Measure this network instead (fisher, top_eigenvalues)."
        )
    words = {"scale": "gamma", "shift": "beta"}
    counted = tuple(words[p] for p in norm.parts if p in words and parameters == "all")
    kind = BatchNorm if norm.kind == "batch" else LayerNorm
    return kind(name, inputs, gamma=norm.gamma, eps=norm.eps, parameters=counted)
