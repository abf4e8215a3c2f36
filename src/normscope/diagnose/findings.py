"""From measurements to findings: every rule that can judge, most severe first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from normscope.diagnose.rules import RULES, Case
from normscope.diagnose.rules.base import ANY
from normscope.diagnose.rules.signals import too_few
from normscope.messages import counted, failure
from normscope.results import Evidence, Finding, Modes, Plan, Step, Trial
from normscope.results.base import digits
from normscope.results.finding import UNJUDGED

ENOUGH = 0.25  # share of the parameters in layers that were looked at
HALF = 0.5  # share of the parameters in layers that are known, without which nothing is judged


def findings_of(results: dict[str, Any], convention: dict[str, Any]) -> tuple[Finding, ...]:
    """All findings that ``results`` allow; a function of what an examination stores."""
    return judged(results, convention)[0]


def judged(
    results: dict[str, Any], convention: dict[str, Any]
) -> tuple[tuple[Finding, ...], list[str]]:
    """All findings that ``results`` allow, and a note for every rule that failed."""
    case, found, notes = Case(results, convention), [], []
    for name in RULES:
        try:
            finding = RULES[name].found(case)
            if finding and (finding.severity != "ok" or _covered(case, RULES[name].needs)):
                found.append(finding)
        except Exception as error:  # a rule must not cost what was measured
            notes.append(f"The check {name!r} failed and is left out: {failure(error)}")
    return decided(found, case.trial), notes


def decided(found: Iterable[Finding], trial: Trial | None) -> tuple[Finding, ...]:
    """What is reported of ``found``: what warns first, causes before what follows from them.

    Guesses are notes where the trial is clearly good; a note that explains why another rule warns
    is a warning; what another warning explains is left out.
    """
    ordered = sorted(found, key=_order)
    warn, kept = {f.rule for f in ordered if f.warns}, list[Finding]()
    clear = trial is not None and trial.clear
    for finding in ordered:
        rule = RULES[finding.rule]
        if rule.kind == "note" or (clear and rule.kind != "fact"):
            finding = _at_most_a_note(finding)  # noqa: PLW2901
        elif finding.severity == "note" and warn.intersection(rule.promoted_by):
            finding = replace(finding, severity="warning")  # noqa: PLW2901
        causes = {f.rule for f in kept if f.warns}
        explained = causes if ANY in rule.suppressed_by else causes.intersection(rule.suppressed_by)
        if finding.severity == "ok" or not explained:
            kept.append(finding)
    return tuple(sorted(kept, key=lambda f: (not f.warns, f.severity == "ok", _order(f))))


def _order(finding: Finding) -> float:
    return RULES[finding.rule].order


def _at_most_a_note(finding: Finding) -> Finding:
    return replace(finding, severity="note") if finding.warns else finding


def _covered(case: Case, needs: tuple[str, ...]) -> bool:
    """Whether what was looked at is enough to say that all is well."""
    seen = [case[need].coverage.parameters for need in needs if hasattr(case[need], "coverage")]
    return min(seen, default=1.0) >= ENOUGH


def not_judged(
    plan: Plan, results: dict[str, Any], findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """That the network could not be judged, with what is not covered and why; empty if it could."""
    why = [f"{s.name} {s.status}: {s.reason}" for s in plan.steps if s.status != "ok"]
    if plan.coverage < HALF:
        known = f"only {plan.coverage:.0%} of the parameters are in layers that are known"
        if "layout" in results:
            why = [line.strip() for line in results["layout"].coverage.summary().splitlines()[1:]]
        begin = "What was found rests on a small part of the network. Not covered:"
    elif not findings:
        known, begin = "no check could be made", "Nothing that the checks need was measured."
        why = [*too_few(results), *why]
    else:
        return ()
    share = Evidence("share of the parameters in known layers", plan.coverage, HALF)
    title, meaning = f"Could not judge: {known}", " ".join([begin, *why])
    return (Finding("coverage", UNJUDGED, title, (share,), meaning),)


def answer_of(
    findings: tuple[Finding, ...],
    results: dict[str, Any],
    lr: float | None,
    steps: tuple[Step, ...],
) -> str:
    """The first line: will it train at this rate, and if not, why?"""
    first = next((f for f in findings if f.warns), None)
    if first is not None:
        where = f" [{first.layer}]" if first.layer else ""
        worse = next((f for f in findings if f.severity == "problem" != first.severity), None)
        also = f" And a problem: {worse.title}." if worse is not None else ""
        return f"{first.severity.upper()}: {first.title}{where}.{also}"
    trial: Trial | None = results.get("trial")
    own = None if trial is None or not trial.learns else trial.own
    unjudged = next((f for f in findings if f.severity == UNJUDGED), None)
    if unjudged is not None:
        learns = " It learns in the trial." if own is not None else ""
        return f"COULD NOT JUDGE: {unjudged.title.partition(': ')[2]}.{learns}"
    fine, gone = sum(f.severity == "ok" for f in findings), sum(s.status != "ok" for s in steps)
    passed = f"{counted(fine, 'check')} passed{f', {gone} not possible' * (gone > 0)}."
    if trial is None or own is None:
        stable = next((f for f in findings if f.rule == "learning-rate"), None)
        if stable is not None and "stability" in results:
            return f"OK: {stable.title}; {passed}"
        made = next((s.reason for s in steps if s.name == "trial"), "")
        if trial is not None:
            made = trial.reason or "too few updates could be made to tell whether it learns"
        why = made.removeprefix("not judged: ") or "no trial was made"
        return f"COULD NOT JUDGE the learning rate: {why}; {passed}"
    rate = f"at lr {lr:.3g}" if lr is not None else f"with {trial.optimizer}"
    if trial.assumed is not None:
        rate = f"at {trial.optimizer} lr {trial.assumed:.3g} (no rate was given)"
    best = trial.rung(longest=True) or own
    shown = best if trial.gap_of(best) > trial.gap_of(own) else own
    ends = f"(constant prediction {digits(trial.constant)})" if trial.constant > 0 else ""
    if trial.trained:
        return (
            f"OK: trained already, loss {digits(trial.before)} {ends}".rstrip()
            + f"; {shown.updates} updates {rate} take it to {digits(shown.after)}; {passed}"
        )
    path = f"from {digits(trial.before)} to {digits(shown.after)} {ends}".rstrip()
    return f"OK: {shown.updates} updates {rate} take the loss {path}; {passed}"


def headline(results: dict[str, Any], convention: dict[str, Any]) -> tuple[Evidence, ...]:
    """The few numbers that one would want to see first."""
    numbers: list[Evidence] = []

    def add(source: str, quantity: str, value: float, low: float, high: float) -> None:
        numbers.append(Evidence(quantity, value, None, low, high, source))

    if "sharpness" in results:
        spectrum = results["sharpness"]
        top, bound = spectrum.largest, float(spectrum.bounds[0])
        of_loss = spectrum.convention.get("matrix", "").startswith("Hessian")
        matrix = "Hessian" if of_loss else "Gauss-Newton"
        add("sharpness", f"lambda_max of the loss ({matrix})", top, top - bound, top + bound)
        value, low, high = spectrum.lr_threshold(float(convention.get("momentum") or 0.0))
        if value > 0 and not convention.get("no_threshold"):
            add("sharpness", "local threshold of the learning rate", value, low, high)
    if "advice" in results and results["advice"].settled:
        advice = results["advice"]
        add("advice", "recommended learning rate", advice.lr, advice.low, advice.high)
    if "stability" in results:
        limit = results["stability"]
        for bound, what in (
            (limit.diverges, "diverges at"),
            (limit.does_not_learn, "stops learning above"),
        ):
            add("stability", what, bound.lr, bound.low, bound.high)
    if "modes" in results:
        numbers += _by_mode(results["modes"])
    if "gradients" in results:
        numbers.append(Evidence("loss", results["gradients"].loss, source="gradients"))
    return tuple(numbers)


def _by_mode(modes: Modes) -> list[Evidence]:
    """Both modes side by side where there is a batch norm, and the evaluation data."""
    found = []
    if modes.running is not None and (modes.norms or modes.coupled):
        found = [
            ("with batch statistics", modes.thawed or modes.batch),
            ("with running statistics", modes.running),
        ]
    if modes.eval_running is not None:
        found.append(("on eval_data", modes.eval_running))
    shown = [Evidence(f"loss {name}", score.loss, source="modes") for name, score in found]
    return shown + [
        Evidence(f"accuracy {name}", score.accuracy, source="modes")
        for name, score in found
        if not math.isnan(score.accuracy)
    ]
