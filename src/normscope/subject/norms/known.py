"""The classes whose card is read off their attributes: torch's, ours, and registered ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError
from normscope.nn.norm import (
    BatchNorm,
    FilterResponseNorm,
    GroupNorm,
    LayerNorm,
    PopulationNorm,
    RMSNorm,
)
from normscope.registry import near_match
from normscope.subject.norms.card import NormCard

Maker = Callable[[Any], NormCard | None]
BATCH, SAMPLE, POINT = ("channel",), ("sample",), ("sample", "position")


def _made(layer: Any, kind: str, kept: tuple[str, ...], **fields: Any) -> NormCard:
    """A card with what the usual attributes say, where ``fields`` say nothing else."""
    names: dict[str, Any] = {"scale": _named(layer, "weight"), "shift": _named(layer, "bias")}
    gain = getattr(layer, "gain", 1.0)
    on = fields.pop("parts", getattr(layer, "parts", ("mean", "variance")))
    parts = [p for p in ("mean", "variance") if p in on] + [p for p, n in names.items() if n]
    usual = {
        "channels": getattr(layer, "num_features", getattr(layer, "num_channels", 0)),
        "channel_axis": getattr(layer, "channel_axis", 1),
        "centred": getattr(layer, "centred", True),
        "gain": float(gain) if isinstance(gain, int | float) and not names["scale"] else 1.0,
        "eps": getattr(layer, "eps", None),
        "stored": _stored(layer),
    }
    return NormCard(kind, kept=kept, parts=tuple(parts), **{**usual, **names, **fields})


def _named(layer: nn.Module, name: str) -> str | None:
    own = layer._parameters.get(name) is not None or parametrize.is_parametrized(layer, name)
    return name if own else None


def _stored(layer: Any) -> tuple[str, str] | None:
    names = ("running_mean", "running_var")
    return names if all(isinstance(getattr(layer, n, None), Tensor) for n in names) else None


def _batch(layer: Any) -> NormCard:
    every = getattr(layer, "every", 1)  # our own may hold their statistics, or use none
    coupled = every is not None and getattr(layer, "needs_statistics", True)
    always = coupled and _stored(layer) is None
    piece = getattr(layer, "statistics_batch", None) if coupled else None
    return _made(
        layer, "batch", BATCH, over_batch=coupled, always=always, statistics_batch=piece,
        formula=every == 1 and piece is None,
    )  # fmt: skip


def _population(layer: PopulationNorm) -> NormCard:
    stored = ("population_mean", "population_var") if layer.ready else None
    return _made(layer, "population", BATCH, stored=stored)


def _group(layer: Any) -> NormCard:
    kind = "layer" if layer.num_groups == 1 else "group"
    return _made(layer, kind, SAMPLE, groups=layer.num_groups)


def _last_axes(layer: Any, kind: str = "layer", **fields: Any) -> NormCard:
    one = len(layer.normalized_shape) == 1
    channels = layer.normalized_shape[0] if one else 0
    axis = 1 if getattr(layer, "channels_first", False) else -1
    kept = POINT if one else SAMPLE
    return _made(layer, kind, kept, channels=channels, channel_axis=axis, **fields)


def _rms(layer: Any) -> NormCard:
    return _last_axes(layer, "rms", centred=False, parts=("variance",))


CLASSES: dict[type, Maker] = {
    nn.modules.batchnorm._BatchNorm: _batch,
    nn.SyncBatchNorm: _batch,
    nn.modules.instancenorm._InstanceNorm: lambda m: _made(m, "instance", ("sample", "channel")),
    nn.LayerNorm: _last_axes,
    nn.GroupNorm: _group,
    nn.RMSNorm: _rms,
    nn.LocalResponseNorm: lambda m: NormCard("response", parts=("variance",), centred=False),
    BatchNorm: _batch,
    PopulationNorm: _population,
    LayerNorm: _last_axes,
    GroupNorm: _group,
    RMSNorm: _rms,
    FilterResponseNorm: lambda m: _made(
        m, "frn", ("sample", "channel"), parts=("variance",), centred=False
    ),
}
# what has statistics of its own -> the kind if it is centred, and if it is not
KINDS = {
    ("channel", "position"): ("batch", "batch"),
    BATCH: ("batch", "batch"),
    SAMPLE: ("layer", "rms"),
    POINT: ("layer", "rms"),
    ("sample", "channel"): ("instance", "frn"),
}


def known_card(layer: nn.Module) -> tuple[bool, NormCard | None]:
    """Whether the table knows the class, and the card; a forward of its own may do anything."""
    for base in type(layer).__mro__:
        if base in CLASSES:
            same = type(layer).forward is base.forward  # type: ignore[attr-defined]
            return same, CLASSES[base](layer) if same else None
    return False, None


def card_of_kind(layer: nn.Module, kind: str) -> NormCard:
    """What the kind and the usual names say."""
    kept, column = _KEPT[kind]
    sizes = {p.numel() for p in layer._parameters.values() if p is not None}
    return _made(
        layer, kind, kept, channels=max(sizes, default=0), channel_axis=-1 if kept == POINT else 1,
        parts=("variance",) if column else ("mean", "variance"), centred=not column,
        over_batch="sample" not in kept, always=getattr(layer, "running_mean", 0) is None,
    )  # fmt: skip


_KEPT = {
    name: (kept, i) for kept, pair in KINDS.items() for i, name in reversed([*enumerate(pair)])
}


def register_norm(layer_class: type[nn.Module], norm: str | NormCard | Maker | None) -> None:
    """Say what the layers of a class are, where normscope cannot find out by itself.

    Args:
        layer_class: the class; subclasses with a forward method of their own are not meant.
        norm: ``"batch"``, ``"layer"``, ``"rms"``, ``"instance"`` or ``"frn"`` (with ``weight`` as
            scale and ``bias`` as shift, if there are such), a ``NormCard``, a function from a layer
            to its card, or None: it is no norm, though modules inside it may be.

    Example:
        >>> import torch
        >>> class Scaled(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = nn.Parameter(torch.ones(3))
        >>> register_norm(Scaled, "rms")
    """
    if not (isinstance(layer_class, type) and issubclass(layer_class, nn.Module)):
        raise InputError(f"register_norm takes a class of torch modules. Got {layer_class!r}.")
    if norm is not None and not isinstance(norm, str | NormCard) and not callable(norm):
        raise InputError(f"A norm is a name, a NormCard, a function or None. Got {norm!r}.")
    if isinstance(norm, str) and norm not in _KEPT:
        raise InputError(f"Unknown kind of norm {norm!r}. {near_match(norm, list(_KEPT))}")
    if isinstance(norm, str):
        CLASSES[layer_class] = lambda layer: card_of_kind(layer, norm)
    else:
        CLASSES[layer_class] = norm if callable(norm) else lambda _: norm
