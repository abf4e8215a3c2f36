"""Two settings compared over the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normscope.checks import Array, as_float
from normscope.errors import InputError
from normscope.record import Record

MOST = 10_000  # seeds, beyond which none are counted
POWER = 0.8


@dataclass(frozen=True, eq=False, repr=False)
class PairedComparison(Record):
    """Whether one of two settings gives lower numbers than the other, seed by seed.

    Attributes:
        names: what the two are called.
        differences: first minus second, (seeds,); of log10 of both if ``log``.
        log: whether logarithms were compared.
        difference: mean of the differences.
        standard_error: the standard error of that mean.
        n: number of seeds.
        quantile: Student's t with n - 1 degrees of freedom, the standard errors on either side of
            the interval.
        low: lower end of the interval of the mean difference.
        high: upper end.
        confidence: probability that the interval holds the true mean.
        seeds_needed: if undecided, how many seeds would decide with probability 0.8 if difference
            and spread stay what they are; infinite beyond 10,000. n if it is decided.
    """

    names: tuple[str, str]
    differences: Array
    log: bool
    difference: float
    standard_error: float
    n: int
    quantile: float
    low: float
    high: float
    confidence: float
    seeds_needed: float

    @property
    def verdict(self) -> str:
        """``"lower"`` or ``"higher"`` (the first than the second), or ``"undecided"``."""
        if self.high < 0:
            return "lower"
        return "higher" if self.low > 0 else "undecided"

    @property
    def ratio(self) -> float:
        """First over second, the geometric mean over seeds; NaN unless logarithms were compared."""
        return 10**self.difference if self.log else math.nan

    def summary(self) -> str:
        """The verdict and its numbers in one sentence."""
        first, second = self.names
        verdict = self.verdict
        said = f"{first} is {verdict} than {second}"
        if verdict == "undecided":
            said = f"whether {first} is lower or higher than {second} is undecided"
            if self.seeds_needed < math.inf:
                said += f" ({self.seeds_needed:.0f} seeds would probably decide)"
        what = "log10 difference" if self.log else "difference"
        times = f", a factor of {self.ratio:.3g}" if self.log else ""
        return (
            f"{said}: {what} {self.difference:.4g} +- {self.standard_error:.2g}{times}, "
            f"{100 * self.confidence:g} % from {self.low:.4g} to {self.high:.4g}, {self.n} seeds."
        )

    def __repr__(self) -> str:
        return (
            f"PairedComparison({self.verdict}, {self.difference:.4g} +- "
            f"{self.standard_error:.2g}, {self.n} seeds)"
        )


def paired_comparison(
    a: Sequence[float],
    b: Sequence[float],
    log: bool = False,
    *,
    names: tuple[str, str] = ("a", "b"),
    confidence: float = 0.95,
) -> PairedComparison:
    """Compare two settings by numbers of the same seeds: a[k] and b[k] belong together.

    Args:
        a: a number per seed, such as the validation loss of each training run.
        b: the same of the other setting, in the same order of seeds.
        log: compare log10 of the numbers, which must be above 0.
        names: what to call the two.
        confidence: probability of the interval, by Student's t with n - 1 degrees of freedom.

    Example:
        >>> paired_comparison([1.0, 1.2, 0.9], [2.1, 2.2, 2.0]).verdict
        'lower'
    """
    from scipy import stats

    first, second = (np.asarray(values, np.float64) for values in (a, b))
    if first.ndim != 1 or first.shape != second.shape or len(first) < 2:
        raise InputError(
            "A paired comparison needs two lists of equal length, one number per seed, from two "
            f"or more seeds. Got shapes {first.shape} and {second.shape}."
        )
    if not 0 < as_float(confidence) < 1:
        raise InputError(f"confidence is a probability between 0 and 1. Got {confidence!r}.")
    both = np.stack([first, second])
    bad = np.flatnonzero(~np.isfinite(both).all(0) | (log & (both <= 0).any(0)))
    if len(bad):
        raise InputError(
            f"Pair {bad[0]} is {first[bad[0]]:.4g} and {second[bad[0]]:.4g}: a comparison"
            f"{' of logarithms' if log else ''} needs finite numbers{' above 0' if log else ''}. "
            "Leave out seeds whose training diverged, and say so."
        )
    differences = np.log10(first) - np.log10(second) if log else first - second
    n, mean, spread = len(first), float(differences.mean()), float(differences.std(ddof=1))
    error = spread / math.sqrt(n)
    quantile = float(stats.t.ppf((1 + confidence) / 2, n - 1))
    low, high = mean - quantile * error, mean + quantile * error
    needed = float(n) if low > 0 or high < 0 else _needed(abs(mean), spread, n, confidence)
    pair = (str(names[0]), str(names[1]))
    return PairedComparison(
        pair, differences, bool(log), mean, error, n, quantile, low, high, confidence, needed
    )


def _needed(mean: float, spread: float, n: int, confidence: float) -> float:
    """The smallest number of seeds, above n, with which the t-test has the power asked for."""
    from scipy import stats

    def weak(seeds: int) -> bool:
        quantile = stats.t.ppf((1 + confidence) / 2, seeds - 1)
        power = stats.nct.sf(quantile, seeds - 1, math.sqrt(seeds) * mean / spread)
        return not power >= POWER

    if mean == 0 or weak(MOST):
        return math.inf
    low, high = n, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if weak(middle) else (low, middle)
    return float(high)
