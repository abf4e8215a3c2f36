"""Rules about activations and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import BJORCK2018, HUANG2020
from normscope.results import Evidence, Finding
from normscope.results.activations import fitted_growth

GROWS = 3.0  # decades of variance over the depth of the network
# T4 / T1 above which samples pull one way: with batch norm Bjorck's convolutions stay below 0.1,
# linear layers, which have no positions over which terms could cancel, near 0.2.
ALIGNED = {"conv": 0.12, "linear": 0.4}
# Shares of the units of a layer: healthy networks have up to 0.44 (ReLU, a hundred networks).
DEAD, MOSTLY_DEAD = 0.1, 0.9
FEW_UNITS = 8  # of fewer, one more or less is a large share
FULL = 0.25
FAVOURED = 0.9  # share of samples for which one class is predicted
CERTAIN = 2.0  # times chance: below that its output needs no pushing down
DOMINATED = 0.5  # share of the layers
ENOUGH = 32  # samples: of fewer, many units are dead and many answers agree by chance


def too_few(results: dict[str, Any]) -> tuple[str, ...]:
    """What cannot be judged because there are too few samples, in words."""
    seen = results["activations"].num_samples if "activations" in results else ENOUGH
    if seen >= ENOUGH:
        return ()
    return (
        f"Not judged (needs {ENOUGH} samples, got {seen}): signals, dead units, a favoured class "
        "and the agreement of gradients. Use larger batches.",
    )


@rule("signal-growth", "activations", order=35, kind="note", source=BJORCK2018, where="Fig. 3")
def growth(case: Case) -> Finding | None:
    """Activations that grow or vanish with depth."""
    if case["activations"].num_samples < ENOUGH:
        return None
    outputs = case.on_path(case["activations"].outputs)
    beside = len(outputs) < len(case["activations"].outputs)
    fits = fitted_growth(tuple(outputs)) if beside else case["activations"].growth
    fit = next((g for g in fits if g.which == "all"), None)
    if fit is None:
        return None
    numbers = [s.number for s in outputs]
    depth, steps = max(numbers), max(numbers) - min(numbers)
    decades = fit.slope * steps
    up = decades > 0
    ends = [(fit.slope + sign * 2 * fit.error) * steps for sign in (-1, 1)]
    shown = (
        Evidence("log10 of variance, last / first layer", decades, GROWS if up else -GROWS, *ends),
        Evidence("factor of the variance per layer", fit.factor),
    )
    clear = abs(fit.slope) > 2 * fit.error
    if not clear or abs(decades) < GROWS:
        meaning = "Signals neither explode nor vanish."
        return ok(
            title="Activations keep their size over the depth", evidence=shown, meaning=meaning
        )
    at = fit.overflow_layer
    tail = f" Float32 overflows at about layer {at:.0f}." if up and math.isfinite(at) else ""
    fate = "shrink with it: training starts slowly."
    if up:
        fate = "grow with it, and the largest stable learning rate shrinks."
    return note(
        title=f"Activations {'grow' if up else 'vanish'} with depth",
        evidence=shown,
        meaning=f"The variance changes by a factor {fit.factor:.3g} per layer, 10^{decades:.1f} "
        "over "
        f"{depth} layers.{tail} The outputs and the gradients of all layers {fate}",
        advice="The hidden layers are normalized, so the scale of their weights has little effect: "
        "look at the scales (gamma) of the norms, and at sums without a norm after them."
        if case.normalized
        else "Add normalization to the hidden layers, or scale the initial weights by "
        f"{fit.factor**-0.5:.2g} (the transform 'scale-weights').",
    )


@rule(
    "input-independent-gradients",
    "gradients",
    order=32,
    kind="note",
    source=BJORCK2018,
    where="Table 1",
)
def alignment(case: Case) -> Finding | None:
    """Gradients whose terms agree over samples and positions, in a network at its start."""
    layers = [x for x in case.hidden(case["gradients"].layers) if math.isfinite(x.alignment)]
    if not layers or not case.samples or case["gradients"].num_samples < ENOUGH or case.trained:
        return None
    random = 3 / math.sqrt(case.samples)  # terms of random sign reach 1 / sqrt(n)
    excess = [x.alignment / max(ALIGNED[x.kind], random) for x in layers]
    value = float(np.median(excess))
    middle = layers[int(np.argsort(excess)[len(excess) // 2])]
    name = "agreement of the samples' gradients (T4 / T1), relative to its threshold"
    shown = (
        Evidence(name, value, 1.0, min(excess), max(excess)),
        Evidence(f"T4 / T1 of {middle.name!r}", middle.alignment),
    )
    if value <= 1:
        meaning = "Terms of different samples and positions mostly cancel, as they should."
        return ok(title="Gradients depend on the input", evidence=shown, meaning=meaning)
    return note(  # networks with He's initial weights have it, and train
        title="All samples give nearly the same gradient",
        evidence=shown,
        meaning="The first steps mostly learn a shift of the outputs that is the same for all "
        "samples.",
        advice="Lower the learning rate for the first steps (warm-up)."
        if case.normalized
        else "Normalize the hidden layers, or lower the learning rate for the first steps "
        "(warm-up).",
    )


@rule(
    "dead-units",
    "activations",
    order=5.3,
    kind="guess",
    suppressed_by=(
        "constant-inputs",
        "zero-weights",
        "zero-gamma",
        "input-scale",
        "feature-scale",
        "norm-axis",
        "not-finite",
    ),
    source=HUANG2020,
    where="Supplement C.3, Fig. XIII",
)
def dead_units(case: Case) -> Finding | None:
    """Rectified units that never, or always, let a signal pass."""
    # gates are thin, and often shut
    thick = [s for s in case.on_path(case["activations"].rectified) if len(s.mean) >= FEW_UNITS]
    seen = case["activations"].num_samples
    if not thick or seen < ENOUGH:
        return None
    dead = {s.name: float(s.dying.mean()) for s in thick}
    full = {s.name: float(s.full.mean()) for s in thick}
    worst, fullest = max(dead, key=dead.__getitem__), max(full, key=full.__getitem__)
    shown = (
        Evidence("largest share of dead units in a layer", dead[worst], DEAD),
        Evidence("largest share of always active units", full[fullest], FULL),
    )
    if dead[worst] >= DEAD:
        severity = warning if dead[worst] >= MOSTLY_DEAD else note
        first = "Normalize before the ReLU"
        if case.normalized:
            first = "Look at the shift (beta) of the norm before the ReLU"
        return severity(
            title=f"A layer is dead: {dead[worst]:.0%} of its ReLU units are zero for every sample"
            if dead[worst] >= MOSTLY_DEAD
            else f"{dead[worst]:.0%} of the units of a layer are dead",
            evidence=shown[:1],
            meaning=f"Their output is zero on all {seen} samples, so they carry no signal and do "
            f"not learn. (With 95 % confidence each is active on fewer than {3 / seen:.1%} of all "
            "samples.)",
            advice=f"{first}, check the biases, or use a leaky ReLU.",
            layer=worst,
        )
    if full[fullest] >= FULL:
        return note(
            title=f"{full[fullest]:.0%} of the units of a layer are always active",
            evidence=shown[1:],
            meaning="They are positive for every sample: the ReLU does nothing there, and they act "
            "linearly.",
            advice="Centre the signals before the ReLU, for example with batch norm.",
            layer=fullest,
        )
    meaning = "Nearly all units are active on some samples and zero on others."
    return ok(title="Units are neither dead nor always active", evidence=shown, meaning=meaning)


@rule(
    "favoured-class",
    "gradients",
    order=33,
    kind="note",
    source=BJORCK2018,
    where="Fig. 4 and App. L",
)
def favoured_class(case: Case) -> Finding | None:
    """One class predicted for nearly every sample."""
    outputs = case["gradients"].outputs
    if outputs is None or len(outputs.predicted) < 3 or outputs.num_samples < ENOUGH:
        return None
    share = float(outputs.predicted[outputs.favoured])
    probability = float(outputs.probability[outputs.favoured])
    line = CERTAIN / len(outputs.predicted)
    shown = (
        Evidence("share of samples for which one class is predicted", share, FAVOURED),
        Evidence("mean probability of that class", probability, line),
        Evidence("agreement of the samples' output gradients, of 1", outputs.alignment),
    )
    if share < FAVOURED or probability < line:
        meaning = (
            "Different samples get different answers, or answers that hardly differ from chance."
        )
        return ok(title="No class is favoured", evidence=shown, meaning=meaning)
    return note(
        title=f"Class {outputs.favoured} is predicted for {share:.0%} of the samples",
        evidence=shown,
        meaning="The first steps mostly lower that one output. Deep networks often start like "
        "this, also "
        "with batch norm.",
        advice="Usually harmless. Smaller initial weights of the last layer avoid it.",
    )


@rule(
    "weight-domination",
    "gradients",
    order=34,
    kind="note",
    suppressed_by=("learning-rate",),  # it would advise a larger one
    source=HUANG2020,
    where="Supplement C.2, Fig. XII",
)
def weight_domination(case: Case) -> Finding | None:
    """Layers whose gradient is tiny against their weight, while there is something to learn."""
    if case.convention.get("no_threshold") or case.silent:
        return None  # the steps of Adam and its kin do not depend on the size of gradients
    # No gradient at all comes from a layer of zeros behind it, and no rate changes that.
    layers = [x for x in case["gradients"].layers if 0 < x.domination < math.inf]
    shares = [layer.dominated for layer in layers]
    if not shares or case.trained:
        return None
    value = float(np.mean(shares))
    worst = min(layers, key=lambda x: x.domination)
    shown = (
        Evidence("share of layers dominated by their weight", value, DOMINATED),
        Evidence("smallest sigma_max(gradient) / sigma_max(weight)", worst.domination),
    )
    if value < DOMINATED:
        meaning = "A step changes every layer noticeably."
        return ok(
            title="Gradients are not negligible beside the weights", evidence=shown, meaning=meaning
        )
    norms = "layout" in case and any(n.used for n in case["layout"].norms)
    small = "layout" in case and case["layout"].residuals > 0
    return note(
        title=f"In {value:.0%} of the layers the gradient is tiny compared with the weights",
        evidence=shown,
        meaning="A step changes them little."
        + (" Before a norm, weights that have grown large change very little." if norms else ""),
        advice="Use a larger learning rate"
        + (", or weight decay on the layers before norms." if norms else ".")
        + (" Branches that are meant to start small (LayerScale) need no change." if small else ""),
        layer=worst.name,
    )
