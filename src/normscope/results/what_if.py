"""What changes of a network would do to it: one table, before and after."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import near_match
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.stability import StabilityBound

BEFORE = "as it is"
CRITERIA = ("does-not-learn", "diverges")
APART = 3.0  # factor between two ratios that is called large
CLEARLY = 1.25  # times lower, from where on a loss is called lower
PAIRS = 3  # seeds, at least, behind a comparison of losses


@dataclass(frozen=True, eq=False, repr=False)
class Variant(Record):
    """One network of a comparison: as it is, or after one change.

    Attributes:
        change: as it was written; ``"as it is"`` for the network before.
        loss: before any training.
        lambda_max: largest curvature of the loss on the first batches.
        lambda_error: bound of its error.
        threshold: 2 (1 + momentum) / lambda_max; NaN where that does not hold.
        diverges: bisected limit; None if it was not looked for.
        does_not_learn: the same for the other criterion.
        learned: whether one of its training runs ended below start and chance.
        reached: lowest loss of its training runs; NaN without any. There are a few more runs
            than those of the bisection, around the best one.
        reached_lr: the rate at which it was reached.
        finals: losses at this rate, one per seed; the seeds are the same for all variants.
        kappa: largest kappa_80% of the hidden layers.
        kappa_layer: where.
        reason: what could not be made or measured, and why; empty if nothing.
        ended: why its training runs ended early; empty if they did not.
    """

    change: str
    loss: float = math.nan
    lambda_max: float = math.nan
    lambda_error: float = math.nan
    threshold: float = math.nan
    diverges: StabilityBound | None = None
    does_not_learn: StabilityBound | None = None
    learned: bool = False
    reached: float = math.nan
    reached_lr: float = math.nan
    finals: tuple[float, ...] = ()
    kappa: float = math.nan
    kappa_layer: str = ""
    reason: str = ""
    ended: str = ""

    @property
    def made(self) -> bool:
        """Whether anything is known of it."""
        return not math.isnan(self.lambda_max) or self.diverges is not None

    def __repr__(self) -> str:
        if not self.made:
            return f"Variant({self.change!r}: {self.reason})"
        return f"Variant({self.change!r}, lambda_max {self.lambda_max:.4g})"


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(Drawable):
    """A network before and after single changes.

    The chart: thresholds and limits of all variants.

    Attributes:
        variants: the network as it is, then one per change in the order given.
        seconds: time spent.
        convention: every setting that was in effect.
    """

    variants: tuple[Variant, ...]
    seconds: float
    convention: dict[str, Any] = field(default_factory=dict)

    @property
    def before(self) -> Variant:
        """The network as it is."""
        return self.variants[0]

    @property
    def after(self) -> tuple[Variant, ...]:
        """The results of the changed networks."""
        return self.variants[1:]

    @property
    def ended(self) -> str:
        """Why it ended early; empty if neither time nor the user ended it."""
        return next((variant.ended for variant in self.variants if variant.ended), "")

    def __getitem__(self, change: str) -> Variant:
        for variant in self.variants:
            if variant.change == change:
                return variant
        raise InputError(
            f"No change {change!r} here. {near_match(change, [v.change for v in self.variants])}"
        )

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.variants)

    def curvature_ratio(self, variant: Variant) -> float:
        """lambda_max before / after: how much larger a rate the curvature alone would allow."""
        after = variant.lambda_max
        return self.before.lambda_max / after if after > 0 else math.nan

    def limit_ratio(
        self, variant: Variant, criterion: str | None = None
    ) -> tuple[float, float, float]:
        """Bisected limit after / before: value, lowest and highest that the intervals allow.

        ``criterion``: ``"does-not-learn"`` or ``"diverges"``; None takes the first for which both
        limits are closed intervals.
        """
        if criterion is None and self.before.learned and not variant.learned:
            return math.nan, math.nan, math.nan  # a network that never learned has no stable rate
        for name in CRITERIA if criterion is None else (criterion,):
            a, b = limit_of(variant, name), limit_of(self.before, name)
            if a is not None and b is not None and a.closed and b.closed:
                return a.lr / b.lr, a.low / b.high, a.high / b.low
        return math.nan, math.nan, math.nan

    def loss_ratio(self, variant: Variant) -> tuple[float, float, float]:
        """Loss reached after / before: value and 95 % t-interval over paired seeds.

        The geometric mean over the seeds, each network at its best rate. NaN with fewer than three
        seeds, or losses that have no logarithm.
        """
        pairs = list(zip(variant.finals, self.before.finals, strict=False))
        if len(pairs) < PAIRS or not all(0 < loss < math.inf for pair in pairs for loss in pair):
            return math.nan, math.nan, math.nan
        from scipy.special import stdtrit

        logs = [math.log(after / before) for after, before in pairs]
        mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
        wide = float(stdtrit(len(logs) - 1, 0.975)) * error
        return math.exp(mean), math.exp(mean - wide), math.exp(mean + wide)

    def disagreement(self, variant: Variant) -> float:
        """How far the two ratios are apart, as a factor from 1 on; NaN if one is not known.

        So it is for an optimizer whose rates no curvature bounds.
        """
        bounded = variant.threshold > 0
        one = self.curvature_ratio(variant) if bounded else math.nan
        other = self.limit_ratio(variant)[0]
        return math.exp(abs(math.log(one / other))) if one > 0 and other > 0 else math.nan

    def learns_as_well(self, variant: Variant) -> bool:
        """Whether its training runs reached a loss at most as high as the unchanged network."""
        return variant.learned and not self.loss_ratio(variant)[1] > 1

    @property
    def best(self) -> Variant | None:
        """The change that reaches the lowest loss, if it is better than the unchanged network.

        Better: 1.25 times lower, and lower for certain, by the interval over paired seeds. A
        larger rate is no gain by itself.
        """
        ratios = {v: self.loss_ratio(v) for v in self.after if v.learned}
        better = [v for v, (value, _, high) in ratios.items() if high < 1 and value * CLEARLY <= 1]
        return min(better, key=lambda v: ratios[v][0], default=None)

    def gain_in_words(self, variant: Variant) -> str:
        """Loss and stable rate of ``variant`` against the network as it is, with intervals."""
        loss, low, high = self.loss_ratio(variant)
        words = f"the loss reached is {loss:.2g} [{low:.2g}, {high:.2g}] times as high "
        words += f"({len(variant.finals)} paired seeds), "
        rate, low, high = self.limit_ratio(variant)
        if math.isnan(rate):
            return f"{words}the largest stable learning rate is not known to change"
        change = f"{rate:.2g} [{low:.2g}, {high:.2g}] times as large"
        return f"{words}the largest stable learning rate {change}"

    def to_frame(self) -> DataFrame:
        """One row per variant."""
        return framed([self._row(variant) for variant in self.variants])

    def _row(self, v: Variant) -> dict[str, Any]:
        row = {name: getattr(v, name) for name in ("change", "loss", "lambda_max", "threshold")}
        for name, bound in (("diverges", v.diverges), ("learns", v.does_not_learn)):
            for end in ("low", "high"):
                row[f"{name}_{end}"] = math.nan if bound is None else getattr(bound, end)
        row |= {"reached": v.reached, "kappa_80": v.kappa}
        row["curvature_ratio"] = self.curvature_ratio(v)
        names = ("limit_ratio", "limit_ratio_low", "limit_ratio_high")
        return row | dict(zip(names, self.limit_ratio(v), strict=True)) | {"reason": v.reason}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be made, and where curvature and measured limits tell another story."""
        lines = [f"{v.change}: {v.reason}" for v in self.variants if v.reason]
        for v in self.after:
            factor = self.disagreement(v)
            if factor > APART:
                lines.append(
                    f"{v.change}: the curvature promises {_times(self.curvature_ratio(v))} the "
                    "learning rate, training runs are stable up to "
                    f"{_times(self.limit_ratio(v)[0])}; the two differ by a factor {factor:.3g}. "
                    "The curvature is that of the start: trust the training runs."
                )
        return tuple(lines)

    def summary(self) -> str:
        """A table for a terminal."""
        head = ["change", "loss", "lambda_max", "threshold", "diverges at", "stops learning above"]
        head += ["reached", "kappa_80", "1/lambda", "limit"]
        rows = [head, *(self._cells(v) for v in self.variants if v.made)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        best = self.best
        verdict = "no change learns better than the unchanged network"
        if best is not None:
            verdict = f"best: {best.change}: {self.gain_in_words(best)}"
        tail = [verdict] if any(v.does_not_learn for v in self.after) else []
        return "\n".join([*(line.rstrip() for line in lines), *tail, *self.notes])

    def _cells(self, v: Variant) -> list[str]:
        numbers = [_number(value) for value in (v.loss, v.lambda_max, v.threshold)]
        limits = [_interval(bound) for bound in (v.diverges, v.does_not_learn)]
        ratios = [_times(self.curvature_ratio(v)), _times(self.limit_ratio(v)[0])]
        ratios = ["1", "1"] if v is self.before else ratios
        return [v.change, *numbers, *limits, _number(v.reached), _number(v.kappa), *ratios]

    def __repr__(self) -> str:
        best = self.best
        return f"WhatIf({len(self.after)} changes, best: {best.change if best else 'none'})"


def limit_of(variant: Variant, criterion: str) -> StabilityBound | None:
    """One of the two bisected limits."""
    return variant.diverges if criterion == "diverges" else variant.does_not_learn


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"x {ratio:.3g}"


def _interval(bound: StabilityBound | None) -> str:
    if bound is None:
        return "-"
    low = "" if bound.low == 0 else f"{bound.low:.3g}"
    high = "" if bound.high == math.inf else f"{bound.high:.3g}"
    return f"{low} to {high}".strip() if low or high else "not found"
