"""What theory says of changes that take long to measure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, digits, framed


@dataclass(frozen=True, eq=False)
class PredictedChanges(Record):
    """Predicted sharpness of the network as it is, which comes first, and of changed ones.

    Attributes:
        changes: what was changed, in words.
        lambda_max: largest eigenvalue of J^T J / T over the weights; NaN where there is none.
        trace: its trace.
        reasons: why there is no number, or what limits it; empty if nothing does.
        level: detail of the kernels.
    """

    changes: tuple[str, ...]
    lambda_max: Array
    trace: Array
    reasons: tuple[str, ...]
    level: str

    def ratios(self) -> Array:
        """lambda_max against the network as it is; stable rates change by one over it."""
        return np.asarray(self.lambda_max / self.lambda_max[0])

    def to_frame(self) -> DataFrame:
        """One row per change."""
        columns = {"change": self.changes, "lambda_max": self.lambda_max, "sharper": self.ratios()}
        with np.errstate(divide="ignore"):
            columns |= {
                "rate_against_now": 1 / self.ratios(),
                "trace": self.trace,
                "remark": self.reasons,
            }
        return framed(columns)

    def summary(self) -> str:
        """A few lines of plain text."""
        rows = zip(self.changes, self.lambda_max, self.ratios(), strict=True)
        lines = [f"  {what}: {digits(top)} (x {digits(ratio)})" for what, top, ratio in rows]
        return "\n".join([f"lambda_max of J^T J / T by theory, level {self.level}", *lines])
