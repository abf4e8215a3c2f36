"""The loss and the channel moments along lines and planes of parameters, measured."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.layers import Coverage


@dataclass(frozen=True, eq=False, repr=False)
class Landscape(Drawable):
    """Loss and signals on a grid of distances along one direction, or two.

    Infinite and NaN numbers are results: the network overflowed there.

    The chart: loss and moments over the distance, or a map of the plane.

    Attributes:
        axes: distances along each direction.
        loss: mean over batches, on the grid.
        initial_loss: at distance 0, whether or not the grid has it.
        layers: weighted layers in forward order.
        mean_abs: mean over channels of |mu_c| of what comes out of each layer, on the grid.
        variance: mean over channels of sigma_c^2.
        initial_mean_abs: ``mean_abs`` at distance 0.
        initial_variance: ``variance`` at distance 0.
        first_nonfinite: for each grid point the first layer whose output is not finite, or "".
        diverges_between: positive distances between which the loss first diverges; None if it
            does not, or for a plane.
        limit: the loss above which it counts as diverged.
        directions: what they are, in words.
        seed: seed for random directions.
        coverage: the layers, and those left out.
        convention: what was measured and how.
    """

    axes: tuple[Array, ...]  # one or two
    loss: Array  # (n,) or (n, m)
    initial_loss: float
    layers: tuple[str, ...]
    mean_abs: Array  # (layers, *grid)
    variance: Array  # (layers, *grid)
    initial_mean_abs: Array  # (layers,)
    initial_variance: Array  # (layers,)
    first_nonfinite: tuple[str, ...]  # (points,), last axis fastest
    diverges_between: tuple[float, float] | None
    limit: float
    directions: tuple[str, ...]
    seed: int
    coverage: Coverage
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def distances(self) -> Array:
        """Along the only direction."""
        if len(self.axes) > 1:
            raise InputError("A plane has two axes of distances: use axes[0] and axes[1].")
        return self.axes[0]

    @property
    def growth(self) -> Array:
        """Variance of each layer over that at distance 0, (layers, *grid)."""
        start = self.initial_variance.reshape(-1, *[1] * self.loss.ndim)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: Array = self.variance / start
        return ratio

    @property
    def largest_decrease(self) -> float | None:
        """The largest positive distance on the grid whose loss lies below the initial one."""
        below = (self.loss < self.initial_loss) & (self.distances > 0)
        return float(self.distances[below].max()) if below.any() else None

    @property
    def way(self) -> str:
        """The directions in words."""
        first, *second = self.directions
        if not second:
            return first
        return f"{first} and {'another such' if second[0] == first else second[0]}"

    def to_frame(self) -> DataFrame:
        """One row per grid point and layer; left-out layers come last."""
        growth = self.growth
        rows: list[dict[str, Any]] = []
        for index in itertools.product(*(range(len(axis)) for axis in self.axes)):
            names = ("distance", "second_distance")
            at = {n: float(a[i]) for n, a, i in zip(names, self.axes, index, strict=False)}
            for k, layer in enumerate(self.coverage.ok):
                place = (k, *index)
                found = {"mean_abs": self.mean_abs[place], "variance": self.variance[place]}
                row = layer.row(**found, growth=growth[place])
                rows.append(at | {"loss": self.loss[index]} | row)
        return framed(rows + [left.row() for left in self.coverage.left_out])

    def summary(self) -> str:
        """A few lines for a terminal."""
        lowest = np.nanmin(self.loss) if np.isfinite(self.loss).any() else math.nan
        lines = [
            f"Loss along {self.way}: {self.initial_loss:.6g} at the start, {lowest:.6g} at the "
            f"lowest of {self.loss.size} points",
            f"  {self._divergence()}",
        ]
        if self.loss.ndim == 1:
            far = self.largest_decrease
            lines.append(
                "  no point on the grid lowers the loss"
                if far is None
                else f"  the loss lies below its start up to distance {far:g}"
            )
        return "\n".join([*lines, self.coverage.summary()])

    def _divergence(self) -> str:
        if self.loss.ndim == 2:
            over = int((~(self.loss <= self.limit)).sum())
            return f"{over} of {self.loss.size} points above {self.limit:.4g} or not finite"
        if self.diverges_between is None:
            return f"does not diverge (limit {self.limit:.4g})"
        low, high = self.diverges_between
        last = next((name for name in self.first_nonfinite[::-1] if name), "")
        where = f"; at the far end signals overflow from {last!r} on" if last else ""
        return f"diverges between distance {low:.4g} and {high:.4g} (limit {self.limit:.4g}){where}"

    def __repr__(self) -> str:
        grid = " x ".join(str(len(axis)) for axis in self.axes)
        return f"Landscape({self.way}, {grid} points, start {self.initial_loss:.4g})"
