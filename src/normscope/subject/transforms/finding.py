"""Which layers of a user's model a transform means."""

from __future__ import annotations

import fnmatch
from typing import TypeVar

import torch
from torch import nn

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.subject.norms import NormCard, norm_cards

Norm = tuple[nn.Module, NormCard]
T = TypeVar("T")


def norms_of(model: nn.Module, glob: str | None = None) -> dict[str, Norm]:
    """The norm layers with their cards, or those whose name fits ``glob``; none is an error."""
    cards = norm_cards(model, strict=True)
    found = {name: (model.get_submodule(name), card) for name, card in cards.items()}
    if not found:
        raise InputError(
            f"{type(model).__name__} has no normalization layer. Add one with 'norm-before-last', "
            "'norm-on-top' or 'norm-output', or build the network with a norm. (A norm that is a "
            "call of a function, such as F.layer_norm, cannot be exchanged: make it a module.)"
        )
    return selected(found, glob, "norm layer")


def exchangeable(norms: dict[str, Norm]) -> list[Norm]:
    """Norms that do nothing else; another is an error."""
    for name, (layer, card) in norms.items():
        if not card.plain:
            raise InputError(
                f"{type(layer).__name__} {name!r} does more than to normalize (an activation, or a "
                "formula of its own), which would be lost with it. Leave it out with a glob, or "
                "say by register_norm what it is."
            )
    return [*norms.values()]


def selected(found: dict[str, T], glob: str | None, what: str) -> dict[str, T]:
    """Those whose name, or a parent's, fits ``glob``."""
    if glob is None:
        return found
    fits = {n: m for n, m in found.items() if fnmatch.fnmatch(n, glob) or n.startswith(f"{glob}.")}
    if not fits:
        raise InputError(f"No {what} is named {glob!r}. {near_match(glob, list(found))}")
    return fits


def num_channels(norm: Norm) -> int:
    """Channels of a norm, or the size of the axis that it normalizes."""
    layer, card = norm
    if not card.channels:
        raise InputError(
            f"{layer} has no single channel axis that could be kept. Exchange it by hand."
        )
    return card.channels


def like_of(layer: nn.Module, model: nn.Module) -> dict[str, object]:
    """Device and dtype for a new layer in the place of ``layer``."""
    tensors = [*layer.parameters(), *layer.buffers(), *model.parameters()]
    floating = next((t for t in tensors if t.is_floating_point()), torch.empty(0))
    return {"device": floating.device, "dtype": floating.dtype}
