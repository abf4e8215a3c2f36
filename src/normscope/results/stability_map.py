"""Where training is stable, over learning rate and one more setting: Wei's heat map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.stability import StabilityBound


@dataclass(frozen=True, eq=False, repr=False)
class StabilityMap(Drawable):
    """Training runs over learning rate and another setting, each repeated with several seeds.

    A cell has a loss only if all its runs are stable (Wei et al. 2019: white where any restart
    diverged). The boundary at each value of the setting is an interval: from the largest rate below
    every failure of any seed to the smallest one above every success of any seed. It holds the
    width of the grid and the spread of the seeds.

    The chart: final test loss over the setting and log10 of the rate, with the boundary, the
    critical rate of each theory and half of it.

    Attributes:
        axis: the other setting.
        values: its values, (m,), growing.
        lrs: learning rates, (n,), growing.
        loss: mean final test loss over the seeds, (m, n); NaN where any run failed or is missing.
        failed: share of the runs that failed by the criterion, (m, n); NaN where none has ended.
        seeds: number of runs of a cell.
        criterion: ``"diverges"``, or ``"does-not-learn"``: diverges, or ends no better than chance.
        bounds: the boundary at each value.
        limits: the boundary of each seed, (m, seeds), middle of its cell in log-lr; NaN where it
            lies outside the grid.
        theories: critical learning rate by each theory, (m,).
        chance: test loss of the best constant answer.
        missing: runs that have not ended well.
        convention: what all runs share.
    """

    axis: str
    values: Array
    lrs: Array
    loss: Array
    failed: Array
    seeds: int
    criterion: str
    bounds: tuple[StabilityBound, ...]
    limits: Array
    theories: dict[str, Array]
    chance: float
    missing: int = 0
    convention: dict[str, Any] = field(default_factory=dict)

    @property
    def boundary(self) -> Array:
        """The boundary at each value: the geometric mean over the seeds; NaN where one is open."""
        measured: Array = np.exp(np.mean(np.log(self.limits), axis=1))
        return measured

    def distances(self) -> DataFrame:
        """log10(boundary / critical rate) of each theory, with the interval of the boundary."""
        return framed(
            list(self._distances()), columns=[self.axis, "theory", "decades", "low", "high"]
        )

    def _distances(self) -> Iterator[tuple[Any, ...]]:
        for name, rates in self.theories.items():
            for value, rate, limit, bound in zip(
                self.values, rates, self.boundary, self.bounds, strict=True
            ):
                low, high = (_decades(end, rate) for end in (bound.low, bound.high))
                yield float(value), name, _decades(float(limit), rate), low, high

    def to_frame(self) -> DataFrame:
        """One row per value: the boundary, its interval, and the critical rates."""
        columns: dict[str, Any] = {self.axis: self.values, "boundary": self.boundary}
        columns |= {end: [getattr(b, end) for b in self.bounds] for end in ("low", "high")}
        return framed(columns | self.theories | {"note": [b.reason for b in self.bounds]})

    def cells(self) -> DataFrame:
        """One row per cell: mean test loss and share of failed runs."""
        grid = np.meshgrid(self.values, self.lrs, indexing="ij")
        rows = {self.axis: grid[0], "lr": grid[1], "test_loss": self.loss, "failed": self.failed}
        return framed({name: np.ravel(values) for name, values in rows.items()})

    def summary(self) -> str:
        """The boundary and each theory's distance from it, in decades."""
        words = "diverges" if self.criterion == "diverges" else "diverges or learns nothing"
        lines = [f"stability limit over {self.axis} (a run {words}), {self.seeds} seeds"]
        names = list(self.theories)
        lines.append(f"{self.axis:>10}  {'boundary':>10}  {'interval':>23}" + _cells(names))
        places = {(row[0], row[1]): row[2:] for row in self._distances()}
        for value, limit, bound in zip(self.values, self.boundary, self.bounds, strict=True):
            shown = [_interval(*places[float(value), name]) for name in names]
            ends = f"{bound.low:.4g} to {bound.high:.4g}"
            middle = f"{limit:.4g}" if math.isfinite(limit) else "-"
            line = f"{value:>10.4g}  {middle:>10}  {ends:>23}{_cells(shown)}"
            lines.append(line + (f"  {bound.reason}" if bound.reason else ""))
        if names:
            lines.append(
                "theories: log10(boundary / critical rate) in decades, and that of the interval"
            )
        if self.missing:
            lines.append(f"{self.missing} runs are missing or failed")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"StabilityMap({len(self.values)} x {len(self.lrs)} cells over {self.axis}, "
            f"{self.seeds} seeds, {self.criterion})"
        )


def bound_of(lrs: Array, failed: Array, criterion: str) -> tuple[StabilityBound, Array]:
    """The boundary of one row of a map, and that of each seed.

    Args:
        lrs: growing, (n,).
        failed: 1 failed, 0 stable, NaN unknown; (n, seeds).
        criterion: its name. A run of ``"does-not-learn"`` below the smallest rate that learns was
            only too short, so that it does not count.
    """
    slow = 0.0
    if criterion == "does-not-learn":
        for column in (failed := failed.copy()).T:
            least = lrs[column == 0].min(initial=math.inf)
            below = (lrs < least) & (column == 1)
            if math.isfinite(least) and below.any():
                column[below], slow = math.nan, max(slow, float(least))
    ends = [_ends(lrs, column) for column in failed.T]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    mixed = any(end[2] for end in ends)
    reasons = ["fails below a rate at which it is stable"] if mixed else []
    bad, good = (failed == 1).any(0), (failed == 0).any(0)
    for words, which in (("is stable", good & ~bad), ("fails", bad & ~good)):
        if which.any():
            some = "" if which.all() else " with some seeds"
            reasons.append(f"{words} at every rate of the grid{some}")
    reasons += [f"learns too little below {slow:.4g}"] if slow else []
    limits = [math.sqrt(a) * math.sqrt(b) if a and b < math.inf else math.nan for a, b, _ in ends]
    bound = StabilityBound(criterion, low, high, mixed, "; ".join(reasons))
    return bound, np.array(limits)


def _ends(lrs: Array, failed: Array) -> tuple[float, float, bool]:
    """Largest rate below every failure, smallest above every success, whether they are mixed."""
    bad, good = lrs[failed == 1], lrs[failed == 0]
    first = bad.min() if len(bad) else math.inf
    last = good.max() if len(good) else 0.0
    below, above = good[good < first], bad[bad > last]
    low = float(below.max()) if len(below) else 0.0
    high = float(above.min()) if len(above) else math.inf
    return low, high, bool(first < last)


def _decades(rate: float, critical: float) -> float:
    if rate == 0:
        return -math.inf
    return math.log10(rate / critical) if critical > 0 else math.nan


def _interval(middle: float, low: float, high: float) -> str:
    shown = f"{middle:+.2f}" if math.isfinite(middle) else "-"
    return f"{shown} ({low:+.2f} to {high:+.2f})"


def _cells(words: list[str]) -> str:
    return "".join(f"  {word:>24}" for word in words)
