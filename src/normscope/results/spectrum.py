"""Eigenvalues of an operator, with all that is known about their error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, ranked


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum(Drawable):
    """Leading eigenvalues, best first.

    ``residuals`` are unconditional: an eigenvalue lies within ||A y - theta y|| of each value.
    ``bounds`` are of the error of the i-th leading eigenvalue: they add that none was missed,
    which the solver verified with a random vector (``verified``).

    The chart: eigenvalues by rank with their error bars.
    """

    values: Array  # (k,)
    residuals: Array  # (k,) ||A y - theta y||
    bounds: Array  # (k,) of |lambda_i - value_i|
    converged: bool
    verified: bool  # a random run saw no eigenvalue beyond those given
    matvecs: int
    dimension: int  # n of the operator asked
    which: str  # "largest", "smallest" or "magnitude"
    tol: float  # asked relative error
    confidence: float
    seed: int
    side: str  # "primal", or "dual" if the smaller Gram side was multiplied
    reason: str = ""  # why not converged, or what to know about the values
    convention: dict[str, str] = field(default_factory=dict)
    vectors: NDArray[np.floating] | None = None  # (k, n) rows, unit length

    @property
    def largest(self) -> float:
        """The largest of the values."""
        return float(self.values.max())

    def lr_threshold(self, momentum: float = 0.0) -> tuple[float, float, float]:
        """2 (1 + momentum) / lambda_max: value, low, high; NaN where nothing is curved upwards."""
        top, error = self.largest, float(self.bounds[int(self.values.argmax())])
        if not top > 0:
            return math.nan, math.nan, math.nan
        rate = 2 * (1 + momentum)
        return rate / top, rate / (top + error), rate / (top - error) if top > error else math.inf

    def to_frame(self) -> DataFrame:
        """One row per eigenvalue: value, residual, bound."""
        columns = {"value": self.values, "residual": self.residuals, "bound": self.bounds}
        return ranked(columns)

    def summary(self) -> str:
        """A few lines for a terminal."""
        state = "converged" if self.converged else "NOT converged"
        lines = [
            f"{len(self.values)} {self.which} eigenvalues of a {self.dimension} x "
            f"{self.dimension} operator: {state} to {self.tol:g}, {self.matvecs} products "
            f"on the {self.side} side, seed {self.seed}"
        ]
        pairs = enumerate(zip(self.values, self.bounds, strict=True), start=1)
        lines += [f"  {i:3d}  {value: .6g}  +- {bound:.1e}" for i, (value, bound) in pairs]
        return "\n".join(lines + ([self.reason] if self.reason else []))

    def __repr__(self) -> str:
        shown = ", ".join(f"{v:.6g}" for v in self.values[:3])
        more = ", ..." if len(self.values) > 3 else ""
        state = "" if self.converged else ", NOT converged"
        return f"Spectrum([{shown}{more}], {self.which}, {self.matvecs} products{state})"
