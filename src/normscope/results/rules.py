"""Rules that decide a claim from what was observed: numbers in, a verdict out, no taste.

A rule is a function of one observation (plain data, as the ledger stores it) and of parameters
that stand in the claim. An observation with ``parts`` is judged part by part, see ``judge``.

Three standard errors stand for few runs too: below five, where they would reject what is true in
more than 5 % of all cases, Student's 95 % quantile is used in their place. Values that are not
finite never reproduce a finite number; NaN, or infinite in some runs only, is undecided. What is
not random has ``mean``, ``se = 0`` and ``n = 1``; one value of what is random decides nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import special

from normscope.checks import Array
from normscope.errors import InputError
from normscope.registry import Registry, check_choice
from normscope.results.ledger import VERDICTS

REPRODUCED, PARTLY, FAILED, UNDECIDED, BLOCKED, NOT_RUN = VERDICTS
MOST_SEEDS = 1000  # above which no number of seeds is named
WIDEST = 0.5  # decades on each side: a wider interval cannot reproduce a factor
SIGMA = 3.0  # standard errors
MOST_NAMED = 6  # parts that are listed by name
AGREEMENT = ("number", "formula", "bound")
DIGITS = 1e-9  # relative rounding of stored observations: agreement cannot be asked to more digits
SIDES = {"positive": 1.0, "negative": -1.0}

Observation = Mapping[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What a rule says of an observation.

    Attributes:
        verdict: one of ``VERDICTS``.
        observed: the number that was judged, or words.
        expected: what it was compared with.
        error: distance from what was expected, in the units of the tolerance.
        tolerance: largest error that passes.
        reason: one sentence.
        seeds: number of independent runs behind it; None for what is not random.
        seeds_needed: how many would decide, if it is undecided for noise.
    """

    verdict: str
    observed: float | str | None = None
    expected: float | str | None = None
    error: float | None = None
    tolerance: float | None = None
    reason: str = ""
    seeds: int | None = None
    seeds_needed: int | None = None


def judge(rule: str, observation: Observation, parameters: Mapping[str, Any]) -> Judgement:
    """Apply a rule; to each part, if the observation has parts.

    All parts reproduced is reproduced; some reproduced and some refuted is partly; none reproduced
    and some refuted is not reproduced. What is not refuted and in part undecided is undecided.
    Rules that test agreement share their rate of false refusals over the parts (Bonferroni), or a
    claim of many parts would often fail.
    """
    if "parts" not in observation:
        return RULES[rule](observation, **parameters)
    parts = judge_parts(rule, observation, parameters)
    count = {v: [n for n, p in parts.items() if p.verdict == v] for v in VERDICTS}
    good, bad = len(count[REPRODUCED]), len(count[FAILED])
    verdict = REPRODUCED if good == len(parts) else PARTLY if good or count[PARTLY] else FAILED
    if not bad and count[UNDECIDED]:
        verdict = UNDECIDED
    worst = max(parts, key=lambda name: _badness(parts[name]))
    listed = "; ".join(f"{v}: {_named(names)}" for v, names in count.items() if names)
    seeds = [p.seeds for p in parts.values() if p.seeds is not None]
    needed = [p.seeds_needed for p in parts.values() if p.seeds_needed is not None]
    one, n = parts[worst], len(parts)
    unknown = f"{len(count[UNDECIDED])} of {n} parts undecided"
    return Judgement(
        verdict, unknown if verdict == UNDECIDED else f"{good} of {n}", f"{n} of {n}", one.error,
        one.tolerance, f"{listed}. {worst}: {one.reason}", min(seeds, default=None),
        max(needed, default=None),
    )  # fmt: skip


def judge_parts(
    rule: str, observation: Observation, parameters: Mapping[str, Any]
) -> dict[str, Judgement]:
    """What a rule says of each part of an observation, by name."""
    if not observation["parts"]:
        raise InputError("An observation has an empty list of parts: nothing can be judged.")
    shared = {"family": len(observation["parts"])} if rule in AGREEMENT else {}
    return {n: RULES[rule](p, **parameters, **shared) for n, p in observation["parts"].items()}


def identity(observation: Observation, *, factor: float = 100.0, holds: bool = True) -> Judgement:
    """An identity holds to rounding.

    The observation has ``error`` (relative, one or several), ``size`` (largest dimension, 1),
    ``precision`` (``"float64"``) and ``condition`` (a condition number that multiplies it, 1). The
    tolerance is ``factor * size * eps * condition``; from 1000 times that on the identity is
    refuted, between them it is undecided.

    Args:
        observation: what was observed.
        factor: multiples of rounding that pass.
        holds: False for a claim that it does *not* hold.
    """
    errors = np.abs(_samples(observation, "error"))
    eps = float(np.finfo(observation.get("precision", "float64")).eps)
    scale = observation.get("size", 1) * observation.get("condition", 1.0)
    tolerance, error, n = factor * scale * eps, float(np.max(errors)), len(errors)
    if not math.isfinite(error) or not math.isfinite(tolerance):
        verdict = FAILED if holds and error == math.inf else UNDECIDED
        return Judgement(verdict, error, 0.0, error, tolerance, "not finite", n)
    low, high = (REPRODUCED, FAILED) if holds else (FAILED, REPRODUCED)
    verdict = low if error <= tolerance else high if error >= 1000 * tolerance else UNDECIDED
    words = f"largest relative error {error:.2g}, rounding allows {tolerance:.2g}"
    words += "" if holds else "; claimed not to hold"
    return Judgement(verdict, error, 0.0, error, tolerance, words, n)


def number(
    observation: Observation,
    *,
    expected: float | None = None,
    log10: bool = False,
    single: bool = False,
    student: bool = False,
    resolution: float | None = None,
    remainder: float = 0.0,
    family: int = 1,
) -> Judgement:
    """A number agrees with what was expected.

    The observation has ``values`` (one for each network or seed) or ``mean``, ``se`` and ``n``; it
    may have ``expected`` and ``remainder`` (a finite-size remainder that was measured).

    Args:
        observation: what was observed.
        expected: the number, unless the observation has it.
        log10: compare logarithms; an interval wider than half a decade is then undecided.
        single: the expected value is of one network: 95 % prediction interval of ours.
        student: Student's quantile in place of three standard errors.
        resolution: a tolerance above this is too noisy to decide.
        remainder: added to the tolerance.
        family: number of tests that share the rate of false refusals.
    """
    mean, se, n = _estimate(observation, log10=log10)
    target = observation.get("expected", expected)
    if target is None:
        raise InputError("The rule 'number' needs an expected value, in claim or observation.")
    goal = float(_log(target) if log10 else target)
    if (nothing := _undecided(mean, se, n, goal)) is not None:
        if not (math.isnan(mean) or math.isnan(goal)) and math.inf in (abs(mean), abs(goal)):
            nothing = replace(nothing, verdict=REPRODUCED if mean == goal else FAILED)
        return replace(nothing, observed=_back(mean, log10), expected=target)

    def allowed(runs: int) -> float:
        factor = (_student if single or student else _three)(runs, family)
        sd = se * math.sqrt(n)
        spread = sd * math.sqrt(1 + 1 / runs) if single else sd / math.sqrt(runs)
        return factor * spread + observation.get("remainder", remainder) + digits

    digits = DIGITS * (1.0 if log10 else max(abs(mean), abs(goal)))
    tolerance, error = allowed(n), abs(mean - goal)
    limit = resolution if resolution is not None else (WIDEST if log10 else math.inf)
    unit, compared = (" decades", ", compared as log10") if log10 else ("", "")
    words = f"{_back(mean, log10):.4g} against {target:.4g}{compared}: off by {error:.2g}{unit}, "
    words += f"{tolerance:.2g} allowed"
    verdict, needed = FAILED if error > tolerance else REPRODUCED, None
    if verdict == REPRODUCED and tolerance > limit:
        verdict, needed = UNDECIDED, _first(lambda runs: allowed(runs) <= limit)
        words = f"too noisy: the tolerance {tolerance:.2g}{unit} is above {limit:.2g}"
    return Judgement(verdict, _back(mean, log10), target, error, tolerance, words, n, needed)


def formula(
    observation: Observation,
    *,
    power: float = 1.0,
    terms: int | None = None,
    relative: bool = True,
    resolution: float = 0.25,
    family: int = 1,
) -> Judgement:
    """A formula for wide networks holds in the limit.

    The observation has ``sizes``, ``values`` (for each size those of its networks) and ``theory``
    (for each size). The distance from the theory is fitted as a + b / size^power; the intercept a
    must be zero within three standard errors. One size: the mean itself.

    The expansion goes on, and cutting it off moves the intercept. From three sizes on c / size^(2
    power) is fitted too, with an uncertainty of its own: at the smallest size it is zero within the
    size of the term b, as in any expansion that is of use there. The standard error of a thereby
    has what is not known of the second order.

    Args:
        observation: what was observed.
        power: power of the size in the finite-size remainder.
        terms: orders of the remainder, b / size^power, c / size^(2 power), ..., fewer than sizes:
            just as many, all of them free. By default one, and the second as said above.
        relative: distances are fractions of the theory.
        resolution: three standard errors above this are too noisy to decide.
        family: number of tests that share the rate of false refusals.
    """
    sizes, theory = (np.atleast_1d(np.asarray(observation[k], float)) for k in ("sizes", "theory"))
    groups = [np.asarray(group, float) for group in observation["values"]]
    if not len(sizes) == len(theory) == len(groups) == len(set(sizes)):
        raise InputError("A formula needs a theory and values for each size, every size once.")
    counts, last = [len(group) for group in groups], int(np.argmax(sizes))
    n, expected = min(counts), float(theory[last])
    if n < 2:
        return Judgement(UNDECIDED, expected=expected, reason="one network at a size", seeds=n)
    if not all(np.all(np.isfinite(group)) for group in (*groups, theory)):
        return Judgement(UNDECIDED, expected=expected, reason="a value is not finite", seeds=n)
    if relative and np.any(theory == 0):
        raise InputError("A formula that is zero is compared with relative=False.")
    means = np.array([g.mean() for g in groups])
    errors = np.array([g.std(ddof=1) / math.sqrt(len(g)) for g in groups])
    unit = np.abs(theory) if relative else np.ones_like(theory)
    gap, floor = (means - theory) / unit, DIGITS * np.maximum(np.abs(means), np.abs(theory))
    errors = np.maximum(np.maximum(errors, floor) / unit, np.finfo(float).eps)
    x, orders = (sizes.min() / sizes) ** power, 1 if terms is None else terms
    fit, se = _polynomial(x, gap, errors, orders if len(sizes) > 1 else 0)
    if terms is None and len(sizes) > 2:
        fit, se = _polynomial(x, gap, errors, 2, spread=max(abs(fit[1]), np.finfo(float).eps))
    offset = float(fit[0])
    tolerance = _three(n, family) * se
    percent = f"{100 * offset:+.2g} % +- {100 * se:.2g} %"
    shown = percent if relative else f"{offset:+.3g} +- {se:.2g}"
    words = f"in the limit of large sizes differs from theory by {shown}"
    verdict, needed = REPRODUCED if abs(offset) <= tolerance else FAILED, None
    if verdict == REPRODUCED and tolerance > resolution:
        verdict, words = UNDECIDED, f"too noisy: {words}"
        needed = _first(lambda runs: _three(runs, family) * se * math.sqrt(n / runs) <= resolution)
    return Judgement(
        verdict, float(means[last]), expected, abs(offset), tolerance, words, n, needed
    )


def _polynomial(
    x: Array, y: Array, errors: Array, orders: int, spread: float = math.inf
) -> tuple[Array, float]:
    """Coefficients of a polynomial, the last zero within ``spread``; the intercept's error."""
    if len(x) <= orders:
        raise InputError(f"{orders} terms of a remainder need more than {len(x)} sizes.")
    rows = np.stack([x**k for k in range(orders + 1)], 1) / errors[:, None]
    rows = np.vstack([rows, np.eye(orders + 1)[-1] / spread])
    inverse = np.linalg.pinv(rows)
    return inverse @ np.append(y / errors, 0.0), float(np.linalg.norm(inverse[0]))


def sign(
    observation: Observation,
    *,
    direction: str = "positive",
    threshold: float = 0.0,
    sigma: bool = False,
) -> Judgement:
    """A difference, or a distance from a threshold, has the claimed sign.

    The observation has ``values`` (paired differences, one for each seed; logarithms of positive
    quantities) or ``mean``, ``se``, ``n``. Beyond Student's quantile times the standard error in
    the claimed direction it is reproduced, beyond it in the other not reproduced, else undecided.

    Args:
        observation: what was observed.
        direction: ``"positive"`` (above the threshold) or ``"negative"``.
        threshold: where the sign changes; the observation may have its own.
        sigma: three standard errors in place of Student's quantile.
    """
    check_choice("direction", direction, SIDES)
    side, (mean, se, n) = SIDES[direction], _estimate(observation)
    border = float(observation.get("threshold", threshold))
    distance = side * (mean - border)
    above = "above" if side > 0 else "below"
    if (nothing := _undecided(mean, se, n, border)) is not None:
        if math.isinf(distance):  # infinite in every run: on one side of any threshold
            verdict = REPRODUCED if distance > 0 else FAILED
            words = f"{mean:.3g} in every run, claimed {above} {border:.3g}"
            nothing = replace(nothing, verdict=verdict, error=-distance, reason=words)
        return nothing
    quantile = _three if sigma else _student
    tolerance = quantile(n) * se
    there = "on the claimed side" if distance > 0 else "on the other side"
    words = f"{mean:.3g}, claimed {above} {border:.3g}: {there} by {abs(distance):.2g}, "
    words += f"noise {tolerance:.2g}"
    needed = None
    if distance == 0 and se == 0:
        verdict, words = FAILED, "no difference in any run"
    elif abs(distance) > tolerance:
        verdict = REPRODUCED if distance > 0 else FAILED
    else:
        verdict, sd = UNDECIDED, se * math.sqrt(n)
        needed = _first(lambda runs: quantile(runs) * sd / math.sqrt(runs) < abs(distance))
    return Judgement(verdict, mean, border, -distance, tolerance, words, n, needed)


def bound(
    observation: Observation,
    *,
    direction: str = "positive",
    slack: float = 0.0,
    resolution: float = math.inf,
    family: int = 1,
) -> Judgement:
    """An inequality is not violated, one-sided at three standard errors.

    The observation has ``values`` (how far each network lies inside the bound) or ``mean``, ``se``,
    ``n``. A bound may be tight, so that touching it within the noise is reproduced.

    Args:
        observation: what was observed.
        direction: ``"positive"`` if inside means above zero.
        slack: a finite-size remainder that is allowed; the observation may have its own.
        resolution: noise above this is too much, unless all of it lies inside the bound.
        family: number of tests that share the rate of false refusals.
    """
    check_choice("direction", direction, SIDES)
    side, (mean, se, n) = SIDES[direction], _estimate(observation)
    if (nothing := _undecided(mean, se, n, 0.0)) is not None:
        outside = side * mean == -math.inf
        return replace(nothing, verdict=FAILED, error=math.inf) if outside else nothing
    tolerance = _three(n, family) * se + float(observation.get("slack", slack))
    verdict, needed = REPRODUCED if side * mean >= -tolerance else FAILED, None
    words = f"inside the bound by {side * mean:.3g}, noise {tolerance:.2g}"
    if side * mean < 0:
        beyond = "within" if verdict == REPRODUCED else "beyond"
        words = f"violated by {-side * mean:.3g}, {beyond} the noise of {tolerance:.2g}"
    if verdict == REPRODUCED and tolerance > resolution and side * mean < tolerance:
        verdict, words = UNDECIDED, f"too noisy: {words}"
        needed = _first(lambda runs: _three(runs, family) * se * math.sqrt(n / runs) <= resolution)
    return Judgement(verdict, mean, 0.0, max(0.0, -side * mean), tolerance, words, n, needed)


def boundary(observation: Observation, *, extra: float = 0.0) -> Judgement:
    """A stability boundary lies on a theory's line.

    The observation has ``intervals`` (for each seed the largest stable and the smallest diverging
    learning rate) and ``line``. The distance is in decades; the tolerance is half the mean interval
    plus half the spread over the seeds. With a tolerance above half a decade a line can be refuted,
    but not confirmed: it is undecided.

    Args:
        observation: what was observed.
        extra: decades that the claim itself allows ("within a factor 2").
    """
    intervals = _log(np.asarray(observation["intervals"], float))
    line, n = float(observation["line"]), len(intervals)
    if intervals.shape != (n, 2) or not n:
        raise InputError("A boundary needs two learning rates for each seed: stable, diverging.")
    if not np.all(np.isfinite(intervals)):
        why = "a search ended without an interval"
        return Judgement(UNDECIDED, expected=line, reason=why, seeds=n)
    if not (math.isfinite(line) and line > 0):
        return Judgement(UNDECIDED, expected=line, reason="the theory gives no line", seeds=n)
    middles, found = intervals.mean(1), float(10 ** intervals.mean())
    half = float(np.abs(np.diff(intervals, axis=1)).mean() / 2)
    tolerance = half + float(np.ptp(middles)) / 2
    allowed, distance = tolerance + extra, float(middles.mean()) - math.log10(line)
    words = f"boundary at {found:.3g}, theory {line:.3g}: {distance:+.2f} decades, "
    words += f"{allowed:.2f} allowed"
    verdict = REPRODUCED if abs(distance) <= allowed + DIGITS else FAILED
    if verdict == REPRODUCED and tolerance > WIDEST:
        verdict, words = UNDECIDED, f"{words}; the interval is wider than half a decade"
    return Judgement(verdict, found, line, abs(distance), allowed, words, n)


def within(observation: Observation, *, expected: float, slack: float) -> Judgement:
    """A number lies within ``expected`` +- ``slack``, as far as its interval tells.

    The observation has ``value``, ``interval`` (low and high, 95 %) and ``n``; without a value, in
    ``why``, the reason. The whole interval inside is reproduced, the whole of it outside not
    reproduced, else it is undecided.

    Args:
        observation: what was observed.
        expected: the number.
        slack: how near is near.
    """
    value, (low, high), n = (observation[k] for k in ("value", "interval", "n"))
    if not math.isfinite(value) or n < 2:
        why = observation.get("why") or "one value"
        return Judgement(UNDECIDED, None, expected, None, slack, why, n)
    inside = expected - slack <= low and high <= expected + slack
    outside = high < expected - slack or low > expected + slack
    verdict = REPRODUCED if inside else FAILED if outside else UNDECIDED
    words = f"{value:.3g} ({low:.3g} to {high:.3g}), claimed {expected:.3g} +- {slack:.3g}"
    return Judgement(verdict, value, expected, abs(value - expected), slack, words, n)


def count(observation: Observation, *, at_least: float = 1.0) -> Judgement:
    """A statement holds in every run: ``holds`` has one true or false for each.

    In fewer runs than asked for, but at least in half of them, it is partly reproduced.

    Args:
        observation: what was observed.
        at_least: share of the runs in which it must hold.
    """
    holds = _samples(observation, "holds") == 1.0  # neither None nor NaN holds
    good, n = int(holds.sum()), len(holds)
    least = math.ceil(at_least * n - DIGITS)
    verdict = REPRODUCED if good >= least else PARTLY if 2 * good >= n else FAILED
    words, most = f"holds in {good} of {n}", f"{least} of {n}"
    return Judgement(verdict, f"{good} of {n}", most, 1 - good / n, 1 - at_least, words, n)


def reading(observation: Observation, *, verdict: str, reason: str) -> Judgement:
    """What is decided by reading the text: two places of a paper that contradict each other.

    Args:
        observation: not used; nothing is measured.
        verdict: what the text itself shows.
        reason: which places, in words.
    """
    if verdict not in VERDICTS:
        raise InputError(f"A verdict is one of {', '.join(VERDICTS)}. Got {verdict!r}.")
    return Judgement(verdict, "by reading", None, reason=reason)


RULES: Registry[Callable[..., Judgement]] = Registry("rule")
for _rule in (identity, number, formula, sign, bound, boundary, within, count, reading):
    RULES.add(_rule.__name__, _rule)


def fitted_slope(x: Sequence[float], groups: Sequence[Any]) -> dict[str, Any]:
    """Slope of log10 of the group means over log10 x, as an observation: mean, se and n.

    The standard error comes from the spread within the groups, not from the scatter of the fit.
    """
    samples = [np.asarray(group, float) for group in groups]
    means = np.array([g.mean() for g in samples])
    if not np.all(means > 0):
        return {"mean": math.nan, "se": math.nan, "n": min(len(g) for g in samples)}
    spread = [g.std(ddof=1) / math.sqrt(len(g)) if len(g) > 1 else math.nan for g in samples]
    errors = np.array(spread) / means / math.log(10)
    errors = np.maximum(errors, np.finfo(float).eps)
    place = np.log10(np.asarray(x, float))
    weights = 1 / errors**2 if np.all(np.isfinite(errors)) else np.ones_like(place)
    centre = np.average(place, weights=weights)
    leverage = weights * (place - centre) / np.sum(weights * (place - centre) ** 2)
    slope = float(leverage @ np.log10(means))
    se = float(np.sqrt(np.sum((leverage * errors) ** 2)))
    return {"mean": slope, "se": se, "n": min(len(g) for g in samples)}


def _samples(observation: Observation, name: str = "values") -> Array:
    if name not in observation:
        raise InputError(f"An observation lacks {name!r}; it has {', '.join(observation)}.")
    made = np.atleast_1d(np.asarray(observation[name], float))
    if made.ndim > 1 or not made.size:
        raise InputError(
            f"{name!r} of an observation is a list of numbers, one for each run. Found the shape "
            f"{made.shape}. Give every part an observation of its own under 'parts'."
        )
    return made


def _log(value: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(value)  # NaN and -inf where there is no logarithm


def _estimate(observation: Observation, *, log10: bool = False) -> tuple[float, float, int]:
    """Mean, standard error and number of samples."""
    if "mean" in observation and "values" not in observation:
        mean, se, n = (observation[k] for k in ("mean", "se", "n"))
        if log10:
            return float(_log(mean)), se / mean / math.log(10) if mean > 0 else math.nan, n
        return mean, se, n
    values = _samples(observation)
    values = _log(values) if log10 else values
    n = len(values)
    if not np.all(np.isfinite(values)):
        same = np.all(values == values[0])  # infinite in every run
        return (float(values[0]) if same else math.nan), math.nan, n
    se = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return float(values.mean()), se, n


def _undecided(mean: float, se: float, n: int, goal: float) -> Judgement | None:
    """Why no interval can be compared with the goal; None if one can."""
    words = ""
    if math.isnan(mean) or math.isnan(goal):
        words = "no value, or not finite in some of the runs"
    elif math.isinf(mean) or math.isinf(goal):
        words = f"{'' if math.isinf(mean) else 'not '}infinite in every run"
    elif not math.isfinite(se) or (n < 2 and se > 0):
        words = "one value"
    return Judgement(UNDECIDED, mean, goal, reason=words, seeds=n) if words else None


@cache
def _student(n: int, family: int = 1) -> float:
    """Two-sided 95 % quantile for the mean of n runs; one run is exact if it is used at all."""
    return -float(special.stdtrit(max(n - 1, 1), 0.025 / family))


@cache
def _three(n: int, family: int = 1) -> float:
    """Three standard errors, or more for few runs or several tests."""
    return max(-float(special.ndtri(special.ndtr(-SIGMA) / family)), _student(n, family))


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{len(names)} parts"


def _first(enough: Callable[[int], bool]) -> int | None:
    """The smallest number of runs that is enough, if their mean and spread stay as they are."""
    found = 2 + bisect_left(range(2, MOST_SEEDS + 1), True, key=enough)
    return found if found <= MOST_SEEDS else None


def _back(value: float, log10: bool) -> float:
    return 10**value if log10 else value


def _badness(one: Judgement) -> tuple[int, float]:
    order = (REPRODUCED, PARTLY, UNDECIDED, FAILED)
    ratio = (one.error or 0.0) / one.tolerance if one.tolerance else 0.0
    known = order.index(one.verdict) if one.verdict in order else 0
    return known, -math.inf if math.isnan(ratio) else ratio
