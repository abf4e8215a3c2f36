"""Rules that decide a claim from what was observed: numbers in, a verdict out, no taste.

A rule is a function of one observation (plain data, as the ledger stores it) and of parameters
that stand in the claim. An observation with ``parts`` is judged part by part, see ``judge``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from normscope.checks import Array
from normscope.errors import InputError
from normscope.registry import Registry
from normscope.results.ledger import VERDICTS

REPRODUCED, PARTLY, FAILED, UNDECIDED, BLOCKED, NOT_RUN = VERDICTS
MOST_SEEDS = 1000  # above which no number of seeds is named
WIDEST = 0.5  # decades on each side: a wider interval cannot reproduce a factor
SIGMA = 3.0  # standard errors

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

    All parts reproduced is reproduced. Some reproduced and some not, or undecided, is partly. None
    reproduced and at least one refuted is not reproduced.
    """
    function = RULES[rule]
    if "parts" not in observation:
        return function(observation, **parameters)
    parts = {name: function(part, **parameters) for name, part in observation["parts"].items()}
    if not parts:
        raise InputError("An observation has an empty list of parts: nothing can be judged.")
    count = {v: [n for n, p in parts.items() if p.verdict == v] for v in VERDICTS}
    good, bad = len(count[REPRODUCED]), len(count[FAILED])
    verdict = REPRODUCED if good == len(parts) else PARTLY if good or count[PARTLY] else FAILED
    if verdict == FAILED and not bad:
        verdict = UNDECIDED
    worst = max(parts, key=lambda name: _badness(parts[name]))
    listed = "; ".join(f"{v}: {', '.join(names)}" for v, names in count.items() if names)
    seeds = [p.seeds for p in parts.values() if p.seeds is not None]
    needed = [p.seeds_needed for p in parts.values() if p.seeds_needed is not None]
    one = parts[worst]
    return Judgement(
        verdict, f"{good} of {len(parts)}", f"{len(parts)} of {len(parts)}", one.error,
        one.tolerance, f"{listed}. {worst}: {one.reason}", min(seeds, default=None),
        max(needed, default=None),
    )  # fmt: skip


def identity(observation: Observation, *, factor: float = 100.0, holds: bool = True) -> Judgement:
    """An identity holds to rounding.

    The observation has ``error`` (relative, one or several), ``size`` (largest dimension, 1),
    ``precision`` (``"float64"``) and ``condition`` (a condition number that multiplies it, 1). The
    tolerance is ``factor * size * eps * condition``; above 1000 times that the identity is refuted.

    Args:
        observation: what was observed.
        factor: multiples of rounding that pass.
        holds: False for a claim that it does *not* hold.
    """
    errors = _samples(observation, "error")
    eps = float(np.finfo(observation.get("precision", "float64")).eps)
    scale = observation.get("size", 1) * observation.get("condition", 1.0)
    tolerance, error = factor * scale * eps, float(np.max(errors))
    if not math.isfinite(error):
        return Judgement(
            FAILED if holds else REPRODUCED, error, 0.0, error, tolerance, "not finite"
        )
    low, high = (REPRODUCED, FAILED) if holds else (FAILED, REPRODUCED)
    verdict = low if error <= tolerance else high if error >= 1000 * tolerance else UNDECIDED
    words = f"largest relative error {error:.2g}, rounding allows {tolerance:.2g}"
    return Judgement(verdict, error, 0.0, error, tolerance, words, len(errors))


def number(
    observation: Observation,
    *,
    expected: float | None = None,
    log10: bool = False,
    single: bool = False,
    student: bool = False,
    resolution: float | None = None,
    remainder: float = 0.0,
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
    """
    mean, se, n = _estimate(observation, log10=log10)
    target = observation.get("expected", expected)
    if target is None:
        raise InputError("The rule 'number' needs an expected value, in claim or observation.")
    goal = math.log10(target) if log10 else float(target)
    if n < 2 and "se" not in observation:
        return Judgement(UNDECIDED, _back(mean, log10), target, reason="one value", seeds=n)
    quantile = float(stats.t.ppf(0.975, n - 1)) if single or student else SIGMA
    spread = se * math.sqrt(n + 1) if single else se  # sd sqrt(1 + 1/n)
    tolerance = quantile * spread + observation.get("remainder", remainder)
    error = abs(mean - goal)
    limit = resolution if resolution is not None else (WIDEST if log10 else math.inf)
    unit = " decades" if log10 else ""
    words = f"{_back(mean, log10):.4g} against {target:.4g}: off by {error:.2g}{unit}, "
    words += f"{tolerance:.2g} allowed"
    if error > tolerance:
        return Judgement(FAILED, _back(mean, log10), target, error, tolerance, words, n)
    if tolerance > limit:
        needed = _needed(limit, se * math.sqrt(n), quantile)
        words = f"too noisy: the tolerance {tolerance:.2g}{unit} is above {limit:.2g}"
        return Judgement(UNDECIDED, _back(mean, log10), target, error, tolerance, words, n, needed)
    return Judgement(REPRODUCED, _back(mean, log10), target, error, tolerance, words, n)


def formula(
    observation: Observation,
    *,
    power: float = 1.0,
    terms: int = 1,
    relative: bool = True,
    resolution: float = 0.25,
) -> Judgement:
    """A formula for wide networks holds in the limit.

    The observation has ``sizes``, ``values`` (for each size those of its networks) and ``theory``
    (for each size). The distance from the theory is fitted as a + b / size^power; the intercept a
    must be zero within three standard errors. One size: the mean itself.

    Args:
        observation: what was observed.
        power: power of the size in the finite-size remainder.
        terms: terms of the remainder: b / size^power, then c / size^(2 power), ... It needs more
            sizes than terms.
        relative: distances are fractions of the theory.
        resolution: three standard errors above this are too noisy to decide.
    """
    sizes, theory = (np.asarray(observation[k], float) for k in ("sizes", "theory"))
    groups = [np.asarray(group, float) for group in observation["values"]]
    counts = [len(group) for group in groups]
    if min(counts) < 2:
        return Judgement(UNDECIDED, reason="one network at a size", seeds=min(counts))
    means = np.array([g.mean() for g in groups])
    errors = np.array([g.std(ddof=1) / math.sqrt(len(g)) for g in groups])
    unit = theory if relative else np.ones_like(theory)
    if relative and np.any(theory == 0):
        raise InputError("A formula that is zero is compared with relative=False.")
    gap, weight = (means - theory) / unit, np.abs(errors / unit)
    weight = np.maximum(weight, np.finfo(float).tiny)
    if len(sizes) > 1:
        if len(sizes) <= terms:
            raise InputError(f"{terms} terms of a remainder need more than {len(sizes)} sizes.")
        powers = [sizes ** (-power * k) for k in range(terms + 1)]
        design = np.stack(powers, 1) / weight[:, None]
        covariance = np.linalg.inv(design.T @ design)
        offset = float((covariance @ (design.T @ (gap / weight)))[0])
        se = math.sqrt(covariance[0, 0])
    else:
        offset, se = float(gap[0]), float(weight[0])
    tolerance, observed = SIGMA * se, float(means[-1])
    words = f"in the limit of large sizes off by {offset:+.3g} +- {se:.2g}"
    words += " of the theory" if relative else ""
    verdict = REPRODUCED if abs(offset) <= tolerance else FAILED
    needed = None
    if verdict == REPRODUCED and tolerance > resolution:
        verdict, needed = UNDECIDED, math.ceil(min(counts) * (tolerance / resolution) ** 2)
        words = f"too noisy: {words}"
    return Judgement(
        verdict, observed, float(theory[-1]), abs(offset), tolerance, words, min(counts), needed
    )


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
    side = {"positive": 1.0, "negative": -1.0}[direction]
    mean, se, n = _estimate(observation)
    border = float(observation.get("threshold", threshold))
    if math.isnan(mean):
        return Judgement(UNDECIDED, mean, reason="no value", seeds=n)
    if n < 2 and "se" not in observation:
        return Judgement(UNDECIDED, mean, border, reason="one value", seeds=n)
    distance = side * (mean - border)
    quantile = SIGMA if sigma else float(stats.t.ppf(0.975, n - 1))
    tolerance = quantile * se
    above = "above" if side > 0 else "below"
    words = f"{mean:.3g}, claimed {above} {border:.3g}; noise {tolerance:.2g}"
    if math.isinf(mean) or abs(distance) > tolerance:
        verdict = REPRODUCED if distance > 0 else FAILED
        return Judgement(verdict, mean, border, -distance, tolerance, words, n)
    needed = _needed(abs(distance), se * math.sqrt(n))
    if distance == 0 and se == 0:
        verdict = FAILED  # equal in every run: there is no difference
        return Judgement(verdict, mean, border, 0.0, 0.0, "no difference in any run", n)
    return Judgement(UNDECIDED, mean, border, -distance, tolerance, words, n, needed)


def bound(
    observation: Observation, *, direction: str = "positive", slack: float = 0.0
) -> Judgement:
    """An inequality is not violated, one-sided at three standard errors.

    The observation has ``values`` (how far each network lies inside the bound) or ``mean``, ``se``,
    ``n``. A bound may be tight, so that touching it within the noise is reproduced.

    Args:
        observation: what was observed.
        direction: ``"positive"`` if inside means above zero.
        slack: a finite-size remainder that is allowed; the observation may have its own.
    """
    side = {"positive": 1.0, "negative": -1.0}[direction]
    mean, se, n = _estimate(observation)
    if n < 2 and "se" not in observation:
        return Judgement(UNDECIDED, mean, 0.0, reason="one value", seeds=n)
    tolerance = SIGMA * se + float(observation.get("slack", slack))
    verdict = REPRODUCED if side * mean >= -tolerance else FAILED
    words = f"inside the bound by {side * mean:.3g}, noise {tolerance:.2g}"
    return Judgement(verdict, mean, 0.0, max(0.0, -side * mean), tolerance, words, n)


def boundary(observation: Observation, *, extra: float = 0.0) -> Judgement:
    """A stability boundary lies on a theory's line.

    The observation has ``intervals`` (for each seed the largest stable and the smallest diverging
    learning rate) and ``line``. The distance is in decades; the tolerance is half the mean interval
    plus half the spread over the seeds. A tolerance above half a decade is undecided.

    Args:
        observation: what was observed.
        extra: decades that the claim itself allows ("within a factor 2").
    """
    intervals = np.log10(np.asarray(observation["intervals"], float))
    if not np.all(np.isfinite(intervals)):
        return Judgement(UNDECIDED, reason="a search ended without an interval")
    middles = intervals.mean(1)
    half = float(np.diff(intervals, axis=1).mean() / 2)
    tolerance = half + float(np.ptp(middles)) / 2
    middle = float(middles.mean())
    distance = middle - math.log10(observation["line"])
    found, line = 10**middle, float(observation["line"])
    words = f"boundary at {found:.3g}, theory {line:.3g}: {distance:+.2f} decades, "
    words += f"{tolerance + extra:.2f} allowed"
    if tolerance > WIDEST:
        verdict, words = UNDECIDED, f"{words}; the interval is wider than half a decade"
    else:
        verdict = REPRODUCED if abs(distance) <= tolerance + extra else FAILED
    n = len(intervals)
    return Judgement(verdict, found, line, abs(distance), tolerance + extra, words, n)


def count(observation: Observation, *, at_least: float = 1.0) -> Judgement:
    """A statement holds in every run: ``holds`` has one true or false for each.

    Args:
        observation: what was observed.
        at_least: share of the runs in which it must hold.
    """
    holds = [bool(value) for value in observation["holds"]]
    good, n = sum(holds), len(holds)
    verdict = REPRODUCED if good >= at_least * n else PARTLY if good else FAILED
    share = good / n
    words = f"holds in {good} of {n}"
    return Judgement(verdict, f"{good} of {n}", f"{n} of {n}", 1 - share, 1 - at_least, words, n)


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
for _rule in (identity, number, formula, sign, bound, boundary, count, reading):
    RULES.add(_rule.__name__, _rule)


def fitted_slope(x: Sequence[float], groups: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Slope of log10 of the group means over log10 x, as an observation: mean, se and n.

    The standard error comes from the spread within the groups, not from the scatter of the fit.
    """
    samples = [np.asarray(group, float) for group in groups]
    means = np.array([g.mean() for g in samples])
    spread = [g.std(ddof=1) / math.sqrt(len(g)) if len(g) > 1 else math.nan for g in samples]
    errors = np.array(spread) / np.abs(means) / math.log(10)
    errors = np.maximum(errors, np.finfo(float).eps)
    place = np.log10(np.asarray(x, float))
    weights = 1 / errors**2 if np.all(np.isfinite(errors)) else np.ones_like(place)
    centre = np.average(place, weights=weights)
    leverage = weights * (place - centre) / np.sum(weights * (place - centre) ** 2)
    slope = float(leverage @ np.log10(means))
    se = float(np.sqrt(np.sum((leverage * errors) ** 2)))
    return {"mean": slope, "se": se, "n": min(len(g) for g in samples)}


def _samples(observation: Observation, name: str = "values") -> Array:
    try:
        return np.atleast_1d(np.asarray(observation[name], float))
    except KeyError:
        raise InputError(
            f"An observation lacks {name!r}; it has {', '.join(observation)}."
        ) from None


def _estimate(observation: Observation, *, log10: bool = False) -> tuple[float, float, int]:
    """Mean, standard error and number of samples."""
    if "mean" in observation and "values" not in observation:
        mean, se, n = (observation[k] for k in ("mean", "se", "n"))
        return (math.log10(mean), se / mean / math.log(10), n) if log10 else (mean, se, n)
    values = _samples(observation)
    values = np.log10(values) if log10 else values
    n = len(values)
    if not np.all(np.isfinite(values)):
        same = n and np.all(values == values[0])  # infinite in every run
        return (float(values[0]) if same else math.nan), math.nan, n
    se = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else 0.0
    return float(values.mean()), se, n


def _needed(distance: float, sd: float, quantile: float | None = None) -> int | None:
    """The number of seeds at which this distance would be beyond the noise."""
    for n in range(2, MOST_SEEDS + 1):
        factor = quantile or float(stats.t.ppf(0.975, n - 1))
        if factor * sd / math.sqrt(n) < distance:
            return n
    return None


def _back(value: float, log10: bool) -> float:
    return 10**value if log10 else value


def _badness(one: Judgement) -> tuple[int, float]:
    order = (REPRODUCED, PARTLY, UNDECIDED, FAILED)
    ratio = (one.error or 0.0) / one.tolerance if one.tolerance else 0.0
    return order.index(one.verdict) if one.verdict in order else 0, ratio
