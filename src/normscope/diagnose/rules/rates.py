"""Rules about the learning rate."""

from __future__ import annotations

import math
from functools import partial

from normscope.diagnose.rules.base import STARTED, Case, note, ok, problem, rule, warning
from normscope.refs import BJORCK2018, WEI2019
from normscope.results import Evidence, Finding
from normscope.results.stability import StabilityBound, StabilityLimit

FAR = 100.0  # times the threshold; of the networks in docs/results/advice.md none learned there


@rule(
    "lr-above-threshold",
    "sharpness",
    order=7,
    kind="fact",
    source=WEI2019,
    where="Eq. (7), critical learning rate",
)
def above_threshold(case: Case) -> Finding | None:
    """Learning rate against 2 (1 + momentum) / lambda_max; above it a few updates decide."""
    limit, low, high = case.threshold
    if case.lr is None or not limit > 0:
        return None
    if "stability" in case and above_limit(case) is not None:
        return None  # training runs have decided
    name = "learning rate / (2 (1 + momentum) / lambda_max)"
    shown = (Evidence(name, case.lr / limit, 1.0, case.lr / high, case.lr / low),)
    title = f"The learning rate {case.lr:.3g} is {{}} the local threshold {limit:.3g}"
    if not case.lr > limit:
        meaning = "Gradient descent does not overshoot in the sharpest direction."
        return ok(title=title.format("below"), evidence=shown, meaning=meaning)
    meaning = "In the sharpest direction a step overshoots. "
    outcome, _, words = str(case.convention.get("trial") or "").partition(": ")
    lower = f"Use a learning rate below {limit:.3g}, or find the best one with ns.suggest_lr."
    if outcome == "diverged":
        title = f"Training diverges at the learning rate {case.lr:.3g}"
        return problem(title=title, evidence=shown, meaning=f"{meaning}{words}", advice=lower)
    if outcome == "rose":
        title = f"The loss rises at the learning rate {case.lr:.3g}"
        return warning(title=title, evidence=shown, meaning=f"{meaning}{words}", advice=lower)
    if outcome:
        advice = "No action needed unless the loss rises later."
        return note(
            title=title.format("above"), evidence=shown, meaning=f"{meaning}{words}", advice=advice
        )
    far = case.lr > FAR * limit
    meaning += "The curvature alone does not tell whether training diverges. With momentum it "
    meaning += "often does at a few times the threshold."
    advice = "Find out with ns.suggest_lr, or preset='full'."
    if "stability" in case:
        advice = "The search for the limit was cut short: allow more time."
    severity, title = warning if far else note, title.format("far above" if far else "above")
    return severity(title=title, evidence=shown, meaning=meaning, advice=advice)


@rule(
    "lr-above-limit",
    "stability",
    order=7,
    kind="fact",
    source=BJORCK2018,
    where="Sec. 3.4 and App. J",
)
def above_limit(case: Case) -> Finding | None:
    """Learning rate against the bisected limits."""
    if case.lr is None:
        return None
    limit: StabilityLimit = case["stability"]
    race = case["advice"].race if "advice" in case else ()
    for trial in (t for t in race if t.lr == case.lr and t.diverged):
        title = f"Training diverges at the learning rate {case.lr:.3g}"
        meaning = f"A copy of the network diverged after {trial.updates} updates."
        return problem(
            title=title,
            evidence=(_against(case.lr, limit.diverges),),
            meaning=meaning,
            advice=_safe_rate(case),
        )
    known = True
    for bound, verb, verbs in (
        (limit.diverges, "diverge", "diverges"),
        (limit.does_not_learn, "not learn", "does not learn"),
    ):
        if case.lr <= bound.low or (bound is limit.does_not_learn and _at_floor(case)):
            continue
        if bound.high == math.inf:  # no failure was seen, and none looked for at such rates
            known = False
            continue
        severity, title = _verdict(case.lr, bound, verb, verbs)
        return severity(
            title=title,
            evidence=(_against(case.lr, bound),),
            meaning=_where(bound),
            advice=_safe_rate(case),
        )
    if not known:
        return None
    tighter = min(limit.diverges, limit.does_not_learn, key=lambda bound: bound.low)
    if _at_floor(case):  # it need not come any lower
        tighter = limit.diverges
    title = f"Training is stable at the learning rate {case.lr:.3g}"
    do = "do not diverge" if tighter is limit.diverges else "learn"
    meaning = f"Copies of the network {do} at this rate and at larger ones."
    return ok(title=title, evidence=(_against(case.lr, tighter),), meaning=meaning)


def _at_floor(case: Case) -> bool:
    """Whether the network has learned what there is: no training need come lower."""
    starts = [(t.start, t.chance) for t in case["stability"].trials]
    return case.trained or any(start < STARTED * chance for start, chance in starts)


def _verdict(
    lr: float, bound: StabilityBound, verb: str, verbs: str
) -> tuple[partial[Finding], str]:
    """Severity and title for a rate that is not below the limit for certain."""
    if lr >= bound.high:
        return problem, f"Training {verbs} at the learning rate {lr:.3g}"
    if bound.low > 0:
        return warning, f"Training may {verb} at the learning rate {lr:.3g}"
    return problem, f"Training {verbs} at any learning rate that was tried"


def _where(bound: StabilityBound) -> str:
    if bound.low > 0:
        ends = f"{bound.low:.3g} and {bound.high:.3g}"
        return f"Copies of the network were trained: the limit lies between {ends}."
    return "Copies of the network were trained, at many rates: all failed."


def _against(lr: float, bound: StabilityBound) -> Evidence:
    """The rate in units of the limit, or of the end of it that is known."""
    if bound.closed:
        name, ends = "learning rate / limit by bisection", (lr / bound.high, lr / bound.low)
        return Evidence(name, lr / bound.lr, 1.0, *ends)
    known = "largest rate that passed" if bound.low > 0 else "a rate that failed"
    return Evidence(f"learning rate / {known}", lr / (bound.low or bound.high), 1.0)


def _safe_rate(case: Case) -> str:
    """What to train with: the best rate of the race, else half of the largest stable rate."""
    if "advice" in case and case["advice"].settled:
        return f"Train with about {case['advice'].lr:.2g}, at which copies trained best."
    limit: StabilityLimit = case["stability"]
    for bound, what in ((limit.does_not_learn, "learned"), (limit.diverges, "did not diverge")):
        if bound.low > 0:
            rate = 0.5 * min(bound.low, limit.diverges.low)
            return (
                f"Train with at most {rate:.2g}, half of the largest rate at which copies {what}."
            )
    return (
        "No smaller rate is known to help. See the findings about signals and weights, and try "
        "what_if."
    )
