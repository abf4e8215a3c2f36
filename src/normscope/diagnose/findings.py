"""From measurements to findings: every rule that can judge, most severe first."""

from __future__ import annotations

from typing import Any

from normscope.diagnose.rules import RULES, Case
from normscope.results import Evidence, Finding

ENOUGH = 0.25  # share of the parameters in layers that were looked at
# What people come for stands before what is as grave.
FIRST = ("recommended-lr", "lr-above-limit", "lr-above-threshold", "promising-change")


def findings_of(results: dict[str, Any], convention: dict[str, Any]) -> tuple[Finding, ...]:
    """All findings that ``results`` allow; a function of what an examination stores."""
    case = Case(results, convention)
    rules = [RULES[name] for name in RULES]
    judged = [(rule, finding) for rule in rules if (finding := rule.found(case)) is not None]
    found = [f for rule, f in judged if f.severity != "ok" or _covered(case, rule.needs)]
    return tuple(sorted(found, key=lambda f: (-f.rank, f.rule not in FIRST)))


def _covered(case: Case, needs: tuple[str, ...]) -> bool:
    """Whether what was looked at is enough to say that all is well."""
    seen = [case[need].coverage.parameters for need in needs if hasattr(case[need], "coverage")]
    return min(seen, default=1.0) >= ENOUGH


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
        for bound, what in ((limit.diverges, "diverges"), (limit.does_not_learn, "learns no more")):
            add("stability", f"{what} at", bound.lr, bound.low, bound.high)
    if "gradients" in results:
        numbers.append(Evidence("loss", results["gradients"].loss, source="gradients"))
    return tuple(numbers)
