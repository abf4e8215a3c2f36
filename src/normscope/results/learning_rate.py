"""Which learning rate to train with: three bounds, a race, one recommendation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, listed
from normscope.results.stability import StabilityLimit, StabilityTrial, rate_in_words

FEWEST = 3  # training runs of a race that say where it goes


@dataclass(frozen=True, eq=False, repr=False)
class LRBound(Record):
    """A learning rate that should not be passed, by one way of finding it.

    Attributes:
        name: ``"theory"``, ``"threshold"``, ``"diverges"`` or ``"does-not-learn"``.
        lr: the bound; NaN if there is none, 0 or infinite if the search has an open end.
        low: lower end of its interval.
        high: upper end.
        rule: how it was found, in words.
        reason: why there is none, or what to know about it; empty if nothing.
    """

    name: str
    lr: float
    low: float
    high: float
    rule: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is a positive finite number."""
        return 0 < self.lr < math.inf

    @property
    def shown(self) -> str:
        """Value and interval in words."""
        return rate_in_words(self.lr, self.low, self.high, unknown="none")

    def __repr__(self) -> str:
        return f"LRBound({self.name}: {self.shown})"


@dataclass(frozen=True, eq=False, repr=False)
class LRAdvice(Drawable):
    """A learning rate to train with, why, and the bounds it was held against.

    The chart: losses of all training runs over the learning rate, the limits below.

    Attributes:
        lr: the recommendation; NaN if there is none.
        low: lowest rate at which training runs ended almost as well; NaN if there is none.
        high: highest such rate.
        rule: how the recommendation was made, in words.
        reason: why this rate; or why there is none.
        bounds: theory, local threshold, divergence, no learning, in this order.
        race: the training runs that decided, by learning rate.
        limit: the bisection; None if it could not be made.
        ended: why training runs ended early; empty if they did not.
        seconds: time spent.
        convention: every setting that was in effect.
    """

    lr: float
    low: float
    high: float
    rule: str
    reason: str
    bounds: tuple[LRBound, ...]
    race: tuple[StabilityTrial, ...]
    limit: StabilityLimit | None
    seconds: float
    convention: dict[str, Any] = field(default_factory=dict)
    ended: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a recommendation."""
        return 0 < self.lr < math.inf

    @property
    def settled(self) -> bool:
        """Whether there is a recommendation that rests on more than what time allowed to begin."""
        return self.ok and (not self.ended or len(self.race) >= FEWEST)

    @property
    def updates(self) -> int:
        """Number of updates of all training runs."""
        trials = (*self.race, *(self.limit.trials if self.limit is not None else ()))
        return sum(trial.updates for trial in trials)

    def bound(self, name: str) -> LRBound:
        """One of the bounds, by name."""
        return next(bound for bound in self.bounds if bound.name == name)

    def to_frame(self) -> DataFrame:
        """One row for the recommendation and one per bound."""
        own = LRBound("recommended", self.lr, self.low, self.high, self.rule, self.reason)
        return listed((own, *self.bounds), "name", "lr", "low", "high", "rule", "reason")

    def summary(self) -> str:
        """A few lines for a terminal."""
        head = f"{self.lr:.3g} [{self.low:.3g}, {self.high:.3g}]" if self.ok else "none"
        lines = [f"recommended learning rate: {head}", f"  {self.reason}", f"  rule: {self.rule}"]
        for bound in self.bounds:
            note = f"  ({bound.reason})" if bound.reason else ""
            lines.append(f"  {TITLES[bound.name]:<22} {bound.shown}{note}")
        end = f"; NOT complete: {self.ended}" if self.ended else ""
        lines.append(f"{self.updates} updates in all, {self.seconds:.1f} s{end}")
        lines.append(", ".join(f"{k} {v}" for k, v in self.convention.items() if v is not None))
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self.ok:
            return f"LRAdvice(no recommendation: {self.reason})"
        return f"LRAdvice({self.lr:.3g} [{self.low:.3g}, {self.high:.3g}])"


TITLES = {
    "theory": "theory",
    "threshold": "local threshold",
    "diverges": "diverges at",
    "does-not-learn": "stops learning above",
}
