"""Norms by name: what a network's builder, a transform and the command line share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.norm.batch import BatchNorm
from normscope.nn.norm.population import PopulationNorm
from normscope.nn.norm.sample import FilterResponseNorm, GroupNorm, RMSNorm
from normscope.nn.norm.weight import row_lengths, unit_weights
from normscope.registry import Registry


@dataclass(frozen=True)
class NormKind:
    """A norm that a network can have behind its layers.

    Attributes:
        make: number of channels and keyword options -> the layer.
        unit_weights: whether the layer before it uses weights of unit length.
        keeps_length: whether the scale then starts at the weights' old lengths, so that the
            network computes what it did before.
        meaning: one line for a table.
    """

    make: Callable[..., nn.Module]
    meaning: str
    unit_weights: bool = False
    keeps_length: bool = False


def make_norm(name: str, num_features: int, **options: Any) -> nn.Module:
    """The norm of that name for ``(batch, channel, *space)``; see ``NORMS`` for the names.

    ``group`` takes its number of groups in the name, ``"group4"``; ``alternating`` its period,
    ``"alternating3"``. Options (``gamma``, ``eps``, ``dtype``, ``device``, ...) go to the layer.
    """
    return named_kind(name).make(num_features, **options)


def norm_after(layer: nn.Module, name: str, **options: Any) -> nn.Module:
    """The norm of that name to be put behind a linear or convolutional ``layer``.

    Weight-norm kinds change the layer in place: its weights get unit length, its bias becomes
    the norm's shift (v w x / |w| + b).
    """
    kind = named_kind(name)
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if not kind.unit_weights:
        return kind.make(weight.shape[0], **{"device": weight.device, **options})
    lengths = row_lengths(layer)
    made = kind.make(weight.shape[0], **{"device": weight.device, **options})
    unit_weights(layer)
    scale, shift, bias = made.weight, made.bias, layer.bias
    assert isinstance(scale, Tensor)
    assert isinstance(shift, Tensor)
    with torch.no_grad():
        if kind.keeps_length and "gamma" not in options:
            scale.copy_(lengths)
        if isinstance(bias, Tensor):
            shift.copy_(bias)
            layer.register_parameter("bias", None)
    return made


def named_kind(name: str) -> NormKind:
    """The entry of ``NORMS`` for a name, which may end in a number (``group4``)."""
    word = name.rstrip("0123456789") if isinstance(name, str) else name
    digits = name[len(word) :] if isinstance(name, str) else ""
    if not digits:
        return NORMS[name]
    parameters: dict[str, Callable[..., nn.Module]] = {"group": _group, "alternating": _alternating}
    if word not in parameters:
        return NORMS[name]  # the error that names near matches
    make = parameters[word]
    return NormKind(
        lambda channels, **options: make(channels, int(digits), **options), NORMS[word].meaning
    )


def _batch(*parts: str, **fixed: Any) -> Callable[..., nn.Module]:
    given = {"parts": parts, **fixed} if parts else fixed
    return lambda channels, **options: BatchNorm(channels, **{**given, **options})


def _layer(channels: int, **options: Any) -> nn.Module:
    return GroupNorm(1, channels, **options)


def _group(channels: int, groups: int | None = None, **options: Any) -> nn.Module:
    return GroupNorm(math.gcd(channels, 8) if groups is None else groups, channels, **options)


def _alternating(channels: int, every: int = 2, **options: Any) -> nn.Module:
    if every < 2:
        raise InputError(
            f"Alternating statistics are fresh every 2 batches or more. Got {every}; 'batch' is "
            "fresh every time."
        )
    return BatchNorm(channels, every=every, **options)


def _rms(channels: int, **options: Any) -> nn.Module:
    return RMSNorm(channels, channels_first=True, **options)


_AFFINE = ("scale", "shift")
_MEAN, _VARIANCE = _batch("mean", *_AFFINE), _batch("variance", *_AFFINE)
_RMS = _batch("variance", *_AFFINE, deviation="rms")
_NAMED = {
    "batch": NormKind(_batch(), "batch norm"),
    "batch-no-affine": NormKind(_batch("mean", "variance"), "batch norm without scale, shift"),
    "mean": NormKind(_batch("mean"), "batch mean subtracted, nothing else"),
    "mean-affine": NormKind(_MEAN, "batch mean subtracted, scale and shift"),
    "variance": NormKind(_VARIANCE, "divided by the batch deviation, mean kept"),
    "variance-rms": NormKind(_RMS, "divided by the batch's rms"),
    "affine": NormKind(_batch(*_AFFINE), "scale and shift only"),
    "alternating": NormKind(_alternating, "batch norm, fresh statistics every 2nd batch"),
    "frozen": NormKind(_batch(every=None), "batch norm, stored statistics held constant"),
    "population": NormKind(PopulationNorm, "population statistics of many samples"),
    "layer": NormKind(_layer, "layer norm over a sample"),
    "group": NormKind(_group, "group norm, 8 groups or what divides"),
    "rms": NormKind(_rms, "divided by the rms over the channels"),
    "frn": NormKind(FilterResponseNorm, "divided by a channel's rms over the positions"),
    "weight": NormKind(_batch(parts=_AFFINE), "weight norm", True, True),
    "weight-mean": NormKind(_MEAN, "weight norm with mean-only batch norm", True, True),
    "weight-variance": NormKind(_VARIANCE, "weight norm with variance-only batch norm", True),
}
NORMS: Registry[NormKind] = Registry("norm", _NAMED)
