"""Rules about the learning rate."""

from __future__ import annotations

import math
from functools import partial

from normscope.diagnose.rules.base import STARTED, Case, note, ok, problem, rule, warning
from normscope.refs import BJORCK2018, WEI2019
from normscope.results import Evidence, Finding
from normscope.results.stability import StabilityBound, StabilityLimit

FAR = 100.0  # times the threshold; of the networks in docs/results/advice.md none learned there


@rule("lr-above-threshold", "sharpness", source=WEI2019, where="Eq. (5), critical learning rate")
def above_threshold(case: Case) -> Finding | None:
    """Learning rate against 2 (1 + momentum) / lambda_max."""
    limit, low, high = case.threshold
    if case.lr is None or not limit > 0:
        return None
    name = "learning rate / (2 (1 + momentum) / lambda_max)"
    shown = (Evidence(name, case.lr / limit, 1.0, case.lr / high, case.lr / low),)
    title = f"The learning rate {case.lr:.3g} is {{}} the local threshold {limit:.3g}"
    if not case.lr > limit:
        meaning = "Gradient descent does not overshoot in the sharpest direction."
        return ok(title.format("below"), shown, meaning)
    meaning, advice = _beyond(case, limit)
    far = case.lr > FAR * limit and "stability" not in case
    grave, where = (warning, "far above") if far else (note, "above")
    meaning = f"In the sharpest direction a step overshoots. {meaning}"
    return grave(title.format(where), shown, meaning, advice)


def _beyond(case: Case, limit: float) -> tuple[str, str]:
    """What overshooting leads to, by trainings where there are any, and what to do."""
    assert case.lr is not None
    if "stability" in case:
        found: StabilityLimit = case["stability"]
        if case.lr <= min(found.diverges.low, found.does_not_learn.low):
            meaning = "Copies that were trained at such rates went unharmed."
            return meaning, "Nothing has to be done."
        if case.lr >= min(found.diverges.high, found.does_not_learn.high):
            return "Here trainings do not pass it unharmed.", _safe_rate(case)
    if case.lr > FAR * limit:
        return (
            "No network that we trained bore a rate so far above its threshold, but for those with "
            "normalized outputs.",
            "Find out what it bears: ns.suggest_lr, or preset='full'.",
        )
    return (
        "The loss may rise at first; training often passes this unharmed, because it moves to "
        "flatter places.",
        f"If the loss rises and stays up, begin with a learning rate below {limit:.3g} and raise "
        "it over some hundred steps.",
    )


@rule("lr-above-limit", "stability", source=BJORCK2018, where="Sec. 3 and App. J")
def above_limit(case: Case) -> Finding | None:
    """Learning rate against the bisected limits."""
    if case.lr is None:
        return None
    limit: StabilityLimit = case["stability"]
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
        grave, title = _verdict(case.lr, bound, verb, verbs)
        return grave(title, (_against(case.lr, bound),), _where(bound), _safe_rate(case))
    if not known:
        return None
    tighter = min(limit.diverges, limit.does_not_learn, key=lambda bound: bound.low)
    if _at_floor(case):  # it need not come any lower
        tighter = limit.diverges
    title = f"Training is stable at the learning rate {case.lr:.3g}"
    do = "do not diverge" if tighter is limit.diverges else "learn"
    meaning = f"Copies of the network {do} at this rate and at larger ones."
    return ok(title, (_against(case.lr, tighter),), meaning)


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
    """What to train with: the best rate of the race, else half of what copies bore."""
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
        "No smaller rate is known to help: see what the other findings say about signals and "
        "weights, and try what_if."
    )
