"""What changes of a network would do to it: one table, before and after."""

from __future__ import annotations

import math
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
        learned: whether one of its trainings came below start and chance.
        reached: lowest loss that one of its trainings came to; NaN without trainings. There are
            some more than those of the bisection, downhill from the best one.
        reached_lr: at which rate.
        kappa: largest kappa_80% of the hidden layers.
        kappa_layer: where.
        reason: what could not be made or measured, and why; empty if nothing.
        ended: why its trainings ended early; empty if they did not.
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
        """The changed networks."""
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
            return math.nan, math.nan, math.nan  # what never learned bears no rate
        for name in CRITERIA if criterion is None else (criterion,):
            a, b = limit_of(variant, name), limit_of(self.before, name)
            if a is not None and b is not None and a.closed and b.closed:
                return a.lr / b.lr, a.low / b.high, a.high / b.low
        return math.nan, math.nan, math.nan

    def disagreement(self, variant: Variant) -> float:
        """How far the two ratios are apart, as a factor from 1 on; NaN if one is not known.

        So it is for an optimizer whose rates no curvature bounds.
        """
        bounded = variant.threshold > 0
        one = self.curvature_ratio(variant) if bounded else math.nan
        other = self.limit_ratio(variant)[0]
        return math.exp(abs(math.log(one / other))) if one > 0 and other > 0 else math.nan

    def learns_as_well(self, variant: Variant) -> bool:
        """Whether its trainings came to a loss at most as high as those before."""
        return variant.learned and not variant.reached > self.before.reached

    @property
    def best(self) -> Variant | None:
        """The change that comes to the lowest loss, if it is better than the network as it is.

        Better: clearly lower, or as low and for certain at larger rates (the lowest gain that the
        intervals allow is above 1). A larger rate is no gain by itself.
        """
        clearly = self.before.reached / CLEARLY
        better = [
            v
            for v in self.after
            if self.learns_as_well(v) and (v.reached <= clearly or self.limit_ratio(v)[1] > 1)
        ]
        return min(better, key=lambda v: v.reached, default=None)

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
        head = ["change", "loss", "lambda_max", "threshold", "diverges at", "learns no more at"]
        head += ["reached", "kappa_80", "1/lambda", "limit"]
        rows = [head, *(self._cells(v) for v in self.variants if v.made)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        best = self.best
        verdict = "no change learns better than the network as it is"
        if best is not None:
            verdict = f"best: {best.change}, which comes to a loss of {best.reached:.3g}"
            gain, low, high = self.limit_ratio(best)
            if low > 0:
                verdict += f" and bears {gain:.3g} times the learning rate [{low:.3g}, {high:.3g}]"
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
