"""The largest stable learning rate: the trials, and the intervals they leave."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, framed, listed


@dataclass(frozen=True, eq=False, repr=False)
class StabilityTrial(Record):
    """One training at one learning rate.

    Attributes:
        lr: the learning rate.
        seed: seed for the order of the samples and a factory's weights.
        diverged: the loss broke the divergence rule.
        learned: it did not, and the last losses are clearly below start and chance, at least half
            as far as those of the best training run of the search.
        updates: how many were made; more than asked for where the loss was still rising.
        start: mean loss of the untrained model on the batches that ``final`` is the mean over.
        final: mean of the last losses of the asked number of updates; the last loss if it diverged.
        chance: loss of the best constant answer on these batches; NaN where that is not known.
        rising: the loss still rose when the training was given up undecided.
        reason: the outcome in words.
        losses: mini-batch losses, one before each update and one after the last.
    """

    lr: float
    seed: int
    diverged: bool
    learned: bool
    updates: int
    start: float
    final: float
    chance: float
    rising: bool
    reason: str
    losses: Array  # (updates + 1,)

    @property
    def left(self) -> bool:
        """Whether the loss was ever above ``LEAVES`` times its first value, or not finite."""
        return bool((~(self.losses <= LEAVES * self.losses[:1])).any())

    @property
    def score(self) -> float:
        """Mean loss over the second half, by which rates are ranked; infinite if it diverged.

        A mean over fewer losses is too noisy to tell neighbouring rates apart.
        """
        late = self.losses[len(self.losses) // 2 :]
        mean = float(late.mean()) if len(late) and not self.diverged else math.inf
        return mean if math.isfinite(mean) else math.inf

    @property
    def outcome(self) -> str:
        """``"learned"``, ``"did not learn"`` or ``"diverged"``."""
        if self.diverged:
            return "diverged"
        return "learned" if self.learned else "did not learn"

    def __repr__(self) -> str:
        return (
            f"StabilityTrial(lr {self.lr:.4g}, seed {self.seed}, {self.outcome}, loss "
            f"{self.start:.4g} -> {self.final:.4g})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class StabilityBound(Record):
    """Where one criterion switches, as an interval of learning rates.

    Attributes:
        criterion: ``"diverges"``, ``"does-not-learn"`` or ``"leaves"``.
        low: the largest rate tried below every failure (of all seeds); 0 if there is none.
        high: the smallest rate tried above every success (of all seeds); infinite if there is none.
        interleaved: for one seed, a failure lies below a success: there is no single switch.
        reason: what to know about the interval; empty if it is closed and as narrow as asked.
    """

    criterion: str
    low: float
    high: float
    interleaved: bool = False
    reason: str = ""

    @property
    def lr(self) -> float:
        """Middle of the interval in log-lr; 0 or infinite if an end is open."""
        return math.sqrt(self.low) * math.sqrt(self.high) if self.low else 0.0

    @property
    def closed(self) -> bool:
        """Whether both ends were found."""
        return self.low > 0 and self.high < math.inf

    def __repr__(self) -> str:
        return f"StabilityBound({self.criterion}: {self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True, eq=False, repr=False)
class StabilityLimit(Drawable):
    """The largest stable learning rate of a network, under two or three criteria.

    ``lr``, ``low``, ``high`` and ``reason`` are those of the criterion asked for; the others are
    available as ``diverges``, ``does_not_learn`` and ``leaves``.

    The chart: final losses over learning rates, with the intervals.

    Attributes:
        criterion: which of them is the headline.
        diverges: where the loss blows up.
        does_not_learn: where the loss falls less than half as far as at the best rate, or not
            below start and chance.
        trials: every training, in the order made.
        complete: False if time or the user ended the search.
        seconds: time spent.
        convention: every setting that was in effect.
        leaves: where the loss rises above 10 times its start; None unless it was asked for.
    """

    criterion: str
    diverges: StabilityBound
    does_not_learn: StabilityBound
    trials: tuple[StabilityTrial, ...]
    complete: bool
    seconds: float
    convention: dict[str, Any] = field(default_factory=dict)
    leaves: StabilityBound | None = None

    @property
    def bounds(self) -> tuple[StabilityBound, ...]:
        """The interval of every criterion that was looked at."""
        return tuple(b for b in (self.diverges, self.does_not_learn, self.leaves) if b is not None)

    @property
    def bound(self) -> StabilityBound:
        """The interval of the criterion asked for."""
        return next(bound for bound in self.bounds if bound.criterion == self.criterion)

    @property
    def lr(self) -> float:
        """Middle of the interval in log-lr; 0 or infinite if an end is open."""
        return self.bound.lr

    @property
    def low(self) -> float:
        """A learning rate below the limit."""
        return self.bound.low

    @property
    def high(self) -> float:
        """A learning rate above the limit."""
        return self.bound.high

    @property
    def reason(self) -> str:
        """What to know about the interval; empty if it is closed and as narrow as asked."""
        return "; ".join(filter(None, [self.bound.reason, self._warning]))

    @property
    def ended(self) -> str:
        """Why the search ended early; empty if it did not."""
        return "" if self.complete else self.bound.reason

    @property
    def ok(self) -> bool:
        """Whether the interval is closed and the search was not cut short."""
        return self.complete and self.bound.closed

    def to_frame(self) -> DataFrame:
        """One row per training, by learning rate."""
        names = ("lr", "seed", "outcome", "updates", "start", "final", "chance", "rising", "reason")
        return listed(self.trials, *names).sort_values(["lr", "seed"], ignore_index=True)

    def summary(self) -> str:
        """A few lines for a terminal."""
        updates = sum(trial.updates for trial in self.trials)
        lines = [
            f"{HEADLINES[self.criterion]}: {_shown(self.bound)}",
            *([f"  {self._warning}"] if self._warning else []),
            *(f"  {bound.criterion:<15} {_shown(bound)}{_note(bound)}" for bound in self.bounds),
            f"{len(self.trials)} training runs, {updates} updates, {self.seconds:.1f} s"
            f"{'' if self.complete else '; NOT complete'}",
            ", ".join(f"{k} {v}" for k, v in self.convention.items() if v is not None),
        ]
        return "\n".join(lines)

    @property
    def _warning(self) -> str:
        """That a network stops learning before it diverges, where it does."""
        low, stable = self.does_not_learn.low, self.diverges.low
        if self.criterion != "diverges" or not low < stable:
            return ""
        if low > 0:
            return f"it stops learning above {low:.4g}, and does not diverge up to {stable:.4g}"
        return "it does not diverge, but no rate that was tried learns either"

    def __repr__(self) -> str:
        state = "" if self.complete else ", NOT complete"
        return (
            f"StabilityLimit({_shown(self.bound)}, {self.criterion}, {len(self.trials)} "
            f"training runs{state})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class LRRange(Drawable):
    """One training with a learning rate that grows from update to update.

    The chart: loss over learning rate with fit and suggestion.

    Attributes:
        lrs: learning rate of each update, (n,).
        losses: mini-batch loss before each update, (n,).
        fitted: the loss as a smooth function of log-lr, (n,).
        slope: d log(loss) / d ln(lr) of that function, (n,); of the loss itself where it is not
            positive throughout.
        suggestion: where the loss falls fastest; NaN if it does not fall.
        low: from here on the loss falls at least half as fast.
        high: up to here.
        turn: where the loss is lowest before it rises for good; infinite if it does not rise.
        ok: whether there is a suggestion.
        reason: why there is none, or what to know about it.
        rule: how the suggestion was made.
        diverged: the loss broke the divergence rule.
        seconds: time spent.
        convention: every setting that was in effect.
    """

    lrs: Array
    losses: Array
    fitted: Array
    slope: Array
    suggestion: float
    low: float
    high: float
    turn: float
    ok: bool
    reason: str
    rule: str
    diverged: bool
    seconds: float
    convention: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> DataFrame:
        """One row per update: learning rate, loss, fitted loss, slope."""
        columns = {"lr": self.lrs, "loss": self.losses, "fitted": self.fitted, "slope": self.slope}
        return framed(columns).rename_axis("step")

    def summary(self) -> str:
        """A few lines for a terminal."""
        found = f"{self.suggestion:.4g} [{self.low:.4g}, {self.high:.4g}]" if self.ok else "none"
        turn = f"rises from {self.turn:.4g} on" if self.turn < math.inf else "does not rise"
        precision = f", {self.convention['precision']}" if "precision" in self.convention else ""
        return "\n".join(
            [
                f"learning-rate range {self.lrs[0]:.3g} to {self.lrs[-1]:.3g}: suggestion {found}",
                f"rule: {self.rule}",
                f"the loss {turn}{'; the training diverged' if self.diverged else ''}",
                *([self.reason] if self.reason else []),
                f"{len(self.lrs)} updates, {self.seconds:.1f} s{precision}",
            ]
        )

    def __repr__(self) -> str:
        if not self.ok:
            return f"LRRange(no suggestion: {self.reason})"
        return f"LRRange({self.suggestion:.4g} [{self.low:.4g}, {self.high:.4g}])"


LEAVES = 10.0  # times its start, above which a loss has left the minimum
HEADLINES = {
    "diverges": "largest learning rate that does not diverge",
    "leaves": f"largest learning rate that stays below {LEAVES:g} times the first loss",
    "does-not-learn": "largest learning rate that learns",
}


def rate_in_words(lr: float, low: float, high: float, *, unknown: str) -> str:
    """A learning rate with its interval, of which an end may be open."""
    if 0 < lr < math.inf:
        return f"{lr:.4g} [{low:.4g}, {high:.4g}]"
    if low > 0 and high == math.inf:
        return f"above {low:.4g}"
    return f"below {high:.4g}" if low == 0 and high < math.inf else unknown


def _shown(bound: StabilityBound) -> str:
    return rate_in_words(bound.lr, bound.low, bound.high, unknown="not found")


def _note(bound: StabilityBound) -> str:
    return f"  ({bound.reason})" if bound.reason else ""
