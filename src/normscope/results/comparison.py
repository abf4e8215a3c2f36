"""A prediction beside the measurement of the same quantity."""

from __future__ import annotations

from dataclasses import dataclass, field

from normscope.results.base import DataFrame, Drawable, framed


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Drawable):
    """lambda_max of J^T J / T over the weights, predicted and measured.

    The chart: predicted beside measured.

    Attributes:
        predicted: the theory's value; with the splitting over outputs where it is known.
        measured: the value measured on this network.
        bound: bound of the error of ``measured``.
        loss_scale: largest eigenvalue of mean(diag p - p p^T), by which cross-entropy scales the
            matrix, approximately; 1 for the squared loss.
        loss_predicted: ``predicted`` times ``loss_scale``: of the loss's own Fisher matrix.
        loss_measured: lambda_max of the loss's own Fisher matrix, over the same weights.
        flags: assumptions of the theory that do not hold here.
        convention: what was measured and how.
    """

    predicted: float
    measured: float
    bound: float
    loss_scale: float
    loss_predicted: float
    loss_measured: float
    flags: tuple[str, ...] = ()
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The measured value divided by the predicted one."""
        return self.measured / self.predicted if self.predicted else float("inf")

    def to_frame(self) -> DataFrame:
        """Two rows: J^T J / T, and the loss's own Fisher matrix."""
        columns = {
            "matrix": ["J^T J / T", "Fisher matrix of the loss (approximate prediction)"],
            "predicted": [self.predicted, self.loss_predicted],
            "measured": [self.measured, self.loss_measured],
        }
        return framed(columns)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [
            f"lambda_max of J^T J / T over the weights: predicted {self.predicted:.4g}, measured "
            f"{self.measured:.4g} (ratio {self.ratio:.2f})"
        ]
        if self.loss_scale != 1:
            lines.append(
                f"of the loss's own Fisher matrix: about {self.loss_predicted:.4g} by scaling with "
                f"{self.loss_scale:.3g}, measured {self.loss_measured:.4g}"
            )
        return "\n".join([*lines, *self.flags])

    def __repr__(self) -> str:
        return f"Comparison(predicted {self.predicted:.4g}, measured {self.measured:.4g})"
