"""Rules about the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

from normscope.diagnose.rules.base import Case, evidence, rule
from normscope.refs import BJORCK2018, WEI2019
from normscope.results import Finding


@rule("lr-above-threshold", "sharpness", source=WEI2019, where="Eq. (5), critical learning rate")
def above_threshold(case: Case) -> Iterator[Finding]:
    """Learning rate against 2 (1 + momentum) / lambda_max."""
    top, bound = case["sharpness"].largest, float(case["sharpness"].bounds[0])
    if case.lr is None or top <= 0 or case.config.get("no_threshold"):
        return
    limit = 2 * (1 + case.momentum) / top
    shown = evidence(
        "learning rate / (2 (1 + momentum) / lambda_max)",
        case.lr / limit,
        1.0,
        low=case.lr * (top - bound) / (2 * (1 + case.momentum)),
        high=case.lr * (top + bound) / (2 * (1 + case.momentum)),
        source="sharpness",
    )
    if case.lr > limit:
        yield Finding(
            "",
            "note",
            f"The learning rate {case.lr:.3g} is above the local threshold {limit:.3g}",
            (shown,),
            "In the sharpest direction a step overshoots. The loss may rise at first; training "
            "often passes this unharmed, because it moves to flatter places.",
            "If the loss rises and stays up, begin with a learning rate below "
            f"{limit:.2g} and raise it over some hundred steps.",
        )
    else:
        yield Finding(
            "",
            "ok",
            f"The learning rate {case.lr:.3g} is below the local threshold {limit:.3g}",
            (shown,),
            "Gradient descent does not overshoot in the sharpest direction.",
        )


@rule("lr-above-limit", "stability", source=BJORCK2018, where="Sec. 3 and App. J")
def above_limit(case: Case) -> Iterator[Finding]:
    """Learning rate against the bisected limits."""
    if case.lr is None:
        return
    limit = case["stability"]
    grave = limit.diverges.low > 0 and case.lr > limit.diverges.low
    deaf = limit.does_not_learn.low > 0 and case.lr > limit.does_not_learn.low
    bound = limit.diverges if grave else limit.does_not_learn
    shown = evidence(
        "learning rate / limit by bisection",
        case.lr / bound.low if bound.low > 0 else float("nan"),
        1.0,
        low=case.lr / bound.high,
        high=case.lr / bound.low if bound.low > 0 else float("nan"),
        source="stability",
    )
    if grave or deaf:
        what = "diverges" if grave else "does not learn"
        yield Finding(
            "",
            "problem",
            f"Training {what} at the learning rate {case.lr:.3g}",
            (shown,),
            f"Copies of the network were trained: the limit lies between {bound.low:.3g} and "
            f"{bound.high:.3g}, and this learning rate is above it.",
            f"Train with at most {0.5 * limit.does_not_learn.low:.2g}, half of the largest rate "
            "at which copies still learned.",
        )
    else:
        yield Finding(
            "",
            "ok",
            f"Training is stable at the learning rate {case.lr:.3g}",
            (shown,),
            "Copies of the network learn at this rate and at larger ones.",
        )
