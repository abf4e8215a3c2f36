"""A number known up to a standard error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from normscope.record import Record


def student(samples: int) -> float:
    """Standard errors on either side of a 95 % interval for a mean of so many draws."""
    from scipy.special import stdtrit

    return float(stdtrit(max(samples - 1, 1), 0.975))


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Record):
    """One estimated number, its standard error and how it was had."""

    quantity: str  # what it is, in words
    value: float
    standard_error: float  # 0 if exact
    exact: bool
    matvecs: int
    samples: int  # random vectors behind the standard error
    method: str
    seed: int
    dimension: int  # n of the operator asked
    side: str = "primal"
    convention: dict[str, str] = field(default_factory=dict)

    def interval(self, errors: float | None = None) -> tuple[float, float]:
        """From value - ``errors`` s.e. to value + ``errors`` s.e.; by default 95 % (Student)."""
        half = (student(self.samples) if errors is None else errors) * self.standard_error
        return self.value - half, self.value + half

    def sqrt(self, quantity: str) -> Estimate:
        """The square root as an estimate of ``quantity``: s.e. by the delta method, se / 2 sqrt."""
        root = math.sqrt(max(self.value, 0.0))
        error = self.standard_error / (2 * root) if root > 0 else math.sqrt(self.standard_error)
        return replace(self, quantity=quantity, value=root, standard_error=error)

    def summary(self) -> str:
        """One line for a terminal."""
        error = "exact" if self.exact else f"+- {self.standard_error:.2g}"
        return (
            f"{self.quantity} = {self.value:.6g} ({error}; {self.method}, {self.matvecs} products "
            f"on the {self.side} side, seed {self.seed})"
        )

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        error = "exact" if self.exact else f"+- {self.standard_error:.2g}"
        return f"Estimate({self.quantity} = {self.value:.6g} {error})"
