"""Transforms of the norms: remove, replace, set gamma, insert one."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.norm import (
    NORMS,
    BatchNorm,
    ChannelNorm,
    LayerNorm,
    PopulationNorm,
    RMSNorm,
    make_norm,
    named_kind,
    norm_after,
)
from normscope.spec.norms import check_choice
from normscope.subject.tracing import is_norm, traced
from normscope.subject.transforms.base import TRANSFORMS, Change, Edit, TransformKind, number_or_nan
from normscope.subject.transforms.finding import (
    affine_before,
    channels_before,
    last_linear,
    last_pool,
    like_of,
    norm_kind,
    norms_of,
    num_channels,
    stored_statistics,
)
from normscope.subject.transforms.weights import detached_copy


class NoNorm(nn.Identity):
    """Where a norm was: passes its input on.

    Keeps the attributes that containers of torch ask their norms for.
    """

    eps = 0.0
    weight = None
    bias = None


def _remove(what: str | None, value: str | None) -> Change:
    _refuse_value("remove-norms", value)

    def change(model: nn.Module, edit: Edit) -> None:
        for layer in norms_of(model, what).values():
            edit.replace(layer, NoNorm())
        _leave_fast_paths(model, edit)

    return change


def _replace(what: str | None, value: str | None) -> Change:
    _refuse_value("replace", value)
    before, arrow, after = (what or "").partition("->")
    before, after = before.strip(), after.strip()
    if not (before and arrow and after):
        raise InputError(
            f"replace names two norms, as in 'replace:batch->layer'. Got {what!r}. "
            f"Norms: {', '.join(NORMS)}."
        )
    _check_name(after)

    def change(model: nn.Module, edit: Edit) -> None:
        found = {n: m for n, m in norms_of(model).items() if before in (norm_kind(m), "any")}
        if not found:
            kinds = sorted({norm_kind(m) for m in norms_of(model).values()})
            raise InputError(
                f"{type(model).__name__} has no {before!r} norm to replace. Its norms are: "
                f"{', '.join(kinds)}; 'any' means all of them."
            )
        if after.startswith("weight"):
            _normalize_weights(model, list(found.values()), after, edit)
            return
        for layer in found.values():
            new = _new_norm(model, layer, after)
            _carry_over(layer, new)
            edit.replace(layer, new)
        _leave_fast_paths(model, edit)

    return change


def _normalize_weights(model: nn.Module, norms: list[nn.Module], after: str, edit: Edit) -> None:
    graph = traced(model)
    pairs = [(affine_before(graph, model, norm), norm) for norm in norms]
    for affine, norm in pairs:
        twin = detached_copy(affine)
        new = norm_after(twin, after, dtype=like_of(affine, model)["dtype"])
        edit.replace(affine, twin)
        edit.replace(norm, new)


def _new_norm(model: nn.Module, layer: nn.Module, after: str) -> nn.Module:
    """The norm ``after`` for the channels of ``layer``, wherever those are."""
    channels, options = num_channels(layer), like_of(layer, model)
    if isinstance(getattr(layer, "eps", None), float):
        options["eps"] = layer.eps
    trailing = hasattr(layer, "normalized_shape") and not getattr(layer, "channels_first", False)
    if trailing or getattr(layer, "channel_axis", 1) == -1:
        made = _feature_norm(after, channels, options)
    else:
        made = make_norm(after, channels, **options)
    if isinstance(made, BatchNorm) and hasattr(layer, "momentum"):
        made.momentum = layer.momentum  # type: ignore[assignment]
    return made


def _carry_over(layer: nn.Module, new: nn.Module) -> None:
    """Scale, shift and running statistics go on; what the old norm lacks, the new one lacks."""
    for name, part in (("weight", "scale"), ("bias", "shift")):
        old, made = getattr(layer, name, None), getattr(new, name, None)
        if isinstance(old, Tensor) and isinstance(made, Tensor):
            made.data.copy_(old.detach().reshape(made.shape))
            made.requires_grad_(old.requires_grad)
        elif isinstance(made, Tensor):
            new.register_parameter(name, None)
            new.parts = tuple(p for p in new.parts if p != part)  # type: ignore[union-attr, assignment]
    if getattr(layer, "weight", None) is None and hasattr(new, "gain"):
        gain: Any = getattr(layer, "gain", 1.0)  # a constant gamma
        new.gain = gain
    known = stored_statistics(layer)
    if isinstance(new, BatchNorm) and new.every is None and known is None:
        raise InputError(
            f"{type(layer).__name__} keeps no running statistics that could be frozen. Train with "
            "batch norm first, or replace it by 'batch'."
        )
    if known is not None and isinstance(new, ChannelNorm):
        _carry_statistics(new, *_converted(layer, new, *known))
    elif isinstance(new, BatchNorm) and getattr(layer, "track_running_stats", True) is False:
        new.forget_statistics()


def _converted(
    layer: nn.Module, new: ChannelNorm, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """The variance as ``new`` keeps it: about the mean, or about zero (rms)."""
    centred = layer.centred if isinstance(layer, ChannelNorm) else True
    if centred and not new.centred:
        return mean, variance + mean.square()
    if new.centred and not centred:
        return mean, (variance - mean.square()).clamp(min=0)
    return mean, variance


def _carry_statistics(new: ChannelNorm, mean: Tensor, variance: Tensor) -> None:
    if isinstance(new, PopulationNorm):
        new.set_statistics(mean, variance)
    elif isinstance(new, BatchNorm) and new.running_mean is not None:
        assert new.running_var is not None
        new.running_mean.copy_(mean)
        new.running_var.copy_(variance)


def _gamma(what: str | None, value: str | None) -> Change:
    gamma = _number("gamma", value)

    def change(model: nn.Module, edit: Edit) -> None:
        norms = norms_of(model, what)
        weights = [getattr(norm, "weight", None) for norm in norms.values()]
        scaled = [weight for weight in weights if isinstance(weight, Tensor)]
        if not scaled:
            raise InputError(
                f"None of the norms of {type(model).__name__} has a scale to set "
                f"({', '.join(norms)}): they were made without affine parameters."
            )
        for weight in scaled:
            edit.fill(weight, gamma)

    return change


def _on_top(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-on-top", what)
    kind = _channel_norm("norm-on-top", value)

    def change(model: nn.Module, edit: Edit) -> None:
        pool = last_pool(traced(model), model)
        layer = pool.module
        assert layer is not None
        channels = channels_before(pool)
        for norm in [m for m in model.modules() if is_norm(m)]:
            edit.replace(norm, NoNorm())
        new = make_norm(kind, channels, **like_of(layer, model))
        edit.replace(layer, _pair(("norm", new), ("pool", layer)))
        _leave_fast_paths(model, edit)

    return change


def _before_last(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-before-last", what)
    kind = _channel_norm("norm-before-last", value)

    def change(model: nn.Module, edit: Edit) -> None:
        _, layer = last_linear(traced(model), model)
        new = _feature_norm(kind, layer.in_features, like_of(layer, model))
        edit.replace(layer, _pair(("norm", new), ("layer", layer)))

    return change


def _output(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-output", what)
    both = ("mean", "variance")
    kinds = {"mean": ("mean",), "batch": both, "layer": both}
    word = value or "batch"
    check_choice("norm of the output", word, kinds)

    def change(model: nn.Module, edit: Edit) -> None:
        graph = traced(model)
        name, layer = last_linear(graph, model)
        step = next((s for s in graph.steps if s.module is layer), None)
        while step is not None and step.kind != "output":
            if len(step.users) != 1:
                raise InputError(
                    f"The result of the last linear layer {name!r} is used {len(step.users)} times "
                    "on its way to the output. Insert the norm by hand."
                )
            step = step.users[0]
            if step.kind not in ("output", "identity", "drop", "flatten"):
                raise InputError(
                    f"The last linear layer {name!r} is followed by {step.kind} {step.name!r}, so "
                    "that its result is not the output. Insert the norm by hand."
                )
        options = {**like_of(layer, model), "parts": kinds[word]}
        new = _feature_norm("layer" if word == "layer" else "batch", layer.out_features, options)
        edit.replace(layer, _pair(("layer", layer), ("norm", new)))

    return change


def _feature_norm(kind: str, features: int, like: dict[str, Any]) -> nn.Module:
    """A norm of the features on the last axis, also of a sequence."""
    if kind == "rms":
        return RMSNorm(features, **like)
    if kind == "layer":
        return LayerNorm(features, **like)
    if kind.startswith("group"):
        raise InputError(
            f"{kind!r} normalizes feature maps, (batch, channel, *space), not features on the last "
            "axis. Choose 'layer', 'rms' or a norm over the batch."
        )
    return make_norm(kind, features, channel_axis=-1, **like)


def _pair(*layers: tuple[str, nn.Module]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _leave_fast_paths(model: nn.Module, edit: Edit) -> None:
    """Torch's fused encoder layer assumes that its norms are layer norms: keep it out."""
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            norms = (layer.norm1, layer.norm2)
            if not all(isinstance(norm, nn.LayerNorm) for norm in norms):
                edit.set(layer, "activation_relu_or_gelu", 0)
        if isinstance(layer, nn.TransformerEncoder) and getattr(layer, "use_nested_tensor", False):
            edit.set(layer, "use_nested_tensor", False)


def _check_name(kind: str) -> None:
    """Refuse an unknown norm before the model is looked at; whether it fits is seen there."""
    named_kind(kind)


def _channel_norm(name: str, value: str | None) -> str:
    kind = value or "batch"
    _check_name(kind)
    if kind.startswith("weight"):
        raise InputError(f"{name} inserts a norm of activations. Got {kind!r}, a norm of weights.")
    return kind


def _number(name: str, value: str | None) -> float:
    number = number_or_nan(value)
    if not math.isfinite(number):
        raise InputError(f"{name} needs a finite number, as in '{name}=0.1'. Got {value!r}.")
    return number


def _refuse_value(name: str, value: str | None) -> None:
    if value is not None:
        raise InputError(f"{name} takes no value behind '='. Got {value!r}.")


def _refuse_what(name: str, what: str | None) -> None:
    if what is not None:
        raise InputError(f"{name} takes nothing behind ':'. Got {what!r}; write {name}=KIND.")


_ENTRIES = {
    "remove-norms": (_remove, "[:GLOB]", "norm layers become the identity"),
    "replace": (
        _replace,
        ":KIND->KIND",
        "exchange the kind of norm; scale and shift stay where the new has them",
    ),
    "gamma": (_gamma, "[:GLOB]=NUMBER", "set the scale of the norms"),
    "norm-on-top": (_on_top, "[=KIND]", "no norm but one, before the last pooling"),
    "norm-before-last": (_before_last, "[=KIND]", "one more norm, before the last linear layer"),
    "norm-output": (_output, "[=mean|batch|layer]", "one more norm, of the outputs"),
}
for _name, (_make, _rest, _meaning) in _ENTRIES.items():
    TRANSFORMS.add(_name, TransformKind(_make, _name + _rest, _meaning))
