"""The order of a module's layers, read by symbolic tracing: nothing is computed.

A model that cannot be traced (its forward pass branches on values) has no graph here; callers
then fall back to what the containers say, or refuse with the reason.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from normscope.nn.activations import activation_name
from normscope.nn.init import AFFINE
from normscope.nn.norm import ChannelNorm, GroupNorm, LayerNorm, RMSNorm

NORM_TYPES = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    ChannelNorm,
    LayerNorm,
    GroupNorm,
    RMSNorm,
)
POOLS = (nn.AdaptiveAvgPool2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveMaxPool2d)
PASSED = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
_KINDS: dict[str, Any] = {
    "affine": AFFINE,
    "norm": NORM_TYPES,
    "identity": nn.Identity,
    "drop": PASSED,
    "flatten": nn.Flatten,
}

_ACTIVATIONS: dict[Any, str] = {
    torch.relu: "relu",
    functional.relu: "relu",
    torch.relu_: "relu",
    torch.tanh: "tanh",
    functional.tanh: "tanh",
    torch.sigmoid: "sigmoid",
    functional.sigmoid: "sigmoid",
    torch.erf: "erf(1.0)",
    functional.silu: "silu",
    functional.softplus: "softplus",
    functional.gelu: "gelu",
    functional.leaky_relu: "leaky_relu",
    "relu": "relu",
    "relu_": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf(1.0)",
}
_ADDS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_MULTIPLIES = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_RESHAPES = {torch.flatten, torch.reshape, torch.squeeze, "flatten", "view", "reshape", "squeeze"}
_AVERAGES = {functional.adaptive_avg_pool2d}
_DROPS = {functional.dropout, functional.dropout2d, functional.alpha_dropout}


@dataclass
class Step:
    """One operation of a forward pass.

    Attributes:
        kind: ``input``, ``affine``, ``norm``, ``activation``, ``flatten``, ``pool`` (average over
            all positions), ``max_pool`` and other poolings, ``drop``, ``identity``, ``add``,
            ``scale`` (times a number), ``output`` or ``other``.
        name: the module's name, or what the operation is called.
        sources: the steps whose results it takes.
        users: the steps that take its result.
        module: the layer behind it, if any.
        detail: the activation's name, or the number of a ``scale``.
    """

    kind: str
    name: str
    sources: list[Step] = field(default_factory=list)
    users: list[Step] = field(default_factory=list)
    module: nn.Module | None = None
    detail: Any = None


@dataclass
class Graph:
    """The steps of a forward pass in order; empty with a ``failure`` if it cannot be traced."""

    steps: list[Step]
    failure: str | None = None

    def of_kind(self, *kinds: str) -> list[Step]:
        """The steps of these kinds, in forward order."""
        return [step for step in self.steps if step.kind in kinds]


def is_norm(module: nn.Module) -> bool:
    """True for torch's normalization layers and normscope's."""
    return isinstance(module, NORM_TYPES)


def traced(model: nn.Module) -> Graph:
    """The graph of ``model``, whose layers are named as in ``named_modules()``."""
    compiled = getattr(model, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        graph = traced(compiled)
        for step in graph.steps:
            step.name = step.name if step.module is None else f"_orig_mod.{step.name}"
        return graph
    shared = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    try:
        # a copy, tensors shared: a forward pass may change attributes of its module
        twin = copy.deepcopy(model, shared)
        if _is_leaf(twin):
            twin = _Wrapped(twin)
        nodes = _Tracer().trace(twin)
    except Exception as error:  # any forward pass may fail on symbols, in its own way
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        return Graph([], f"its forward pass cannot be traced ({reason})")
    return Graph(_steps(nodes, model, wrapped=isinstance(twin, _Wrapped)))


class _Wrapped(nn.Module):
    """A single layer as a model."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def _is_leaf(module: nn.Module) -> bool:
    return is_norm(module) or isinstance(module, AFFINE) or activation_name(module) is not None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_leaf(m) or super().is_leaf_module(m, module_qualified_name)


def _steps(nodes: fx.Graph, model: nn.Module, *, wrapped: bool) -> list[Step]:
    made: dict[fx.Node, Step] = {}
    for node in nodes.nodes:
        step = _step(node, model, wrapped)
        sources = [made[source] for source in node.all_input_nodes]
        if node.target is operator.getitem and any(s.kind == "shape" for s in sources):
            step.kind = "shape"
        for source in sources:
            if "shape" not in (source.kind, step.kind):  # asking for a size uses no values
                step.sources.append(source)
                source.users.append(step)
        made[node] = step
    return [step for step in made.values() if step.kind != "shape"]


def _step(node: fx.Node, model: nn.Module, wrapped: bool) -> Step:
    if node.op in ("placeholder", "output"):
        return Step("input" if node.op == "placeholder" else "output", node.name)
    if node.op == "call_module":
        name = "" if wrapped else str(node.target)
        return _module_step(name, model.get_submodule(name))
    if node.op == "get_attr":
        return Step("tensor", str(node.target))
    return _function_step(node)


def _module_step(name: str, module: nn.Module) -> Step:
    for kind, types in _KINDS.items():
        if isinstance(module, types):
            return Step(kind, name, module=module)
    if isinstance(module, POOLS):
        whole = isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1))
        return Step("pool" if whole else "other pool", name, module=module)
    found = activation_name(module)
    if found is not None:
        return Step("activation", name, module=module, detail=found)
    return Step("other", name, module=module)


def _function_step(node: fx.Node) -> Step:
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    kinds: list[tuple[str, set[Any]]] = [("flatten", _RESHAPES), ("drop", _DROPS), ("add", _ADDS)]
    if target == "size" or (target is getattr and node.args[1] in ("shape", "ndim", "dtype")):
        return Step("shape", name)
    if target in _ACTIVATIONS:
        return _activation_step(node, name)
    for kind, targets in kinds:
        if target in targets and (kind != "add" or len(node.all_input_nodes) == 2):
            return Step(kind, name)
    if target in _MULTIPLIES:
        numbers = [a for a in node.args if isinstance(a, int | float)]
        if len(numbers) == 1:
            return Step("scale", name, detail=float(numbers[0]))
    if (target in _AVERAGES and node.args[1:] in [(1,), ((1, 1),)]) or _is_mean(node):
        return Step("pool", name)
    return Step("other", name)


def _activation_step(node: fx.Node, name: str) -> Step:
    target: Any = node.target
    found, extra = _ACTIVATIONS[target], [*node.args[1:], *node.kwargs.values()]
    if found == "leaky_relu":
        slope = node.kwargs.get("negative_slope", node.args[1] if len(node.args) > 1 else 0.01)
        return Step("activation", name, detail=f"leaky_relu({float(slope)!r})")  # type: ignore[arg-type]
    numbers = [a for a in extra if not isinstance(a, bool) and a != "none"]
    return Step("other", name) if numbers else Step("activation", name, detail=found)


def _is_mean(node: fx.Node) -> bool:
    mean: list[str | Callable[..., Any]] = ["mean", torch.mean]
    axes = node.args[1:2] or (node.kwargs.get("dim"),)
    listed = axes[0]
    return (
        node.target in mean
        and isinstance(listed, list | tuple)
        and sorted(a for a in listed if isinstance(a, int)) in ([2, 3], [-2, -1])
    )


def numbered_layers(model: nn.Module) -> dict[int, tuple[str, nn.Module]]:
    """Layer number -> name and layer, counted from 1 in forward order.

    Linear and convolutional layers count; projections on shortcuts (in a module named
    ``shortcut`` or ``downsample``) do not. In a CIFAR ResNet of depth 6n + 2 layer 1 is the stem,
    block t owns layers 2t and 2t + 1, the linear layer is 6n + 2.
    """
    steps = traced(model).of_kind("affine")
    named = [(step.name, step.module) for step in steps if step.module is not None]
    if not named:  # not traceable: the order of definition
        named = [(n, m) for n, m in model.named_modules() if isinstance(m, AFFINE)]
    seen: dict[str, nn.Module] = {}
    for path, layer in named:
        if not on_shortcut(path):
            seen.setdefault(path, layer)
    return dict(enumerate(seen.items(), start=1))


def on_shortcut(path: str) -> bool:
    """Whether a layer is a projection on a shortcut, which has no number of its own."""
    return bool({"shortcut", "downsample"} & set(path.split(".")))
