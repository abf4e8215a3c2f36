"""The one rule on the user's learning rate, and the one for networks that do not learn.

Trials, training runs, thresholds and theory are evidence. What trained longest counts most: the
race, then the trial with the user's own optimizer, then the bisection, and curvature last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose._race import RISES, WIDE, as_good
from normscope.diagnose.rules.base import ANY, STARTED, Case, note, ok, problem, rule, warning
from normscope.messages import counted
from normscope.refs import BJORCK2018
from normscope.results import Evidence, Finding, LRAdvice, Rung, StabilityTrial, Trial
from normscope.results.base import digits
from normscope.results.stability import StabilityBound, StabilityLimit


@dataclass(frozen=True)
class RateLimits:
    """Thresholds of the rule on the learning rate; shares are of the best constant's loss.

    Attributes:
        apart: how much lower a smaller rate must end for this one to be too large.
        apart_later: the same after 25 updates, where 100 updates then show ``apart``.
        learns: how far below the reference the smaller rate must end.
        keeps: how much a trained network may lose at the smaller rate.
        rises: times the start, to which the loss must not come back.
        jump: times the start, to which the loss must not jump on the way.
        quiet: times the start, below which it stays at a smaller rate.
        few: samples in a batch, below which its loss jumps by chance.
        stands: share of the loss below which a fall is none.
        larger: times the rate, from where on a better rate is much larger.
        momentum: from here on momentum alone can be too much.
        far: times 2 (1 + momentum) / lambda_max, where nothing else is known.
        near: a rate that far outside the best ones of the race still counts as near.
    """

    apart: float = 0.10
    apart_later: float = 0.03
    learns: float = 0.02
    keeps: float = 0.05
    rises: float = 2.0
    jump: float = 2.0
    quiet: float = 1.2
    few: int = 8
    stands: float = 0.02
    larger: float = 10.0
    momentum: float = 0.98
    far: float = 100.0
    near: float = 1.5


@rule(
    "learning-rate", order=7, kind="fact", source=BJORCK2018, where="Secs. 2.1 and 3.4",
    limits=RateLimits(),
)  # fmt: skip
def learning_rate(case: Case, limits: RateLimits) -> Finding | None:
    """Whether the rate asked about trains, and which one to use."""
    if case.lr is None:
        return _best_rate(case)
    lr = f"{case.lr:.3g}"
    race = case["advice"].race if "advice" in case else ()
    gone = next((run for run in race if run.lr == case.lr and run.diverged), None)
    if gone is not None:
        title = f"Training diverges at the learning rate {lr}: the loss of a copy blows up after "
        return problem(
            title=title + counted(gone.updates, "update"),
            evidence=_evidence(case),
            meaning="Copies were trained at several rates.",
            advice=_use(case),
        )
    if not _as_good_in_race(case):
        for judge in (_trial_fails, _bisection_fails):
            if (found := judge(case, limits)) is not None:
                return found
    return _trains(case, limits) or _by_curvature(case, limits)


def _trial_fails(case: Case, limits: RateLimits) -> Finding | None:
    """What the trial says against the rate; None if nothing, or if there is none."""
    trial = case.trial
    if trial is None or not trial.judged or trial.own is None:
        return None
    if (lower := _too_large(trial, limits)) is not None:
        longest = trial.rung(longest=True)
        own = longest if longest and longest.steps == lower.steps else trial.own
        severity = warning if trial.learns else problem
        return severity(
            title=f"The learning rate {case.lr:.3g} is too large: {_take(own)} the "
            f"loss from {digits(trial.before)} to {_end(own)}; at a rate "
            f"{1 / lower.factor:.0f} times smaller, {counted(lower.updates, 'update')} take it to "
            f"{digits(lower.after)}",
            evidence=_evidence(case),
            meaning=_tried_in_words(trial),
            advice=_use(case, lower.factor),
        )
    high = trial.before + (limits.rises - 1) * abs(trial.before) + limits.apart * trial.scale
    if trial.diverged or trial.own.after > high:
        lower_ones = [r for r in trial.rungs if r.factor < 1]
        also = "; smaller rates do not train either" if lower_ones else ""
        return problem(
            title=f"Training diverges at the learning rate {case.lr:.3g}: {_take(trial.own)} "
            f"the loss from {digits(trial.before)} to {_end(trial.own)}{also}",
            evidence=_evidence(case),
            meaning=_tried_in_words(trial),
            advice="Use a much smaller learning rate, and see the other findings."
            if also
            else _use(case, 0.1),
        )
    if case.samples >= limits.few and _jumps(trial, limits):
        peak = max(trial.own.path)
        return warning(
            title=f"The learning rate {case.lr:.3g} is too large: the loss jumps from "
            f"{digits(trial.before)} to {digits(peak)} within {trial.own.updates} updates, and not "
            "at a rate 10 times smaller",
            evidence=_evidence(case),
            meaning=_tried_in_words(trial),
            advice=_use(case, 0.1),
        )
    if (upper := _much_larger(trial, limits)) is not None:
        return warning(
            title=f"The learning rate {case.lr:.3g} is too small: {trial.own.updates} updates "
            f"change the loss by {abs(trial.fall):.1%}; at a rate "
            f"{upper.factor:g} times larger it falls from {digits(trial.before)} to "
            f"{digits(upper.after)}",
            evidence=_evidence(case),
            meaning=_tried_in_words(trial),
            advice=_use(case, upper.factor),
        )
    if case.momentum >= limits.momentum and not trial.clear:
        times = 1 / max(1 - case.momentum, 1e-6)
        return warning(
            title=f"Momentum {case.momentum:g} multiplies the learning rate {case.lr:.3g} by "
            f"{times:.0f}: steps are too large, and react late",
            evidence=_evidence(case),
            meaning=_tried_in_words(trial),
            advice="Use momentum 0.9.",
        )
    return None


def _too_large(trial: Trial, limits: RateLimits) -> Rung | None:
    """The trial at a smaller rate that ends clearly lower; None if there is none."""
    lower, own = trial.best_lower, trial.own
    assert own is not None
    if lower is None or not math.isfinite(lower.after):
        return None
    ends = own.after if math.isfinite(own.after) else math.inf
    goal = min(lower.after, trial.before) if trial.trained else lower.after
    scale = trial.scale if trial.trained else min(trial.scale, max(3 * abs(trial.before), 1e-12))
    learns = (
        lower.after < trial.reference - limits.learns * abs(trial.reference)
        or (trial.trained and lower.after < trial.before + limits.keeps * trial.scale)
        or lower.after < trial.before - 0.5 * abs(trial.before)
    )
    if ends - goal > limits.apart * scale and learns:
        return lower
    longer, below = trial.rung(longest=True), _long_lower(trial)
    if longer is None or below is None or below.after > _line(trial, limits):
        return None
    if longer is own:  # which failed, so that no longer one was needed
        return below if trial.own_rises else None
    apart = (longer.after if math.isfinite(longer.after) else math.inf) - below.after
    clear = ends - lower.after > limits.apart_later * scale and apart > limits.apart * trial.scale
    stuck = not trial.learns and apart > limits.keeps * trial.scale
    return below if clear or stuck else None


def _line(trial: Trial, limits: RateLimits) -> float:
    """The loss below which a trial at another rate learns."""
    return trial.reference - limits.apart_later * abs(trial.reference)


def _long_lower(trial: Trial) -> Rung | None:
    """The longer trial at a smaller rate."""
    assert trial.own is not None
    found = [r for r in trial.rungs if r.factor < 1 and r.steps > trial.own.steps]
    return min(found, key=lambda r: r.after, default=None)


def _jumps(trial: Trial, limits: RateLimits) -> bool:
    """Whether the loss leaves its start on the way, and not at a tenth of the rate."""
    tenth, own = trial.rung(0.1), trial.own
    if tenth is None or own is None or trial.clear or trial.trained:
        return False
    if min(len(own.path), len(tenth.path)) < 3 or not 0 < trial.before <= 2 * trial.scale:
        return False
    high = max(own.path[1:]) > limits.jump * trial.before
    return high and max(tenth.path[1:]) < limits.quiet * trial.before


def _much_larger(trial: Trial, limits: RateLimits) -> Rung | None:
    """The trial at a much larger rate that learns where this one stands still."""
    still = abs(trial.fall) < limits.stands or not trial.learns
    line = _line(trial, limits)
    good = [r for r in trial.rungs if r.factor >= limits.larger and r.after < line]
    if not good or not still or trial.trained or trial.clear:
        return None
    return min(good, key=lambda r: r.after)


def _bisection_fails(case: Case, limits: RateLimits) -> Finding | None:
    """What the bisected limits say against the rate."""
    if "stability" not in case or case.lr is None:
        return None
    limit: StabilityLimit = case["stability"]
    for bound, verb, verbs in (
        (limit.diverges, "diverge", "diverges"),
        (limit.does_not_learn, "not learn", "does not learn"),
    ):
        learns = bound is limit.does_not_learn and (_at_floor(case) or case.clear)
        if case.lr <= bound.low or learns or bound.high == math.inf:
            continue
        severity, title = problem, f"Training {verbs} at any learning rate that was tried"
        if case.lr >= bound.high:
            title = f"Training {verbs} at the learning rate {case.lr:.3g}"
        elif bound.low > 0:
            severity, title = warning, f"Training may {verb} at the learning rate {case.lr:.3g}"
        where = "Copies of the network were trained, at many rates: all failed."
        if bound.low > 0:
            where = "Copies of the network were trained: the limit lies between "
            where += f"{bound.low:.3g} and {bound.high:.3g}."
        return severity(
            title=title, evidence=_evidence(case, bound), meaning=where, advice=_use(case)
        )
    return None


def _trains(case: Case, limits: RateLimits) -> Finding | None:
    """That the rate trains, and whether another one trains better; None if nothing tells."""
    assert case.lr is not None
    advice = case["advice"] if "advice" in case and case["advice"].settled else None
    if advice is not None and case.trained and advice.race and _calm_rate(advice) < advice.lr:
        return _to_train_on(case, advice)
    if advice is not None:
        said = _beside_best_in_words(case)
        if _near_best(case, advice, limits):
            title = f"The learning rate {case.lr:.2g} trains about as well as the best one tried"
            return ok(title=title, evidence=_evidence(case), meaning=f"{said}{advice.reason}")
        return note(
            title=f"Train with a learning rate of about {advice.lr:.2g} instead of {case.lr:.2g}",
            evidence=_evidence(case),
            meaning=f"{said}{advice.reason}",
            advice=_use(case),
        )
    if "stability" in case and (known := _stable(case)) is not None:
        return known
    if not case.learns or case.trial is None or case.trial.own is None:
        return None
    own = case.trial.own
    return ok(
        title=f"The network learns at the learning rate {case.lr:.3g}",
        evidence=_evidence(case),
        meaning=f"{own.updates} updates of a copy take the loss from {case.trial.before:.3g} to "
        f"{digits(own.after)}.",
    )


def _stable(case: Case) -> Finding | None:
    """That both limits are known to be above the rate."""
    limit: StabilityLimit = case["stability"]
    floor = _at_floor(case) or case.clear
    bounds = [limit.diverges] if floor else [limit.diverges, limit.does_not_learn]
    if case.lr is None or any(case.lr > bound.low for bound in bounds):
        return None
    tighter = min(bounds, key=lambda bound: bound.low)
    do = "do not diverge" if tighter is limit.diverges else "learn"
    return ok(
        title=f"Training is stable at the learning rate {case.lr:.3g}",
        evidence=_evidence(case, tighter),
        meaning=f"Copies of the network {do} at this rate and at larger ones.",
    )


def _by_curvature(case: Case, limits: RateLimits) -> Finding | None:
    """Where nothing was trained: only a rate above the threshold says something."""
    limit, _, _ = case.threshold
    if case.lr is None or not case.lr > limit or case.learns:
        return None
    far = case.lr > limits.far * limit
    advice = "Find out with ns.suggest_lr, or preset='full'."
    if "stability" in case:
        advice = "The search for the limit was cut short: allow more time."
    return (warning if far else note)(
        title=f"The learning rate {case.lr:.3g} is {'far ' * far}above the local threshold "
        f"{limit:.3g}",
        evidence=_evidence(case),
        meaning="In the sharpest direction a step overshoots. The curvature alone does not tell "
        "whether training diverges. With momentum it often does at a few times the threshold.",
        advice=advice,
    )


def _at_floor(case: Case) -> bool:
    """Whether the network has learned what there is: no training need come lower."""
    starts = [(t.start, t.chance) for t in case["stability"].trials]
    return case.trained or any(start < STARTED * chance for start, chance in starts)


def _best_rate(case: Case) -> Finding | None:
    """The rate at which copies trained best, where none was asked about."""
    if "advice" not in case or not case["advice"].settled:
        return None
    advice = case["advice"]
    if case.trained and advice.race and _calm_rate(advice) < advice.lr:
        return _to_train_on(case, advice)
    return note(
        title=f"Train with a learning rate of about {advice.lr:.2g}",
        evidence=_evidence(case),
        meaning=advice.reason,
        advice=_use(case),
    )


def _to_train_on(case: Case, advice: LRAdvice) -> Finding:
    """For a trained network: the rate that keeps what it has learned."""
    calm, shown = _calm_rate(advice), _evidence(case)
    if case.lr is not None and case.lr <= calm:
        return ok(
            title=f"The learning rate is suitable for continuing training: it is below {calm:.2g}",
            evidence=shown,
            meaning="At larger rates the loss of this trained network rises first.",
        )
    return note(
        title=f"To continue training, keep the learning rate below {calm:.2g}",
        evidence=shown,
        meaning="The network is already trained. At larger rates its loss rises first, and it "
        "loses what it has learned.",
        advice=f"Set lr={calm:.2g} or lower.",
    )


def _calm_rate(advice: LRAdvice) -> float:
    """The largest rate of the race at which the loss never rose much; the smallest if none."""
    calm = [t.lr for t in advice.race if not t.diverged and t.losses.max() <= RISES * t.start]
    return max(calm) if calm else min(t.lr for t in advice.race)


def _beside_best(case: Case) -> list[tuple[StabilityTrial, StabilityTrial]]:
    """The training runs at the user's rate, each with the best one of its order of the samples."""
    race = case["advice"].race if "advice" in case else ()
    return [
        (own, min((t for t in race if t.seed == own.seed), key=lambda t: t.score))
        for own in race
        if own.lr == case.lr
    ]


def _as_good_in_race(case: Case) -> bool:
    pairs = _beside_best(case)
    return bool(pairs) and all(as_good(*pair) for pair in pairs)


def _near_best(case: Case, advice: LRAdvice, limits: RateLimits) -> bool:
    """Whether the user's rate trained about as well as the best, or should by where it lies."""
    if _beside_best(case):
        return _as_good_in_race(case)
    assert case.lr is not None
    stable = min(advice.bound(name).low for name in ("diverges", "does-not-learn"))
    beyond = stable > 0 and case.lr > stable  # NaN or 0 where the search found no limit
    return advice.low / limits.near <= case.lr <= advice.high * limits.near and not beyond


def _beside_best_in_words(case: Case) -> str:
    return "".join(
        f"At {own.lr:.2g} the mean loss over the second half is {own.score:.3g}, at {best.lr:.2g} "
        f"it is {best.score:.3g}. "
        for own, best in _beside_best(case)[:1]
        if own.lr != best.lr
    )


def _use(case: Case, factor: float = math.nan) -> str:
    """The one rate that is recommended: of the race, of the bisection, or of the trial."""
    if "advice" in case and case["advice"].settled:
        advice: LRAdvice = case["advice"]
        wide = advice.high > WIDE * advice.low
        around = f"; from {advice.low:.2g} to {advice.high:.2g} is almost as good" if wide else ""
        return f"Use a learning rate of about {advice.lr:.2g}{around}."
    if "stability" in case:
        limit: StabilityLimit = case["stability"]
        for bound, what in ((limit.does_not_learn, "learned"), (limit.diverges, "did not diverge")):
            if bound.low > 0:
                rate = 0.5 * min(bound.low, limit.diverges.low)
                return (
                    f"Use a learning rate of at most {rate:.2g}, half of the largest one at which "
                    f"copies {what}."
                )
        return (
            "No smaller rate is known to help. See the findings about signals and weights, and "
            "try what_if."
        )
    assert case.lr is not None
    return f"Use a learning rate of about {case.lr * factor:.2g}."


def _take(rung: Rung) -> str:
    """How a sentence on its loss begins."""
    return f"{counted(rung.updates, 'update')} take{'s' * (rung.updates == 1)}"


def _end(rung: Rung) -> str:
    """The last loss of a trial in words."""
    return digits(rung.after) if math.isfinite(rung.after) else "NaN or infinity"


def _tried_in_words(trial: Trial) -> str:
    """All trials in one sentence."""
    parts = [
        f"{_end(r)} after {counted(r.updates, 'update')} at "
        + ("your rate" if r.factor == 1 else f"{r.factor:g} times your rate")
        for r in trial.rungs
    ]
    return f"Copies were trained from a loss of {digits(trial.before)}: {'; '.join(parts)}."


def _evidence(case: Case, bound: StabilityBound | None = None) -> tuple[Evidence, ...]:
    """All that is known of the rate: trial, bisection, race, curvature."""
    shown: list[Evidence] = []
    trial, lr = case.trial, case.lr
    if trial is not None and trial.judged and trial.own is not None and trial.assumed is None:
        line = trial.reference if math.isfinite(trial.reference) else None
        name = f"loss after {counted(trial.own.updates, 'update')} at this rate"
        shown.append(Evidence(name, trial.own.after, line, source="trial"))
    if bound is not None and lr is not None:
        shown.insert(0, _against(lr, bound))
    elif "stability" in case and lr is not None and math.isfinite(case["stability"].diverges.low):
        shown.append(_against(lr, case["stability"].diverges))
    if "advice" in case and case["advice"].settled:
        advice = case["advice"]
        name = "recommended learning rate"
        shown.append(Evidence(name, advice.lr, None, advice.low, advice.high, "advice"))
    limit, low, high = case.threshold
    if lr is not None and limit > 0:
        name = "learning rate / (2 (1 + momentum) / lambda_max)"
        shown.append(Evidence(name, lr / limit, 1.0, lr / high, lr / low, "sharpness"))
    return tuple(shown)


def _against(lr: float, bound: StabilityBound) -> Evidence:
    """The rate in units of the limit, or of the end of it that is known."""
    if bound.closed:
        name, ends = "learning rate / limit by bisection", (lr / bound.high, lr / bound.low)
        return Evidence(name, lr / bound.lr, 1.0, *ends, "stability")
    known = "largest rate that passed" if bound.low > 0 else "a rate that failed"
    whole = bound.low or bound.high
    return Evidence(f"learning rate / {known}", lr / whole, 1.0, source="stability")


@dataclass(frozen=True)
class HeartLimits:
    """Thresholds of ``labels-do-not-fit``: share of the loss gone on other samples."""

    passed: float = 0.01


@rule("labels-do-not-fit", "trial", "data", order=6.5, kind="fact", limits=HeartLimits(),
      suppressed_by=("token-order", "image-layout", "constant-inputs", "signal-lost",
                     "no-gradient", "missing-in-optimizer", "evaluation-data"))  # fmt: skip
def learned_by_heart(case: Case, limits: HeartLimits) -> Finding | None:
    """Labels that can be learned by heart only."""
    trial = case.trial
    own = None if trial is None else trial.rung(longest=True)
    if trial is None or own is None or not (case["data"].labels and trial.by_heart):
        return None
    goal = trial.goal
    if (fresh := next((r for r in trial.rungs if r.fresh), None)) is not None:
        reached = fresh.held
        meaning = f"{fresh.updates} updates on all of the data do not help with others either"
    elif not trial.most:
        return None
    else:
        reached = min(r.held for r in trial.rungs if r.factor == 1.0)
        meaning = "These batches are most of the data"
    passed = (goal - reached) / trial.scale
    shown = (Evidence("fall of the loss of samples that are new, relative", passed,
                      limits.passed),)  # fmt: skip
    if not math.isfinite(passed) or passed > limits.passed:
        return None
    return warning(
        title="The labels do not fit the inputs, and are learned by heart: "
        f"{own.updates} updates on a few batches take their loss to {digits(own.after)}, that of "
        f"others to {digits(own.held)} (constant prediction {digits(goal)})",
        evidence=shown,
        meaning=f"{meaning}: the inputs say nothing about the labels. They are shuffled, "
        "misaligned or wrong.",
        advice="Check with a few samples by eye that labels and inputs belong together.",
    )


@rule("loss-below-zero", "trial", order=1.5, kind="fact")
def below_zero(case: Case) -> Finding | None:
    """A loss of probabilities, such as Dice, that is given logits."""
    trial = case.trial
    if trial is None or not trial.limitless or not trial.before > 0:
        return None
    lowest = min((r for r in trial.rungs if math.isfinite(r.after)), key=lambda r: r.after)
    if not lowest.after < -0.1 * trial.before:
        return None
    return warning(
        title=f"The loss falls below zero, to {digits(lowest.after)} after {lowest.updates} "
        "updates, though the targets are 0 or 1: it is given raw outputs in place of probabilities",
        evidence=(Evidence("loss after the updates", lowest.after, 0.0),),
        meaning="Losses such as Dice have no lower bound for outputs beyond 0 and 1: what is "
        "minimized is not what is meant.",
        advice="Apply a sigmoid (or softmax) to the logits before this loss.",
    )


@dataclass(frozen=True)
class CollapseLimits:
    """Thresholds of ``collapse``: variance of the outputs after the trial, over that before."""

    left: float = 0.02


@rule("collapse", "wiring", "trial", order=5.6, kind="fact", limits=CollapseLimits(),
      suppressed_by=("signal-lost", "constant-inputs"))  # fmt: skip
def collapse(case: Case, limits: CollapseLimits) -> Finding | None:
    """A loss that falls while all outputs become the same."""
    trial = case.trial
    own = None if trial is None else trial.rung(longest=True)
    if trial is None or own is None or not own.fall > 0 or not trial.spread > 0:
        return None
    if case["wiring"].calls:
        return None  # of a likelihood a constant is the first thing to learn
    left = own.spread / trial.spread
    shown = (Evidence("variance of the outputs after the trial, over that before", left,
                      limits.left),)  # fmt: skip
    if not left <= limits.left:
        return ok(title="Outputs differ", evidence=shown, meaning="They depend on the sample.")
    return warning(
        title=f"The outputs collapse: after {own.updates} updates they are nearly the same for all "
        "samples, although the loss falls",
        evidence=shown,
        meaning="A constant output lowers this loss: it only draws outputs together.",
        advice="Embeddings need negatives, or a stop-gradient; check the terms of the loss.",
    )


@rule("no-learning", "trial", order=9, kind="fact", suppressed_by=(ANY,))
def no_learning(case: Case) -> Finding | None:
    """Updates that do not bring the loss below that of a constant, without a known cause."""
    trial = case.trial
    if trial is None or not trial.judged or trial.own is None:
        return None
    longest = trial.rung(longest=True) or trial.own
    shown = (Evidence(f"loss after {longest.updates} updates", longest.after, trial.reference),)
    if trial.learns:
        return ok(
            title="The network learns", evidence=shown, meaning="A few updates lower the loss."
        )
    if longest is trial.own:
        return None  # so few do not tell
    goal = f"that of a constant prediction ({digits(trial.constant)})"
    if not trial.constant > 0:
        goal = "its start"
    return warning(
        title=f"The network does not learn: {longest.updates} updates take the loss from "
        f"{digits(trial.before)} to {_end(longest)}, not below {goal}; no cause was found",
        evidence=shown,
        meaning=_tried_in_words(trial),
        advice="Check the labels against the inputs, and try to learn a single batch by heart.",
    )
