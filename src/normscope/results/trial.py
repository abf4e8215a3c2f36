"""A few updates of a copy with the user's optimizer, at its rate and at others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from normscope.messages import counted
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, digits, listed

TINY = 1e-12  # of a loss of zero no share can be taken


@dataclass(frozen=True)
class TrialThresholds:
    """From where on a trial is called what (docs/design/0008-examine.md).

    Attributes:
        learns: gap below the best constant prediction from which a network learns.
        clear: gap from which it learns beyond doubt.
        doubtful: gap below which a longer trial decides.
        longer: times ``clear``, where the longer trial was needed.
        falls: share of the loss that a doubtful trial must have lost.
        trained: loss at the start, as a share of the constant's, below which it was trained before.
        rises: share of the constant's loss that a trained network may lose.
        learned: share of the loss gone on the samples trained on, from which others are asked.
        passed: part of it gone on others, below which fresh ones decide.
    """

    learns: float = 0.005
    clear: float = 0.10
    doubtful: float = 0.05
    longer: float = 1.5
    falls: float = 0.02
    trained: float = 0.5
    rises: float = 0.10
    learned: float = 0.04
    passed: float = 0.2


@dataclass(frozen=True, eq=False)
class Rung(Record):
    """Updates of one copy at one multiple of the rate.

    Attributes:
        factor: times the rate of every group of the optimizer.
        steps: updates asked for.
        updates: updates made.
        before: loss before the first one.
        after: loss after the last one, measured in the same way on the same batches.
        path: loss of each batch before its update.
        ended: why it ended early; empty if it did not.
        held: loss after the last one on batches that were not trained on; NaN without any.
        spread: variance of the outputs over the samples after the last one.
        fresh: whether it used all of the data, not only a few batches.
    """

    factor: float
    steps: int
    updates: int
    before: float
    after: float
    path: tuple[float, ...] = ()
    ended: str = ""
    held: float = math.nan
    spread: float = math.nan
    fresh: bool = False

    @property
    def diverged(self) -> bool:
        """Whether the loss is no longer finite."""
        return math.isfinite(self.before) and not math.isfinite(self.after)

    @property
    def fall(self) -> float:
        """Share of the loss that is gone; negative where it rose, -inf where it diverged."""
        if not math.isfinite(self.after):
            return -math.inf
        return (self.before - self.after) / max(abs(self.before), TINY)


@dataclass(frozen=True, eq=False)
class Trial(Drawable):
    """What a few updates of copies show: does it learn at this rate?

    The chart: the loss of each copy before every update.

    Attributes:
        lr: the rate of the optimizer; None if its groups have several.
        constant: loss of the best constant prediction; NaN if unknown.
        uniform: loss of the same probability for every class; NaN if there are no classes.
        before: loss at the start.
        rungs: the trials, in the order made.
        batches: how many different batches the updates used.
        gradients: cost, in gradients of the loss of one batch.
        seconds: cost, in seconds, which are no part of what makes two trials equal.
        ended: why trials are missing; empty if none is.
        reason: why the rate is not judged; empty if it is.
        left_out: trials that the time did not allow, in words; empty if there are none.
        unmoved: trainable parameters of the optimizer that the updates did not change.
        optimizer: the optimizer in words.
        assumed: the rate that was tried because none was given; None if one was.
        held: loss at the start on batches that are not trained on; NaN without any.
        held_constant: loss of the best constant prediction on these.
        spread: variance of the outputs over the samples at the start.
        limitless: whether the loss fell below zero, though targets are zeros and ones, with
            outputs beyond them.
        fresh: whether there is more data than the few batches of the trial.
        most: whether these are most of it.
    """

    lr: float | None
    constant: float
    uniform: float
    before: float
    rungs: tuple[Rung, ...]
    batches: int = 0
    gradients: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    ended: str = ""
    reason: str = ""
    left_out: str = ""
    unmoved: tuple[str, ...] = ()
    optimizer: str = ""
    assumed: float | None = None
    held: float = math.nan
    held_constant: float = math.nan
    spread: float = math.nan
    limitless: bool = False
    fresh: bool = False
    most: bool = False

    limits: ClassVar[TrialThresholds] = TrialThresholds()

    def to_frame(self) -> DataFrame:
        """One row per trial."""
        return listed(self.rungs, "factor", "steps", "updates", "before", "after", "ended")

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"loss {digits(self.before)}, constant prediction {digits(self.constant)}"]
        lines += [
            f"{rung.factor:g} times the rate: {digits(rung.after)} after "
            f"{counted(rung.updates, 'update')}"
            for rung in self.rungs
        ]
        cost = f"{self.gradients:.0f} gradients, {self.seconds:.1f} s"
        return "\n".join([*lines, *filter(None, [self.reason, self.left_out]), cost])

    def rung(self, factor: float = 1.0, *, longest: bool = False) -> Rung | None:
        """The first trial at ``factor``, or the longest one; None if there is none."""
        found = [r for r in self.rungs if math.isclose(r.factor, factor) and not r.fresh]
        return max(found, key=lambda r: r.steps) if longest and found else next(iter(found), None)

    @property
    def own(self) -> Rung | None:
        """The trial at the user's own rate."""
        return self.rung()

    @property
    def judged(self) -> bool:
        """Whether there is a trial at the user's rate that says something."""
        return self.own is not None and not self.reason

    @property
    def reference(self) -> float:
        """What learning must get below: the start, or the best constant prediction."""
        return self.before if not self.constant > 0 else min(self.before, self.constant)

    @property
    def scale(self) -> float:
        """The loss that differences are held against."""
        return max(self.constant if self.constant > 0 else abs(self.before), TINY)

    def gap_of(self, rung: Rung | None) -> float:
        """How far a trial ends below ``reference``, as a share of it; -inf if it diverged."""
        if rung is None or not math.isfinite(rung.after) or not math.isfinite(self.reference):
            return -math.inf
        return (self.reference - rung.after) / max(abs(self.reference), TINY)

    @property
    def gap(self) -> float:
        """How far the trials at the user's rate end below ``reference``: the best of them."""
        return max(
            (self.gap_of(r) for r in self.rungs if r.factor == 1.0 and not r.fresh),
            default=-math.inf,
        )

    @property
    def fall(self) -> float:
        """Share of the loss that the first trial at the user's rate took away."""
        return -math.inf if self.own is None else self.own.fall

    @property
    def trained(self) -> bool:
        """Whether the network had learned before the trial."""
        chance = self.constant if self.constant > 0 else self.uniform
        return chance > 0 and self.before < self.limits.trained * chance

    @property
    def diverged(self) -> bool:
        """Whether the loss is no longer finite at the user's rate."""
        return self.own is not None and self.own.diverged

    @property
    def own_rises(self) -> bool:
        """Whether the loss is higher after the first trial at the user's rate."""
        return self.own is not None and not self.own.after <= self.before

    @property
    def best_lower(self) -> Rung | None:
        """The short trial at a smaller rate that ends lowest, the larger rate if about as low."""
        found = [r for r in (self.rung(0.1), self.rung(0.01)) if r is not None]
        if len(found) > 1 and found[1].after < found[0].after - self.limits.falls * self.scale:
            return found[1]
        return next(iter(found), None)

    @property
    def learns(self) -> bool:
        """Whether it learns at the user's rate, or keeps what it had learned."""
        if not self.judged:
            return False
        kept = (
            self.own is not None and self.own.after < self.before + self.limits.rises * self.scale
        )
        return self.gap > self.limits.learns or (self.trained and kept)

    @property
    def clear(self) -> bool:
        """Whether it does so beyond doubt: then no guess about its causes warns."""
        if not self.learns:
            return False
        longer = self.rung(longest=True) is not self.own
        line = self.limits.clear * (self.limits.longer if longer else 1.0)
        return self.trained or self.gap >= line

    @property
    def goal(self) -> float:
        """What the loss of other samples must get below: with their own shares of the classes."""
        return max(self.reference, self.held_constant if self.held_constant > 0 else 0.0)

    @property
    def by_heart(self) -> bool:
        """Whether only the samples that were trained on got better, so that others must decide."""
        own = self.rung(longest=True)
        if own is None or not self.fresh or self.trained or not math.isfinite(own.held):
            return False
        gained, passed = self.reference - own.after, self.goal - own.held
        return gained > self.limits.learned * self.scale and passed < self.limits.passed * gained

    @property
    def doubtful(self) -> bool:
        """Whether its first trial cannot tell, and a longer one should."""
        falls = self.limits.falls <= self.fall < math.inf
        return not self.trained and falls and self.gap_of(self.own) < self.limits.doubtful
