"""The rule about what training runs on changed copies show."""

from __future__ import annotations

import math

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import HUANG2020
from normscope.results import Evidence, Finding, Variant, WhatIf

APART = 3.0  # factor by which curvature and measured limits differ that is spoken of


@rule(
    "promising-change",
    "what_if",
    order=8,
    kind="fact",
    source=HUANG2020,
    where="Supplement D.3, Tables A and B",
)
def promising(case: Case) -> Finding | None:
    """The change with which copies of the network learned better, if there is one."""
    found: WhatIf = case["what_if"]
    best = found.best
    trained = [v for v in found.after if not math.isnan(found.loss_ratio(v)[0])]
    if not trained:
        return None
    if best is None:
        shown = (Evidence("changes tried", len(trained)),)
        meaning = f"Copies were changed and trained: {', '.join(v.change for v in trained)}."
        return ok(
            title="None of the changes tried lets it learn better", evidence=shown, meaning=meaning
        )
    loss, rate = found.loss_ratio(best), found.limit_ratio(best)
    known = [
        Evidence("lowest loss reached, after / before", loss[0], 1.0, *loss[1:]),
        Evidence("largest stable learning rate, after / before", rate[0], 1.0, *rate[1:]),
        Evidence("lambda_max before / after", found.curvature_ratio(best)),
    ]
    steps = found.convention.get("steps")
    meaning = f"Copies with and without it were trained for {steps} updates, each at "
    meaning += f"its best rate.{_other_story(found, best)}"
    evidence = tuple(item for item in known if math.isfinite(item.value))
    advice = f"Try ns.apply_transform(model, {best.change!r}), then suggest_lr again."
    if not (found.before.learned or _learned_in_race(case)):
        title = f"It does not learn at any rate tried; with {best.change!r} it does: "
        return warning(
            title=f"{title}{found.gain_in_words(best)}",
            evidence=evidence,
            meaning=meaning,
            advice=advice,
        )
    title = f"With {best.change!r} {found.gain_in_words(best)}"
    return note(title=title, evidence=evidence, meaning=meaning, advice=advice)


def _learned_in_race(case: Case) -> bool:
    return "advice" in case and any(trial.learned for trial in case["advice"].race)


def _other_story(found: WhatIf, best: Variant) -> str:
    """What to say where curvature and training runs disagree."""
    if not found.disagreement(best) > APART:
        return ""
    promised = found.curvature_ratio(best)
    return (
        f" The curvature at the start alone would allow {promised:.2g} times the rate: it is not "
        "what limits training."
    )
