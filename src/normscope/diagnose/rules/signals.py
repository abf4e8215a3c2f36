"""Rules about activations and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normscope.diagnose.rules.base import Case, note, ok, problem, rule, warning
from normscope.refs import BJORCK2018, HUANG2020
from normscope.results import ChannelStatistics, Evidence, Finding
from normscope.results.activations import fitted_growth

GROWS = 3.0  # decades of variance over the depth of the network
# T4 / T1 above which samples pull one way: with batch norm Bjorck's convolutions stay below 0.1,
# linear layers, which have no positions over which terms could cancel, near 0.2.
ALIGNED = {"conv": 0.12, "linear": 0.4}
DEAD, MOSTLY_DEAD = 0.1, 0.5  # shares of the units of a layer
FULL = 0.25
FAVOURED = 0.9  # share of samples for which one class is predicted
CERTAIN = 2.0  # times chance: below that its output needs no pushing down
DOMINATED = 0.5  # share of the layers
ENOUGH = 32  # samples: of fewer, many units are dead and many answers agree by chance


def unjudged(results: dict[str, Any]) -> tuple[str, ...]:
    """What the samples that were looked at are too few to judge, in words."""
    seen = results["activations"].num_samples if "activations" in results else ENOUGH
    if seen >= ENOUGH:
        return ()
    return (
        f"Too few samples for a verdict on signals, dead units, a favoured class and the agreement "
        f"of gradients: {seen} of at least {ENOUGH}. A loader with larger batches gives one.",
    )


@rule("signal-growth", "activations", source=BJORCK2018, where="Fig. 3")
def growth(case: Case) -> Finding | None:
    """Activations that grow or vanish with depth."""
    if case["activations"].num_samples < ENOUGH:
        return None
    outputs = case.on_path(case["activations"].outputs)
    silent = _silent_end(outputs)
    if len(silent) > 1:  # a last layer that starts at zero is no trouble
        return problem(
            "No signal comes through a layer: its outputs are the same for all samples",
            (Evidence("layers whose outputs do not vary", len(silent), 0.0),),
            "All that stands behind it sees nothing of the inputs, and what stands before it gets "
            "no gradient.",
            "Look for dead units and for weights of zero in the layer before it.",
            layer=silent[0].name,
        )
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
        Evidence(
            "decades of variance gained over the depth", decades, GROWS if up else -GROWS, *ends
        ),
        Evidence("factor of the variance per layer", fit.factor),
    )
    clear = abs(fit.slope) > 2 * fit.error
    if not clear or abs(decades) < GROWS:
        meaning = "Signals neither explode nor die on the way."
        return ok("Activations keep their size over the depth", shown, meaning)
    at = fit.overflow_layer
    tail = f" Float32 overflows at about layer {at:.0f}." if up and math.isfinite(at) else ""
    fate = "die with it: training starts on a plateau."
    if up:
        fate = "grow with it, and the learning rate that the network bears shrinks likewise."
    grave = problem if up and at < 2 * depth else warning
    return grave(
        f"Activations {'grow' if up else 'vanish'} with depth",
        shown,
        f"The variance changes by a factor {fit.factor:.3g} per layer, 10^{decades:.1f} over "
        f"{depth} layers.{tail} The outputs and the gradients of all layers {fate}",
        "Add normalization to the hidden layers, or scale the initial weights by "
        f"{fit.factor**-0.5:.2g} (the transform 'scale-weights').",
    )


def _silent_end(outputs: list[ChannelStatistics]) -> list[ChannelStatistics]:
    """The last layers in a row whose outputs do not vary: skip connections lead past others."""
    ordered = sorted(outputs, key=lambda s: s.number)
    varying = [i for i, s in enumerate(ordered) if s.variance.any()]
    return ordered[varying[-1] + 1 if varying else 0 :]


@rule("input-independent-gradients", "gradients", source=BJORCK2018, where="Table 1")
def alignment(case: Case) -> Finding | None:
    """Gradients whose terms agree over samples and positions, in a network at its start."""
    layers = [x for x in case.hidden(case["gradients"].layers) if math.isfinite(x.alignment)]
    if not layers or not case.samples or case["gradients"].num_samples < ENOUGH or case.trained:
        return None
    random = 3 / math.sqrt(case.samples)  # terms of random sign reach 1 / sqrt(n)
    excess = [x.alignment / max(ALIGNED[x.kind], random) for x in layers]
    value = float(np.median(excess))
    middle = layers[int(np.argsort(excess)[len(excess) // 2])]
    name = "median over hidden layers of T4 / T1, against its line"
    shown = (
        Evidence(name, value, 1.0, min(excess), max(excess)),
        Evidence(f"T4 / T1 of {middle.name!r}", middle.alignment),
    )
    if value <= 1:
        meaning = "Terms of different samples and positions mostly cancel, as they should."
        return ok("Gradients depend on the input", shown, meaning)
    return warning(
        "Gradients hardly depend on the input",
        shown,
        "All samples pull the weights the same way: the network first learns a shift of its "
        "outputs, and its gradients are as large as they can be.",
        ("L" if case.normalized else "Normalize the hidden layers, or l")
        + "ower the learning rate for the first steps (warm-up).",
    )


@rule("dead-units", "activations", source=HUANG2020, where="Fig. XIII")
def dead_units(case: Case) -> Finding | None:
    """Rectified units that never, or always, let a signal pass."""
    rectified = case.on_path(case["activations"].rectified)  # gates are thin, and often shut
    if not rectified or case["activations"].num_samples < ENOUGH:
        return None
    dead = {s.name: float(s.dying.mean()) for s in rectified}
    full = {s.name: float(s.full.mean()) for s in rectified}
    worst, fullest = max(dead, key=dead.__getitem__), max(full, key=full.__getitem__)
    shown = (
        Evidence("largest share of dead units in a layer", dead[worst], DEAD),
        Evidence("largest share of always active units", full[fullest], FULL),
    )
    if dead[worst] >= DEAD:
        grave = problem if dead[worst] >= MOSTLY_DEAD else warning
        return grave(
            f"{dead[worst]:.0%} of the units of a layer are dead",
            shown,
            "They give zero for every sample, so that they neither carry a signal nor learn.",
            ("U" if case.normalized else "Normalize before the rectifier, u")
            + "se a leaky rectifier, or lower the learning rate that killed them.",
            layer=worst,
        )
    if full[fullest] >= FULL:
        return note(
            f"{full[fullest]:.0%} of the units of a layer are never rectified",
            shown,
            "They are positive for every sample: the rectifier does nothing there, and the layer "
            "acts linearly.",
            "Centre the signals before the rectifier, for example by batch norm.",
            layer=fullest,
        )
    meaning = "Rectifiers act on nearly all units."
    return ok("Units are neither dead nor always active", shown, meaning)


@rule("favoured-class", "gradients", source=BJORCK2018, where="Fig. 4 and App. L")
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
        return ok("No class is favoured", shown, meaning)
    return note(
        f"Class {outputs.favoured} is predicted for {share:.0%} of the samples",
        shown,
        "The first steps are spent on pushing that one output down. Deep networks often start so, "
        "with batch norm too.",
        "Usually harmless; a smaller last layer (or zero initial weights there) avoids it.",
    )


@rule("weight-domination", "gradients", source=HUANG2020, where="Sec. on weight domination")
def weight_domination(case: Case) -> Finding | None:
    """Layers whose gradient is tiny against their weight, while there is something to learn."""
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
        meaning = "A step changes the layers noticeably."
        return ok("Gradients are not negligible beside the weights", shown, meaning)
    norms = "layout" in case and any(n.used for n in case["layout"].norms)
    return note(
        f"{value:.0%} of the layers hardly move: their weights dominate their gradients",
        shown,
        "A step changes them little."
        + (" Behind a norm, weights that grew large stay where they are." if norms else ""),
        "A larger learning rate"
        + (", or weight decay on the layers before norms," if norms else "")
        + " sets them free.",
        layer=worst.name,
    )
