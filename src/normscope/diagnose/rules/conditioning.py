"""Rules about conditioning."""

from __future__ import annotations

import math

import numpy as np

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import HUANG2020, WEI2019
from normscope.results import Evidence, Finding, LayerConditioning

P = 0.5
ENOUGH = 2  # rows per direction of a layer, for which sampling moves kappa_50 by less than half
# kappa_50 of a layer's factored Fisher matrix over its size, as the means of signals and gradients
# stand out like the numbers of inputs and outputs. At their start networks with batch norm stay
# below 1.5, those without reach 2 to 24 (docs/design/0008).
ILL = 5.0
LARGE = 10.0  # lambda_max of the last layer's input moments, per feature; normalized: below 2
EXPLODES = 3.0  # decades of squared gradient over the depth


@rule("ill-conditioned-layer", "conditioning", source=HUANG2020, where="Figs. I-VII")
def ill_conditioned(case: Case) -> Finding | None:
    """kappa_50 of the layers' factored Fisher matrices."""
    found = case["conditioning"]
    # The inputs of the first layer are the data's own, the last layer is singular under softmax.
    inner = [x for x in case.hidden(found.layers) if x.number > 1]
    # Few rows spread the eigenvalues, or leave zeros, which says nothing about the layer.
    layers = [x for x in inner if x.rows >= ENOUGH * _directions(x)]
    if not layers or ("layout" in case and case["layout"].attention):
        return None  # streams with attention have few directions anyway
    shares = np.array([layer.fisher.kappa(P) / _size(layer) for layer in layers])
    worst = int(np.argmax(shares))
    value = float(shares[worst])
    shown = (
        Evidence("largest kappa_50% / (inputs x outputs) of a hidden layer", value, ILL),
        Evidence("kappa_50% there", layers[worst].fisher.kappa(P)),
    )
    if value < ILL:
        meaning = "The weights of a layer learn at comparable speeds."
        return ok("Hidden layers are well conditioned", shown, meaning)
    count = int((shares >= ILL).sum())
    grave = note if case.trained else warning  # the line is that of networks at their start
    return grave(
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
def last_input(case: Case) -> Finding | None:
    """The input of the last layer: how much of its power lies in one direction."""
    layers = case["conditioning"].layers
    name = case["layout"].last if "layout" in case else layers[-1].name
    last = next((x for x in layers if x.name == name), None)
    if last is None:
        return None
    size = len(last.inputs.values)
    value = last.inputs.largest / size
    shown = (
        Evidence("lambda_max of the last layer's input moments, per feature", value, LARGE),
        Evidence("their mean eigenvalue", last.inputs.trace / size),
    )
    if value < LARGE:
        meaning = "Its curvature does not come from large inputs."
        return ok("The input of the last layer is moderate", shown, meaning)
    return warning(
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
def explosion(case: Case) -> Finding | None:
    """Gradients that grow towards the input of a batch-normalized network."""
    layout, sizes = case["layout"], dict[int, list[float]]()
    for x in case.hidden(case["gradients"].layers):
        if x.mean_abs > 0:
            sizes.setdefault(x.number, []).append(2 * math.log10(x.mean_abs))
    if len(sizes) < 3 or not any(n.over_batch for n in layout.norms):
        return None
    depth = np.array(sorted(sizes), dtype=float)
    size = np.array([np.mean(sizes[number]) for number in sorted(sizes)])
    slope, start = np.polyfit(depth, size, 1)
    residual = size - (slope * depth + start)
    spread = depth - depth.mean()
    error = math.sqrt(residual.var(ddof=2) / (spread**2).sum())
    steps = depth[-1] - depth[0]
    decades, wide = -slope * steps, 2 * error * steps
    name = "decades of squared gradient gained towards the input"
    shown = (
        Evidence(name, decades, EXPLODES, decades - wide, decades + wide),
        Evidence("factor per layer (mean field, ReLU: 1.467)", 10.0**-slope),
    )
    if decades < EXPLODES or -slope < 2 * error:
        return ok(
            "Gradients do not explode through the batch norms",
            shown,
            "Each batch norm without a skip connection enlarges gradients a little; here that does "
            "not add up.",
        )
    return warning(
        "Gradients explode towards the input, layer by layer of batch norm",
        shown,
        f"The first layers get gradients 10^{decades / 2:.1f} times those of the last: they move "
        "most, and they bound the learning rate.",
        ("Use" if layout.residuals else "Add skip connections, use")
        + " fewer batch norms, or layer norm in their place.",
    )
