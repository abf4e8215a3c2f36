"""Rules about conditioning."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from normscope.diagnose.rules.base import Case, evidence, rule
from normscope.refs import HUANG2020, WEI2019
from normscope.results import Finding, LayerConditioning

P = 0.5
ENOUGH = 2  # rows per direction of a layer, for which sampling moves kappa_50 by less than half
# kappa_50 of a layer's factored Fisher matrix over its size, as the means of signals and gradients
# stand out like the numbers of inputs and outputs. At their start networks with batch norm stay
# below 1.5, those without reach 2 to 24 (docs/design/0008).
ILL = 5.0
LARGE = 10.0  # lambda_max of the last layer's input moments, per feature; normalized: below 2
EXPLODES = 3.0  # decades of squared gradient over the depth


@rule("ill-conditioned-layer", "conditioning", source=HUANG2020, where="Figs. I-VII")
def ill_conditioned(case: Case) -> Iterator[Finding]:
    """kappa_50 of the layers' factored Fisher matrices."""
    found = case["conditioning"]
    # The inputs of the first layer are the data's own, the last layer is singular under softmax.
    inner = found.layers[1:-1]
    # Few rows spread the eigenvalues, or leave zeros, which says nothing about the layer.
    layers = [x for x in inner if x.rows >= ENOUGH * _directions(x)]
    if not layers or case.convention.get("attention"):  # whose streams have few directions anyway
        return
    shares = np.array([layer.fisher.kappa(P) / _size(layer) for layer in layers])
    worst = int(np.argmax(shares))
    value = float(shares[worst])
    shown = (
        evidence("largest kappa_50% / (inputs x outputs) of a hidden layer", value, ILL,
                 source="conditioning"),
        evidence("kappa_50% there", layers[worst].fisher.kappa(P), source="conditioning"),
    )  # fmt: skip
    if value < ILL:
        yield Finding(
            "", "ok", "Hidden layers are well conditioned", shown,
            "The weights of a layer learn at comparable speeds.",
        )  # fmt: skip
        return
    count = int((shares >= ILL).sum())
    yield Finding(
        "",
        "note" if case.trained else "warning",  # the line is that of networks at their start
        f"{count} of {len(layers)} hidden layers are ill-conditioned",
        shown,
        "Half of the directions of a layer differ that much in curvature: what suits the "
        "sharpest leaves the others standing. Dead units and correlated inputs are the usual "
        "causes." + ("" if math.isfinite(value) else " Some directions get no gradient at all."),
        "The layers before them are normalized already: look for dead units, and for units that do "
        "the same."
        if case.normalized
        else "Normalize the inputs of these layers.",
        layer=layers[worst].name,
    )


def _directions(layer: LayerConditioning) -> int:
    return max(len(layer.inputs.values), len(layer.gradients.values))


def _size(layer: LayerConditioning) -> int:
    return len(layer.inputs.values) * len(layer.gradients.values)


@rule("last-layer-input", "conditioning", source=HUANG2020, where="Sec. on the last layer, Fig. XV")
def last_input(case: Case) -> Iterator[Finding]:
    """The input of the last layer: how much of its power lies in one direction."""
    last = case["conditioning"].layers[-1]
    size = len(last.inputs.values)
    value = last.inputs.largest / size
    shown = (
        evidence("lambda_max of the last layer's input moments, per feature", value, LARGE,
                 source="conditioning"),
        evidence("their mean eigenvalue", last.inputs.trace / size, source="conditioning"),
    )  # fmt: skip
    if value < LARGE:
        yield Finding(
            "", "ok", "The input of the last layer is moderate", shown,
            "Its curvature does not come from large inputs.",
        )  # fmt: skip
        return
    yield Finding(
        "",
        "warning",
        "The input of the last layer is large",
        shown,
        "The curvature of the last layer is proportional to it, so that it bounds the learning "
        "rate of the whole network, and it varies during training.",
        f"Put a norm before the last layer: {case.what_if('norm-before-last')} shows what that "
        "gains.",
        layer=last.name,
    )


@rule(
    "bn-gradient-explosion", "layout", "gradients", source=WEI2019, where="Sec. 3; Huang, Fig. XI"
)
def explosion(case: Case) -> Iterator[Finding]:
    """Gradients that grow towards the input of a batch-normalized network."""
    batch = [n for n in case["layout"].norms if n.over_batch]
    layers = [x for x in case["gradients"].layers[:-1] if x.mean_abs > 0]
    if not batch or len(layers) < 3:
        return
    depth = np.array([x.number for x in layers], dtype=float)
    size = np.log10([x.mean_abs**2 for x in layers])
    slope, start = np.polyfit(depth, size, 1)
    residual = size - (slope * depth + start)
    spread = depth - depth.mean()
    error = math.sqrt(residual.var(ddof=2) / (spread**2).sum())
    steps = depth[-1] - depth[0]
    decades = -slope * steps
    shown = (
        evidence("decades of squared gradient gained towards the input", decades, EXPLODES,
                 low=decades - 2 * error * steps, high=decades + 2 * error * steps,
                 source="gradients"),
        evidence("factor per layer (mean field, ReLU: 1.467)", 10.0**-slope, source="gradients"),
    )  # fmt: skip
    if decades < EXPLODES or -slope < 2 * error:
        yield Finding(
            "", "ok", "Gradients do not explode through the batch norms", shown,
            "Each batch norm without a skip connection enlarges gradients a little; here that does "
            "not add up.",
        )  # fmt: skip
        return
    yield Finding(
        "",
        "warning",
        "Gradients explode towards the input, layer by layer of batch norm",
        shown,
        f"The first layers get gradients 10^{decades / 2:.1f} times those of the last: they move "
        "most, and they bound the learning rate.",
        "Add skip connections, use fewer batch norms, or layer norm in their place.",
    )
