"""Rules about what trainings of copies have shown: a rate to train with, a change worth making."""

from __future__ import annotations

import math
from dataclasses import replace

from normscope.diagnose._race import RISES, WIDE
from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.refs import BJORCK2018, HUANG2020
from normscope.results import Evidence, Finding, LRAdvice, Variant, WhatIf
from normscope.train.stability.judge import late

NEAR = 1.5  # a learning rate that far outside the best ones of the race still counts as near
APART = 3.0  # factor by which curvature and measured limits differ that is spoken of


@rule("recommended-lr", "advice", source=BJORCK2018, where="Sec. 3, learning rates")
def recommended(case: Case) -> Finding | None:
    """The rate at which copies trained best, beside the one asked about."""
    advice = case["advice"]
    if not advice.settled:
        return None
    shown = Evidence("recommended learning rate", advice.lr, None, advice.low, advice.high)
    if case.trained and advice.race and (calm := _calm_rate(advice)) < advice.lr:
        return _to_train_on(case, calm, shown)
    if case.lr is not None and _near(case.lr, advice):
        title = f"The learning rate is near the best one, {advice.lr:.2g}"
        return ok(title, (shown,), advice.reason)
    wide = advice.high > WIDE * advice.low
    asked = "" if case.lr is None else f" instead of {case.lr:.2g}"
    title = f"Train with a learning rate of about {advice.lr:.2g}{asked}"
    around = f"; from {advice.low:.2g} to {advice.high:.2g} is almost as good" if wide else ""
    return note(title, (shown,), advice.reason, f"Set lr={advice.lr:.2g}{around}.")


def _to_train_on(case: Case, calm: float, shown: Evidence) -> Finding:
    """For a trained network: the rate that keeps what it has learned."""
    if case.lr is not None and case.lr <= calm:
        title = f"The learning rate is one to train on with, below {calm:.2g}"
        meaning = "At larger rates the loss of this trained network rises first."
        return ok(title, (shown,), meaning)
    title = f"To train on, keep the learning rate below {calm:.2g}"
    meaning = "The network is trained already; at larger rates its loss rises first, and it is "
    meaning += "trained anew."
    return note(title, (shown,), meaning, f"Set lr={calm:.2g} or lower.")


@rule("promising-change", "what_if", source=HUANG2020, where="Sec. on the last layer; Tables A, B")
def promising(case: Case) -> Finding | None:
    """The change with which copies of the network learned better, if there is one."""
    found = _with_race(case)
    best = found.best
    trained = [v for v in found.after if v.diverges is not None]
    if not trained:
        return None
    if (only := _first_to_learn(case)) is not None:
        reached = {", as it is": found.before, f" with {only.change!r}": only}
        return warning(
            f"It learns at no rate that was tried, and with {only.change!r} it does",
            tuple(Evidence(f"lowest loss reached{how}", v.reached) for how, v in reached.items()),
            "Copies were trained at many learning rates; as it is, none came below chance.",
            f"Try ns.apply_transform(model, {only.change!r}).",
        )
    if best is None:
        shown = (Evidence("changes tried", len(trained)),)
        meaning = f"Copies were changed and trained: {', '.join(v.change for v in trained)}."
        return ok("None of the changes tried lets it learn better", shown, meaning)
    before, (gain, low, high) = found.before.reached, found.limit_ratio(best)
    steps = found.convention.get("steps")
    within = f" in {steps} updates" if steps else ""
    known = [
        Evidence("lowest loss reached, after / before", best.reached / before, 1.0),
        Evidence("largest bearable learning rate, after / before", gain, 1.0, low, high),
        Evidence("lambda_max before / after", found.curvature_ratio(best)),
    ]
    rate = f" at up to {gain:.3g} times the learning rate" if low > 1 else ""
    return note(
        f"With {best.change!r} copies come to a loss of {best.reached:.3g} instead of "
        f"{before:.3g}{within}{rate}",
        tuple(item for item in known if math.isfinite(item.value)),
        "A copy with this change was trained beside the network as it is, at many rates."
        + _longer(case)
        + _other_story(found, best),
        f"Try ns.apply_transform(model, {best.change!r}), then suggest_lr again.",
    )


def _longer(case: Case) -> str:
    """What the network as it is comes to in the longer trainings of the race."""
    if "advice" not in case or not case["advice"].race:
        return ""
    sound = [t for t in case["advice"].race if not t.diverged]
    if not sound:
        return ""
    best = min(sound, key=lambda t: t.final)
    return f" As it is it comes to {best.final:.3g} in {best.updates} updates."


def _with_race(case: Case) -> WhatIf:
    """The changes, with the best that is known of the network as it is after as many updates."""
    found: WhatIf = case["what_if"]
    steps = found.convention.get("steps")
    if "advice" not in case or not steps:
        return found
    races = [t.losses for t in case["advice"].race if len(t.losses) > steps]
    ends = [float(losses[late(steps)].mean()) for losses in races]
    known = min([*ends, found.before.reached])
    return replace(found, variants=(replace(found.before, reached=known), *found.after))


def _other_story(found: WhatIf, best: Variant) -> str:
    """That curvature and trainings tell different stories, where they do."""
    if not found.disagreement(best) > APART:
        return ""
    promised = found.curvature_ratio(best)
    return (
        f" The curvature at the start alone would promise {promised:.2g} times the rate: it is not "
        "what limits training."
    )


def _calm_rate(advice: LRAdvice) -> float:
    """The largest rate of the race at which the loss never rose much; the smallest if none."""
    calm = [t.lr for t in advice.race if not t.diverged and t.losses.max() <= RISES * t.start]
    return max(calm) if calm else min(t.lr for t in advice.race)


def _near(lr: float, advice: LRAdvice) -> bool:
    """Whether trainings at ``lr`` should end about as well, and it is below what copies bore."""
    borne = min(advice.bound(name).low for name in ("diverges", "does-not-learn"))
    known = borne > 0  # NaN or 0 where the search found no limit
    return advice.low / NEAR <= lr <= advice.high * NEAR and not (known and lr > borne)


def _first_to_learn(case: Case) -> Variant | None:
    """The change that reaches the lowest loss, if the network as it is learns at no rate."""
    found: WhatIf = case["what_if"]
    known = "advice" in case and any(trial.learned for trial in case["advice"].race)
    if found.before.learned or known or found.before.diverges is None:
        return None
    learning = [v for v in found.after if v.learned and v.reached < found.before.reached]
    return min(learning, key=lambda v: v.reached, default=None)
