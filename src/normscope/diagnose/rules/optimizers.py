"""Rules about settings of the optimizer that are hardly ever meant."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.diagnose.rules.base import Case, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.wiring import Held


@dataclass(frozen=True)
class MomentumLimits:
    """Thresholds of ``momentum``.

    Attributes:
        most: momentum of SGD, or Adam's beta_1: beyond it more than 100 updates are averaged.
        eps: that of Adam, from which on it warns unless the network clearly learns.
    """

    most: float = 0.99
    eps: float = 0.01


@rule("momentum", "wiring", order=5.9, kind="fact", limits=MomentumLimits())
def momentum(case: Case, limits: MomentumLimits) -> Finding | None:
    """Swapped betas, a large eps, and momentum over more updates than a trial makes."""
    held: Held = case["wiring"].optimizer
    first = held.betas[0] if held.betas else case.momentum
    shown = (Evidence("momentum (Adam: beta_1)", first, limits.most),)
    if len(held.betas) == 2 and first > held.betas[1]:
        return warning(
            title=f"The betas of {held.kind} look swapped: {held.betas}",
            evidence=shown,
            meaning="Its momentum is slow and the average of squared gradients is fast, so that "
            "steps are large and react late.",
            advice="Use betas=(0.9, 0.999).",
        )
    if held.betas and held.eps >= limits.eps and not case.clear:
        return warning(
            title=f"The eps of {held.kind} is {held.eps:g}: it outweighs the gradients, and steps "
            "are far smaller than the learning rate",
            evidence=(Evidence("eps of the optimizer", held.eps, limits.eps),),
            meaning="A step is the rate x gradient / (size of gradients + eps).",
            advice="Use eps=1e-8.",
        )
    if first <= limits.most:
        return None
    return warning(
        title=f"Momentum {first:g} averages over {1 / max(1 - first, 1e-6):.0f} updates: steps add "
        "up to far more than one, and react late",
        evidence=shown,
        meaning="A short trial may look good: the velocity still grows, and then carries the "
        "weights past every minimum.",
        advice="Use momentum 0.9, or a far smaller learning rate.",
    )


@rule("zero-rate", "wiring", order=2, kind="fact")
def zero_rate(case: Case) -> Finding | None:
    """Groups of the optimizer whose learning rate is 0."""
    held: Held = case["wiring"].optimizer
    if not held.still:
        return None
    return warning(
        title=f"The learning rate of {100 * held.still:.0f} % of the parameters is 0: they are "
        "never updated",
        evidence=(Evidence("share of the parameters with a learning rate of 0", held.still, 0.0),),
        meaning="A group of the optimizer has lr=0, and no schedule starts from it.",
        advice="Set the learning rate of every group, or freeze these parameters if that is meant.",
    )
