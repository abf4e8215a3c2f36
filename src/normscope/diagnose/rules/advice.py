"""Rules about what training runs on copies show: a rate to train with, a change to make."""

from __future__ import annotations

import math

from normscope.diagnose._race import RISES, WIDE, as_good
from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.diagnose.rules.rates import above_limit
from normscope.refs import BJORCK2018, HUANG2020
from normscope.results import Evidence, Finding, LRAdvice, StabilityTrial, Variant, WhatIf

NEAR = 1.5  # a learning rate that far outside the best ones of the race still counts as near
APART = 3.0  # factor by which curvature and measured limits differ that is spoken of


@rule("recommended-lr", "advice", order=7.5, kind="note", source=BJORCK2018, where="Sec. 2.1")
def recommended(case: Case) -> Finding | None:
    """The rate at which copies trained best, beside the one asked about."""
    advice = case["advice"]
    if not advice.settled:
        return None
    shown = Evidence("recommended learning rate", advice.lr, None, advice.low, advice.high)
    if case.trained and advice.race and (calm := _calm_rate(advice)) < advice.lr:
        return _to_train_on(case, calm, shown)
    if case.lr is None:
        return note(title=f"Train with a learning rate of about {advice.lr:.2g}", evidence=(shown,),
                    meaning=advice.reason, advice=_set(advice))  # fmt: skip
    if "stability" in case and (limit := above_limit(case)) is not None and limit.severity != "ok":
        return None  # which says so, and names the same rate
    pairs = _beside_best(case.lr, advice)
    said = "".join(
        f"At {case.lr:.2g} the mean loss over the second half is {own.score:.3g}, at "
        f"{best.lr:.2g} it is {best.score:.3g}. "
        for own, best in pairs[:1]
        if own.lr != best.lr
    )
    if all(as_good(*pair) for pair in pairs) and (pairs or _near(case.lr, advice)):
        title = f"The learning rate {case.lr:.2g} trains about as well as the best one tried"
        return ok(title=title, evidence=(shown,), meaning=f"{said}{advice.reason}")
    title = f"Train with a learning rate of about {advice.lr:.2g} instead of {case.lr:.2g}"
    return note(
        title=title, evidence=(shown,), meaning=f"{said}{advice.reason}", advice=_set(advice)
    )


def _set(advice: LRAdvice) -> str:
    wide = advice.high > WIDE * advice.low
    around = f"; from {advice.low:.2g} to {advice.high:.2g} is almost as good" if wide else ""
    return f"Set lr={advice.lr:.2g}{around}."


def _beside_best(lr: float, advice: LRAdvice) -> list[tuple[StabilityTrial, StabilityTrial]]:
    """The training runs at ``lr``, each with the best one of its order of the samples."""
    return [
        (own, min((t for t in advice.race if t.seed == own.seed), key=lambda t: t.score))
        for own in advice.race
        if own.lr == lr
    ]


def _to_train_on(case: Case, calm: float, shown: Evidence) -> Finding:
    """For a trained network: the rate that keeps what it has learned."""
    if case.lr is not None and case.lr <= calm:
        title = f"The learning rate is suitable for continuing training: it is below {calm:.2g}"
        meaning = "At larger rates the loss of this trained network rises first."
        return ok(title=title, evidence=(shown,), meaning=meaning)
    title = f"To continue training, keep the learning rate below {calm:.2g}"
    meaning = "The network is already trained. At larger rates its loss rises first, and it "
    meaning += "loses what it has learned."
    return note(
        title=title, evidence=(shown,), meaning=meaning, advice=f"Set lr={calm:.2g} or lower."
    )


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


def _calm_rate(advice: LRAdvice) -> float:
    """The largest rate of the race at which the loss never rose much; the smallest if none."""
    calm = [t.lr for t in advice.race if not t.diverged and t.losses.max() <= RISES * t.start]
    return max(calm) if calm else min(t.lr for t in advice.race)


def _near(lr: float, advice: LRAdvice) -> bool:
    """Whether training at ``lr`` should end about as well, at a rate where copies are stable."""
    stable = min(advice.bound(name).low for name in ("diverges", "does-not-learn"))
    known = stable > 0  # NaN or 0 where the search found no limit
    return advice.low / NEAR <= lr <= advice.high * NEAR and not (known and lr > stable)
