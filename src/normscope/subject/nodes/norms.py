"""A norm of a module as a node of the theory."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from normscope.subject.norms import NormCard
from normscope.theory.graph.nodes import BatchNorm, LayerNorm, Node, RMSNorm, Shape, Unsupported

NARROW = 8  # channels in a group from which its statistics fluctuate little
_MEASURE = "measure the network instead (fisher, top_eigenvalues)"


def norm_node(
    card: NormCard,
    layer: nn.Module,
    name: str,
    source: str,
    size: Shape,
    *,
    running: bool,
    selected: set[str],
    prefix: str,
) -> tuple[Node, list[str]]:
    """The node of a norm, and which of gamma, beta and stored statistics are not as at the start.

    Args:
        card: what the layer does.
        layer: itself.
        name: name of the node.
        source: the node that it reads.
        size: channels and sides of that.
        running: the layer is in evaluation mode while the model is trained.
        selected: names of its parameters that F is taken over.
        prefix: what their names begin with.
    """
    _check(card, layer, name, size)
    scale, shift, changed = card.gamma(layer), card.beta(layer), list[str]()
    gamma = card.gain
    if scale is not None:
        gamma *= math.sqrt(_mean_square(scale))
        low, high = float(scale.detach().min()), float(scale.detach().max())
        if high - low > 1e-6 * max(abs(high), abs(low)):
            changed.append("gamma")
    if shift is not None and bool((shift != 0).any()):
        changed.append("beta")
    held = {"gamma": card.scale, "beta": card.shift}
    common: dict[str, Any] = {
        "inputs": (source,),
        "gamma": abs(gamma),
        "eps": card.eps or 0.0,
        "parameters": tuple(k for k, n in held.items() if n and f"{prefix}{n}" in selected),
    }
    for kind in common["parameters"]:
        vector = scale if kind == "gamma" else shift
        if vector is not None and vector.numel() != size[0]:
            _refuse(name, f"{kind} of {vector.numel()} numbers for {size[0]} channels")
    if card.kind == "batch":
        stored, fresh = _stored(card, layer)
        how = "running" if running else None
        changed += [] if fresh else ["stored"]
        return BatchNorm(name, **common, statistics=how, **stored), changed
    over = "position" if "position" in card.kept and len(size) > 1 else "sample"
    return (LayerNorm if card.centred else RMSNorm)(name, **common, over=over), changed


def _check(card: NormCard, layer: nn.Module, name: str, size: Shape) -> None:
    kind = type(layer).__name__
    if card.kind not in ("batch", "layer", "group", "rms"):
        _refuse(name, f"{kind} (a norm of kind {card.kind})")
    needs = {"variance"} | ({"mean"} if card.centred else set())
    if not needs <= set(card.parts):
        _refuse(name, f"{kind} with the parts {', '.join(card.parts)} only")
    if card.kind == "batch" and not (card.formula and card.centred):
        _refuse(name, f"{kind}, which does not normalize each batch by its own statistics")
    if not card.plain:
        _refuse(name, f"{kind}, which does more than normalize")
    width = size[0] // card.groups
    if card.groups > 1 and width < NARROW:
        _refuse(
            name, f"group norm with {width} channels in a group, whose statistics fluctuate",
            f"Use groups of at least {NARROW} channels for the prediction, or {_MEASURE}",
        )  # fmt: skip


def _stored(card: NormCard, layer: nn.Module) -> tuple[dict[str, Any], bool]:
    """Running statistics as one mean and one variance, and whether they are 0 and 1."""
    found = card.stored_statistics(layer)
    if found is None:
        return {}, True
    mean, variance = (t.detach().double() for t in found)
    fresh = not bool((mean != 0).any()) and not bool((variance != 1).any())
    if fresh:
        return {}, True
    eps = card.eps or 0.0
    used = 1 / float((1 / (variance + eps)).mean()) - eps
    return {"running_mean": float(mean.mean()), "running_variance": max(used, 0.0)}, False


def _refuse(name: str, what: str, way_out: str = _MEASURE[0].upper() + _MEASURE[1:]) -> None:
    Unsupported(name, what=what, way_out=way_out).shape([])


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean())
