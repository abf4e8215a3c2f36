"""Rules about the conditioning of the layers."""

from __future__ import annotations

import math

import numpy as np

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import HUANG2020
from normscope.results import Evidence, Finding, LayerConditioning

P = 0.5
ENOUGH = 2  # rows per direction of a layer, for which sampling moves kappa_50 by less than half
# kappa_50 of a layer's factored Fisher matrix over its size, as the means of signals and gradients
# stand out like the numbers of inputs and outputs. At their start networks with batch norm stay
# below 1.5, those without reach 2 to 24 (docs/design/0008).
ILL = 5.0
LARGE = 10.0  # lambda_max of the last layer's input moments, per feature; normalized: below 2
EXPLODES = 3.0  # decades of the squared norm of a layer's gradient over the depth


@rule(
    "ill-conditioned-layer",
    "conditioning",
    order=31,
    kind="note",
    source=HUANG2020,
    where="Supplement, Figs. I and VI",
)
def ill_conditioned(case: Case) -> Finding | None:
    """kappa_50 of the layers' factored Fisher matrices."""
    found = case["conditioning"]
    # The inputs of the first layer are the data's own, the last layer is singular under softmax.
    inner = [x for x in case.hidden(found.layers) if x.number > 1]
    # Few rows spread the eigenvalues, or leave zeros, which says nothing about the layer.
    layers = [x for x in inner if x.rows >= ENOUGH * _directions(x)]
    if not layers or case.silent or ("layout" in case and case["layout"].attention):
        return None  # streams with attention have few directions anyway
    shares = np.array([layer.fisher.kappa(P) / _size(layer) for layer in layers])
    worst = int(np.argmax(shares))
    value = float(shares[worst])
    shown: tuple[Evidence, ...] = (
        Evidence("largest kappa_50% / (inputs x outputs) of a hidden layer", value, ILL),
        Evidence("kappa_50% there", layers[worst].fisher.kappa(P)),
    )
    if value < ILL:
        meaning = "The weights of a layer learn at comparable speeds."
        return ok(title="Hidden layers are well conditioned", evidence=shown, meaning=meaning)
    count, inputs = int((shares >= ILL).sum()), layers[worst].inputs.kappa(P)
    behind = layers[worst].gradients.kappa(P)
    shown += (
        Evidence("kappa_50% of its inputs alone", inputs),
        Evidence("kappa_50% of the gradients of its outputs alone", behind),
    )
    cause = "Normalize the inputs of these layers."
    if case.normalized:
        cause = "The inputs are already normalized. Look for dead units and for duplicate units."
    if behind > inputs:
        cause = "The cause is the gradients that come back to it, not its inputs. Look for dead "
        cause += "units after it. Branches that start near zero (LayerScale) need no change."
    return note(  # networks with torch's initial weights have it, and train
        title=f"{count} of {len(layers)} inner layers {'is' if count == 1 else 'are'} "
        "ill-conditioned",
        evidence=shown,
        meaning="The curvature differs by a factor kappa between directions of a layer: a learning "
        "rate "
        "that is small enough for the sharpest one barely moves the others. Dead units and "
        "correlated inputs are the usual causes."
        + ("" if math.isfinite(value) else " Some directions get no gradient at all."),
        advice=cause,
        layer=layers[worst].name,
    )


def _directions(layer: LayerConditioning) -> int:
    return max(len(layer.inputs.values), len(layer.gradients.values))


def _size(layer: LayerConditioning) -> int:
    return len(layer.inputs.values) * len(layer.gradients.values)


@rule(
    "last-layer-input",
    "conditioning",
    order=8.2,
    kind="note",
    source=HUANG2020,
    where="Supplement D.2, Fig. XV",
)
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
        return ok(title="The input of the last layer is moderate", evidence=shown, meaning=meaning)
    return warning(
        title="The input of the last layer is large",
        evidence=shown,
        meaning="The curvature of the last layer is proportional to its input, so it limits the "
        "learning rate of the whole network. It also changes during training.",
        advice=case.before_last_advice,
        layer=last.name,
    )


@rule(
    "bn-gradient-explosion", "layout", "gradients", order=36, kind="note",
    source=HUANG2020, where="Supplement C.2, Fig. XI",
)  # fmt: skip
def explosion(case: Case) -> Finding | None:
    """Gradients that grow towards the input of a batch-normalized network."""
    layout, sizes = case["layout"], dict[int, list[float]]()
    for x in case.hidden(case["gradients"].layers):
        if x.std > 0:  # the norm of a layer's gradient: wide layers have small entries
            squared = math.prod(x.shape) * x.std**2
            sizes.setdefault(x.number, []).append(math.log10(squared))
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
    name = "decades of squared gradient norm gained towards the input"
    shown = (
        Evidence(name, decades, EXPLODES, decades - wide, decades + wide),
        Evidence("factor per layer (mean field, ReLU: 1.467)", 10.0**-slope),
    )
    if decades < EXPLODES or -slope < 2 * error:
        return ok(
            title="Gradients do not explode through the batch norms",
            evidence=shown,
            meaning="Each batch norm without a skip connection makes gradients a little larger. "
            "Here the "
            "effect stays small.",
        )
    severity = note if layout.residuals else warning  # those with skip connections train
    return severity(
        title="Gradients explode towards the input, by a factor in every layer",
        evidence=shown,
        meaning=f"The first layers get gradients 10^{decades / 2:.1f} times those of the last: "
        "they move "
        "most, and they bound the learning rate.",
        advice=("Use" if layout.residuals else "Add skip connections, use")
        + " fewer batch norms, or use layer norm instead.",
    )
