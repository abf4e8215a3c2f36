"""Transforms of the norms: remove, replace, set gamma, insert one."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from operator import attrgetter
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
from normscope.registry import check_choice
from normscope.subject.norms import norm_cards
from normscope.subject.problem import as_problem
from normscope.subject.running import passed_over, running_norms
from normscope.subject.transforms.base import TRANSFORMS, Change, Edit, TransformKind, number_or_nan
from normscope.subject.transforms.finding import (
    Norm,
    exchangeable,
    like_of,
    norms_of,
    num_channels,
    selected,
)
from normscope.subject.transforms.structure import Structure
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
        for layer, _ in exchangeable(norms_of(model, what)):
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
        norms = norms_of(model)
        found = exchangeable({n: m for n, m in norms.items() if before in (m[1].kind, "any")})
        if not found:
            kinds = sorted({card.kind for _, card in norms.values()})
            raise InputError(
                f"{type(model).__name__} has no {before!r} norm to replace. Its norms are: "
                f"{', '.join(kinds)}; 'any' means all of them."
            )
        if after.startswith("weight"):
            _normalize_weights(model, [layer for layer, _ in found], after, edit)
            return
        _exchange(model, found, after, edit)

    return change


def _exchange(model: nn.Module, norms: list[Norm], after: str, edit: Edit) -> None:
    for norm in norms:
        new = _new_norm(model, norm, after)
        _carry_over(norm, new)
        edit.replace(norm[0], new)
    _leave_fast_paths(model, edit)


def _freeze_statistics(what: str | None, value: str | None) -> Change:
    _refuse_value("freeze-statistics", value)

    def change(model: nn.Module, edit: Edit) -> None:
        norms = {n: m for n, m in norms_of(model).items() if m[1].kind == "batch"}
        if not norms:
            raise InputError(
                f"{type(model).__name__} has no batch norm whose statistics could be frozen. Other "
                "norms have the same statistics in training and in evaluation."
            )
        _exchange(model, exchangeable(selected(norms, what, "batch norm")), "frozen", edit)

    return change


def _recompute_statistics(what: str | None, value: str | None) -> Change:
    _refuse_value("recompute-statistics", value)

    def change(model: nn.Module, edit: Edit) -> None:
        norms = running_norms(model)
        if not norms:
            raise InputError(
                f"{type(model).__name__} has no norm with running statistics: there is nothing to "
                "recompute."
            )
        chosen = selected(norms, what, "norm with running statistics")
        if edit.data is None:
            raise InputError(
                "recompute-statistics runs the model over the training data, and none was given. "
                "Pass it: apply_transform(model, 'recompute-statistics', data=loader)."
            )
        problem = replace(as_problem(model, edit.data, required=False), model=model, graph=None)
        for name, buffers in passed_over(problem, chosen).buffers.items():
            for buffer, made in buffers.items():
                edit.fill(chosen[name].get_buffer(buffer), made)

    return change


def _normalize_weights(model: nn.Module, norms: list[nn.Module], after: str, edit: Edit) -> None:
    structure = Structure(model, edit.example)
    pairs = [(structure.affine_before(norm), norm) for norm in norms]
    for affine, norm in pairs:
        twin = detached_copy(affine)
        new = norm_after(twin, after, dtype=like_of(affine, model)["dtype"])
        edit.replace(affine, twin)
        edit.replace(norm, new)


def _new_norm(model: nn.Module, norm: Norm, after: str) -> nn.Module:
    """The norm ``after`` for the channels of the old one, wherever those are."""
    layer, card = norm
    channels, options = num_channels(norm), like_of(layer, model)
    if card.eps is not None:
        options["eps"] = card.eps
    make = _feature_norm if card.channel_axis == -1 else make_norm
    made = make(after, channels, **options)
    if isinstance(made, BatchNorm) and hasattr(layer, "momentum"):
        made.momentum = layer.momentum  # type: ignore[assignment]
    return made


def _carry_over(norm: Norm, new: nn.Module) -> None:
    """Scale, shift and running statistics go on; what the old norm lacks, the new one lacks."""
    layer, card = norm
    olds = (card.gamma(layer), card.beta(layer))
    for name, part, old in zip(("weight", "bias"), ("scale", "shift"), olds, strict=True):
        made = getattr(new, name, None)
        if old is not None and isinstance(made, Tensor):
            factor = card.gain if part == "scale" else 1.0
            made.data.copy_((old.detach() * factor).expand(made.shape))
            made.requires_grad_(old.requires_grad)
        elif isinstance(made, Tensor):
            new.register_parameter(name, None)
            new.parts = tuple(p for p in new.parts if p != part)  # type: ignore[union-attr, assignment]
    if card.scale is None and hasattr(new, "gain"):
        new.gain = card.gain  # type: ignore[assignment]
    known = card.stored_statistics(layer)
    if isinstance(new, BatchNorm) and new.every is None and known is None:
        raise InputError(
            f"{type(layer).__name__} keeps no running statistics that could be frozen. Train with "
            "batch norm first, or replace it by 'batch'."
        )
    if known is not None and isinstance(new, ChannelNorm):
        _carry_statistics(new, *_converted(card.centred, new, *known))
        counts = [getattr(norm, "num_batches_tracked", None) for norm in (layer, new)]
        if all(isinstance(count, Tensor) for count in counts):
            counts[1].copy_(counts[0])  # type: ignore[union-attr]
    elif isinstance(new, BatchNorm) and getattr(layer, "track_running_stats", True) is False:
        new.forget_statistics()


def _converted(
    centred: bool, new: ChannelNorm, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """The variance as ``new`` keeps it: about the mean, or about zero (rms)."""
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
        scaled = [(layer, c.scale, c.offset) for layer, c in norms.values() if c.scale is not None]
        if not scaled:
            raise InputError(
                f"None of the norms of {type(model).__name__} has a scale to set "
                f"({', '.join(norms)}): they were made without affine parameters."
            )
        for layer, name, offset in scaled:
            edit.fill(attrgetter(name)(layer), gamma - offset)

    return change


def _on_top(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-on-top", what)
    kind = _channel_norm("norm-on-top", value)

    def change(model: nn.Module, edit: Edit) -> None:
        pool = Structure(model, edit.example).last_pool()
        for norm, _ in exchangeable(norms_of(model)) if norm_cards(model) else ():
            edit.replace(norm, NoNorm())
        new = make_norm(kind, pool.in_shape[1], **like_of(pool.module, model))
        edit.replace(pool.module, _pair(("norm", new), ("pool", pool.module)))
        _leave_fast_paths(model, edit)

    return change


def _before_last(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-before-last", what)
    kind = _channel_norm("norm-before-last", value)

    def change(model: nn.Module, edit: Edit) -> None:
        last = Structure(model, edit.example).last_layer()
        new = _feature_norm(kind, last.in_shape[-1], **like_of(last.module, model))
        edit.replace(last.module, _pair(("norm", new), ("layer", last.module)))

    return change


def _output(what: str | None, value: str | None) -> Change:
    _refuse_what("norm-output", what)
    both = ("mean", "variance")
    kinds = {"mean": ("mean",), "batch": both, "layer": both}
    word = value or "batch"
    check_choice("norm of the output", word, kinds)

    def change(model: nn.Module, edit: Edit) -> None:
        last = Structure(model, edit.example).last_layer(is_output=True)
        options = {**like_of(last.module, model), "parts": kinds[word]}
        new = _feature_norm("layer" if word == "layer" else "batch", last.out_shape[-1], **options)
        edit.replace(last.module, _pair(("layer", last.module), ("norm", new)))

    return change


def _feature_norm(kind: str, features: int, **like: Any) -> nn.Module:
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
    "recompute-statistics": (
        _recompute_statistics,
        "[:GLOB]",
        "running statistics made again: the plain average of one pass over data= in train mode",
    ),
    "freeze-statistics": (
        _freeze_statistics,
        "[:GLOB]",
        "batch norm uses its running statistics in training too, and no longer moves them",
    ),
    "norm-on-top": (_on_top, "[=KIND]", "no norm but one, before the last pooling"),
    "norm-before-last": (_before_last, "[=KIND]", "one more norm, before the last linear layer"),
    "norm-output": (_output, "[=mean|batch|layer]", "one more norm, of the outputs"),
}
for _name, (_make, _rest, _meaning) in _ENTRIES.items():
    TRANSFORMS.add(_name, TransformKind(_make, _name + _rest, _meaning))
