"""A race of learning rates: downhill in octaves, then between the two best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from normscope.results import StabilityTrial

MOST = 8  # octaves that a race goes from its start, at most
NEAR = 0.5  # octaves around the best that the parabola is laid through
FAR = 1.5  # in log loss above the best: no longer part of the valley
WIDE = 1.2  # ratio of the ends of an interval that is worth telling
TRAINED = 0.3  # of the loss of pure chance: a network that starts there was trained before
RISES = 2.0  # times the loss of the start: a network is trained anew
NOTHING = 1e-3  # of the loss at the start: less is as good as none
EQUAL = 1.25  # times the lowest loss: about as good
CLOSE = 1.15  # the same for the ends of an interval, so that other orders of the samples keep it

Runner = Callable[[float], StabilityTrial | None]


def climb(run: Runner, start: float, cap: float) -> list[StabilityTrial]:
    """Train at ``start`` and by factors of 2 downhill from there; then half as far to both sides.

    Args:
        run: trains at a rate; None once time is up.
        start: the first rate, at most ``cap``.
        cap: no rate above this.
    """
    found: dict[float, StabilityTrial] = {}  # by octaves from the start

    def tried(octave: float) -> bool:
        lr = start * 2.0**octave
        if octave in found or lr > cap * (1 + 1e-9):
            return True
        trial = run(lr)
        if trial is not None:
            found[octave] = trial
        return trial is not None

    here, going = 0.0, tried(0.0)
    while going and abs(here) <= MOST:
        going = tried(here - 1) and tried(here + 1)
        best = min(found, key=lambda octave: _rank(found[octave]))
        if best == here:
            break
        here = best
    _ = going and tried(here - 0.5) and tried(here + 0.5)
    return sorted(found.values(), key=lambda trial: trial.lr)


def _rank(trial: StabilityTrial) -> tuple[float, float]:
    """Lower is better: losses next to nothing are equal, and then the smaller rate counts."""
    value = trial.score
    return (max(value, NOTHING * trial.start) if value >= 0 else value), trial.lr


@dataclass(frozen=True)
class Choice:
    """The rate that a race speaks for.

    Attributes:
        lr: the rate.
        low: from here on the race was about as good.
        high: up to here.
        best: the training with the lowest score.
        fitted: whether ``lr`` is the vertex of a parabola, not ``best.lr``.
        tried: the ends of the interval among the rates of the race.
    """

    lr: float
    low: float
    high: float
    best: StabilityTrial
    fitted: bool
    tried: tuple[float, float]


def choose(race: Sequence[StabilityTrial], again: Sequence[StabilityTrial] = ()) -> Choice | None:
    """The rate with the lowest score, by a parabola in log-lr and log loss around the best one.

    None if every training diverged. ``again``: some of the rates with another order of the samples,
    in which the ends of the interval must be as good too.
    """
    sound = [trial for trial in race if math.isfinite(trial.score)]
    if not sound:
        return None
    best = min(sound, key=_rank)
    vertex = _vertex(sound, best)
    lr = best.lr if vertex is None else vertex
    low, high = _around(race, best, again)
    return Choice(lr, min(lr, low), max(lr, high), best, lr != best.lr, (low, high))


def _vertex(race: Sequence[StabilityTrial], best: StabilityTrial) -> float | None:
    """Where the parabola through the training runs near the best is lowest; None if nowhere."""
    lowest = best.score
    if lowest <= max(NOTHING * best.start, 0.0):
        return None
    span = NEAR * math.log(2) * (1 + 1e-9)
    near = [
        trial
        for trial in race
        if abs(math.log(trial.lr / best.lr)) <= span and trial.score < lowest * math.exp(FAR)
    ]
    if len(near) < 3:
        return None
    x = np.log([trial.lr / best.lr for trial in near])
    bend, slope, _ = np.polyfit(x, np.log([trial.score for trial in near]), 2)
    if bend <= 0:
        return None
    inside = float(np.clip(-slope / (2 * bend), x.min(), x.max()))
    return best.lr * math.exp(inside) if inside else best.lr


def as_good(trial: StabilityTrial, best: StabilityTrial, factor: float = EQUAL) -> bool:
    """Whether ``trial`` came to about as low a loss as ``best``, of the same order of samples."""
    line = _rank(best)[0] * (factor if best.score > 0 else 1.0)
    if best.start > best.score:  # what hardly learned is not as good as what did
        line = min(line, (best.start + best.score) / 2)
    return trial.score <= line


def _around(
    race: Sequence[StabilityTrial], best: StabilityTrial, again: Sequence[StabilityTrial]
) -> tuple[float, float]:
    """The ends of those next to each other, the best among them, that are about as good."""
    ordered = sorted(race, key=lambda trial: trial.lr)
    second = {trial.lr: trial for trial in again}
    good = [
        as_good(trial, best, CLOSE)
        and (
            not {trial.lr, best.lr} <= set(second)
            or as_good(second[trial.lr], second[best.lr], CLOSE)
        )
        for trial in ordered
    ]
    place = ordered.index(best)
    first = last = place
    while first > 0 and good[first - 1]:
        first -= 1
    while last < len(ordered) - 1 and good[last + 1]:
        last += 1
    return ordered[first].lr, ordered[last].lr
