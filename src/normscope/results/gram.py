"""The whole non-zero spectrum of a Fisher matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, ranked


@dataclass(frozen=True, eq=False, repr=False)
class GramSpectrum(Drawable):
    """Every eigenvalue above rounding of F* (equally: every non-zero one of F).

    The chart: eigenvalues by rank.

    Attributes:
        values: eigenvalues, largest first.
        size: rows of the Gram matrix; the rest of its eigenvalues are zero to rounding.
        floor: eigenvalues below this are rounding.
        trace: trace of F.
        samples: T over all batches.
        outputs: C, outputs per sample.
        route: how the matrix was made: layer by layer, or by exact products.
        last_norm: the norm applied analytically to the outputs, if any.
        convention: what was measured and how.
    """

    values: Array  # (rank,)
    size: int
    floor: float
    trace: float
    samples: int
    outputs: int
    route: str
    last_norm: str | None = None
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """lambda_max; 0 for a zero matrix."""
        return float(self.values[0]) if len(self.values) else 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Tr F*^2 / tr F* <= lambda_max <= sqrt(tr F*^2) (Karakida S.13, rigorous)."""
        second = float(np.sum(self.values**2))
        return (second / self.trace if self.trace > 0 else 0.0), second**0.5

    def to_frame(self) -> DataFrame:
        """One row per eigenvalue."""
        return ranked({"value": self.values})

    def summary(self) -> str:
        """A few lines for a terminal."""
        lower, upper = self.bounds
        return (
            f"{len(self.values)} non-zero of {self.size} eigenvalues ({self.samples} samples x "
            f"{self.outputs} outputs, {self.route})\n"
            f"  lambda_max {self.largest:.6g}, between {lower:.6g} and {upper:.6g}\n"
            f"  trace {self.trace:.6g}"
        )

    def __repr__(self) -> str:
        return f"GramSpectrum(lambda_max={self.largest:.6g}, {len(self.values)} values)"
