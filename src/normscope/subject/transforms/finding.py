"""Which layers of a user's model a transform means."""

from __future__ import annotations

import fnmatch
import itertools

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.init import AFFINE
from normscope.nn.norm import BatchNorm, GroupNorm, LayerNorm, PopulationNorm, RMSNorm
from normscope.registry import near_match
from normscope.subject.tracing import Graph, Step, is_norm


def norms_of(model: nn.Module, glob: str | None = None) -> dict[str, nn.Module]:
    """The norm layers, or those whose name fits ``glob``; none is an error."""
    found = {name: m for name, m in model.named_modules() if is_norm(m)}
    if not found:
        raise InputError(
            f"{type(model).__name__} has no normalization layer. Add one with 'norm-before-last', "
            "'norm-on-top' or 'norm-output', or build the network with a norm."
        )
    return selected(found, glob, "norm layer")


def selected(found: dict[str, nn.Module], glob: str | None, what: str) -> dict[str, nn.Module]:
    """Those whose name, or a parent's, fits ``glob``."""
    if glob is None:
        return found
    fits = {n: m for n, m in found.items() if fnmatch.fnmatch(n, glob) or n.startswith(f"{glob}.")}
    if not fits:
        raise InputError(f"No {what} is named {glob!r}. {near_match(glob, list(found))}")
    return fits


def norm_kind(layer: nn.Module) -> str:
    """``batch``, ``layer``, ``group``, ``rms``, ``instance``, ``population`` or the type's name."""
    kinds: list[tuple[str, tuple[type, ...]]] = [
        ("batch", (nn.modules.batchnorm._BatchNorm, BatchNorm)),
        ("population", (PopulationNorm,)),
        ("layer", (nn.LayerNorm, LayerNorm)),
        ("rms", (nn.RMSNorm, RMSNorm)),
        ("instance", (nn.modules.instancenorm._InstanceNorm,)),
    ]
    for kind, types in kinds:
        if isinstance(layer, types):
            return kind
    if isinstance(layer, nn.GroupNorm | GroupNorm):
        return "layer" if layer.num_groups == 1 else "group"
    return type(layer).__name__


def num_channels(layer: nn.Module) -> int:
    """Channels of a norm, or the size of the axis that it normalizes."""
    for name in ("num_features", "num_channels"):
        if isinstance(getattr(layer, name, None), int):
            return int(getattr(layer, name))
    shape: tuple[int, ...] = tuple(getattr(layer, "normalized_shape", ()))
    if len(shape) == 1:
        return int(shape[0])
    raise InputError(
        f"{layer} normalizes the axes {shape} together, so that there is no channel to "
        "keep. Exchange it by hand."
    )


def like_of(layer: nn.Module, model: nn.Module) -> dict[str, object]:
    """Device and dtype for a new layer in the place of ``layer``."""
    tensors = [*layer.parameters(), *layer.buffers(), *model.parameters()]
    floating = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    return {"device": floating.device, "dtype": floating.dtype}


def stored_statistics(norm: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Mean and variance that a norm keeps for evaluation, or None."""
    if isinstance(norm, PopulationNorm):
        return (norm.population_mean, norm.population_var) if norm.ready else None
    mean, variance = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    if isinstance(mean, Tensor) and isinstance(variance, Tensor):
        return mean, variance
    return None


def affine_before(graph: Graph, model: nn.Module, norm: nn.Module) -> nn.Module:
    """The linear or convolutional layer whose result, and nothing else, ``norm`` normalizes."""
    name = next(n for n, m in model.named_modules() if m is norm)
    places = [step for step in graph.steps if step.module is norm]
    if graph.failure is not None:
        return _before_in_container(model, norm, name, graph.failure)
    if len(places) != 1:
        raise InputError(
            f"Norm {name!r} is used {len(places)} times in the forward pass, so that it belongs to "
            "no single layer. Leave it out with a glob, as in 'fold:stage1.*'."
        )
    before = _behind(places[0])
    if before is None or before.kind != "affine" or before.module is None:
        what = "the input" if before is None else f"{before.kind} {before.name!r}"
        raise InputError(
            f"Norm {name!r} follows {what}, not a linear or convolutional layer, so that there are "
            "no weights it could be joined with. Leave it out with a glob, as in 'fold:stage1.*'."
        )
    uses = [step for step in graph.steps if step.module is before.module]
    if len(before.users) != 1 or len(uses) != 1:
        raise InputError(
            f"Layer {before.name!r} before norm {name!r} is also used elsewhere, where its weights "
            "must not change. Leave the norm out with a glob."
        )
    return before.module


def last_linear(graph: Graph, model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer: in the forward pass, or of the definition if that is not known."""
    steps = [s for s in graph.of_kind("affine") if isinstance(s.module, nn.Linear)]
    if steps:
        found = steps[-1].module
        assert isinstance(found, nn.Linear)
        _check_used_once(graph, steps[-1])
        return steps[-1].name, found
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linears:
        raise InputError(f"{type(model).__name__} has no linear layer, and so no last one.")
    return linears[-1]


def last_pool(graph: Graph, model: nn.Module) -> Step:
    """The last pooling layer, which has to be a module."""
    if graph.failure is not None:
        raise InputError(
            f"The place before pooling is not known: {graph.failure}. Insert the norm by hand."
        )
    pools = graph.of_kind("pool", "other pool")
    if not pools:
        raise InputError(
            f"{type(model).__name__} has no pooling, and so no feature map at its top. Use "
            "'norm-before-last'."
        )
    if pools[-1].module is None:
        raise InputError(
            f"The pooling of {type(model).__name__} is a function ({pools[-1].name}), not a layer "
            "that could be exchanged. Make it nn.AdaptiveAvgPool2d(1), or use 'norm-before-last'."
        )
    _check_used_once(graph, pools[-1])
    return pools[-1]


def _check_used_once(graph: Graph, step: Step) -> None:
    uses = sum(other.module is step.module for other in graph.steps)
    if uses > 1:
        raise InputError(
            f"Layer {step.name!r} is used {uses} times in the forward pass, and a norm beside it "
            "would be too. Give each use a layer of its own."
        )


def channels_before(step: Step) -> int:
    """Channels of what enters ``step``, from the layers before it."""
    before: Step | None = _behind(step)
    while before is not None:
        if before.kind == "affine" and before.module is not None:
            weight = before.module.weight
            assert isinstance(weight, Tensor)
            return int(weight.shape[0])
        if before.kind == "norm" and before.module is not None:
            return num_channels(before.module)
        if before.kind not in ("activation", "drop", "add", "scale", "pool", "other pool"):
            break
        before = _behind(before)
    raise InputError(
        f"The number of channels before {step.name!r} is not known. Insert the norm by hand."
    )


def _behind(step: Step) -> Step | None:
    """The step before, past layers that change nothing."""
    before = step.sources[0] if step.sources else None
    while before is not None and before.kind == "identity":
        before = before.sources[0] if before.sources else None
    return before


def _before_in_container(model: nn.Module, norm: nn.Module, name: str, failure: str) -> nn.Module:
    for parent in model.modules():
        layers = list(parent.children()) if isinstance(parent, nn.Sequential) else []
        for before, after in itertools.pairwise(layers):
            if after is norm and isinstance(before, AFFINE):
                return before
    raise InputError(
        f"The layer before norm {name!r} is not known: {failure}, and the two are not neighbours "
        "in an nn.Sequential."
    )
