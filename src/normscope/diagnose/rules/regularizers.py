"""Rules about weight decay and dropout that are too strong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscope.diagnose.rules.base import Case, ok, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.start import Start
from normscope.results.wiring import Wiring


@dataclass(frozen=True)
class DecayLimits:
    """Thresholds of ``weight-decay``.

    Attributes:
        step: learning rate x decay / (1 - momentum): what a step takes from the weights.
        pull: decay x norm(w) / norm(g), where the decay is part of the gradient, median.
        doubtful: the same where the trial is not clearly good.
    """

    step: float = 0.01
    pull: float = 10.0
    doubtful: float = 3.0


@rule("weight-decay", "wiring", order=6, kind="fact", limits=DecayLimits())
def weight_decay(case: Case, limits: DecayLimits) -> Finding | None:
    """Weights that shrink faster than they can learn."""
    found: Wiring = case["wiring"]
    held = found.optimizer
    decay = max(held.decays.values(), default=0.0)
    lr = case.lr if case.lr is not None else held.lr
    if not decay or lr is None:
        return None
    step = lr * decay / max(1 - held.momentum, 1e-3)
    shown = Evidence("learning rate x weight decay / (1 - momentum)", step, limits.step)
    advice = "Use a weight decay 10 to 1000 times smaller."
    if step > limits.step:
        return warning(
            title=f"Weight decay is too strong: each step shrinks the weights by {100 * step:.2g} "
            f"% (weight decay {decay:g})",
            evidence=(shown,),
            meaning="They shrink faster than they can learn.",
            advice=advice,
        )
    pulls = [p.decay * p.weight / p.gradient for p in found.parameters
             if p.decay > 0 and p.weight > 0 and p.gradient > 0]  # fmt: skip
    pull = float(np.median(pulls)) if pulls else 0.0
    line = limits.pull if case.clear else limits.doubtful
    drawn = Evidence("weight decay x norm(weight) / norm(gradient), median", pull, line)
    if held.coupled and case.untrained and pull > line:
        return warning(
            title=f"Weight decay is too strong: its pull is {pull:.1f} times the gradient of the "
            f"loss (weight decay {decay:g})",
            evidence=(drawn, shown),
            meaning="It is part of the gradient, and outweighs what the loss asks for.",
            advice=advice,
        )
    return ok(
        title="Weight decay is moderate",
        evidence=(shown,),
        meaning="The loss outweighs it.",
    )


@dataclass(frozen=True)
class DropoutLimits:
    """Thresholds of ``dropout``.

    Attributes:
        rate: a stock MobileNetV2 has 0.8 before its last layer.
    """

    rate: float = 0.85


@rule("dropout", "start", order=6, kind="fact", limits=DropoutLimits())
def dropout(case: Case, limits: DropoutLimits) -> Finding | None:
    """Hardly any unit left."""
    found: Start = case["start"]
    if not found.dropout:
        return None
    shown = (Evidence("largest rate of dropout", found.dropout, limits.rate),)
    if found.dropout < limits.rate:
        return ok(title="Dropout is moderate", evidence=shown, meaning="Most units take part.")
    return warning(
        title=f"Dropout is very strong (p = {found.dropout:g}): only "
        f"{100 * (1 - found.dropout):.0f} % of the units take part in a step",
        evidence=shown,
        meaning="What is left of the signal is mostly noise.",
        advice="Use p = 0.1 to 0.5.",
        layer=found.dropout_at,
    )
