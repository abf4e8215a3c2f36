"""Leading directions of a Fisher matrix, and bounds of its largest eigenvalue."""

from __future__ import annotations

from dataclasses import dataclass, field

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, ranked
from normscope.results.estimate import Estimate


@dataclass(frozen=True, eq=False, repr=False)
class LeadingDirections(Drawable):
    """Leading eigenvalues of J^T J / T beside the mean gradients of the outputs.

    The chart: mean gradients of the outputs beside lambda_max.

    Attributes:
        values: leading eigenvalues, largest first.
        bounds: bounds of their errors.
        shares: share of each eigenvector in the span of the mean gradients, 0 to 1.
        outliers: |E_t grad f_k|^2 of each output, the estimate of lambda_max from one backward
            pass per output; a lower bound of it.
        rayleigh: Rayleigh quotient of F in the direction of each mean gradient, sharper.
        span: the largest Rayleigh quotient of F in the span of the mean gradients, sharper still.
        converged: whether the eigenvalues reached their tolerance.
        seed: seed for the solver.
        convention: what was measured and how.
    """

    values: Array  # (k,)
    bounds: Array  # (k,)
    shares: Array  # (k,)
    outliers: Array  # (outputs,)
    rayleigh: Array  # (outputs,)
    span: float
    converged: bool
    seed: int
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def explained(self) -> float:
        """Share of lambda_max that the mean gradients explain, 0 to 1."""
        top = max(float(self.values[0]), self.span)  # both are lower bounds of lambda_max
        return self.span / top if top > 0 else 0.0

    def to_frame(self) -> DataFrame:
        """One row per eigenvalue."""
        columns = {"value": self.values, "bound": self.bounds, "mean_gradient_share": self.shares}
        return ranked(columns)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"lambda_max {self.values[0]:.6g}; estimate from mean gradients "
            f"{self.span:.6g} (|E grad f|^2 up to {self.outliers.max():.6g})"
        ]
        pairs = enumerate(zip(self.values, self.shares, strict=True), start=1)
        lines += [f"  {i:3d}  {v:.6g}  {100 * s:.1f} % mean gradient" for i, (v, s) in pairs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"LeadingDirections(lambda_max={self.values[0]:.6g}, share={self.shares[0]:.3f})"


@dataclass(frozen=True, eq=False, repr=False)
class SpectralBounds(Record):
    """tr A^2 / tr A <= lambda_max <= sqrt(tr A^2), each an estimate with its standard error."""

    lower: Estimate
    upper: Estimate
    trace: Estimate
    trace_of_square: Estimate
    convention: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """Two lines for a terminal."""
        return f"{self.lower.summary()} <= lambda_max\nlambda_max <= {self.upper.summary()}"

    def __repr__(self) -> str:
        return f"SpectralBounds({self.lower.value:.6g} .. {self.upper.value:.6g})"
