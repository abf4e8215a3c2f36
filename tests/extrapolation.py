"""The limit of an infinite size from simulations at several finite sizes.

The theory gives the order of what it leaves out, not its factor, so the factor is fitted:
``value(size) = limit + a/size + b/size^2`` by least squares weighted with the standard errors, and
the theory must lie within standard errors of the limit. The rule of the fit, fixed for all tests:

* Both terms are always fitted: a second one too small for the chi-square to ask for still moves
  the limit of a straight line by several of its standard errors.
* ``c/size^3`` is added where the chi-square of the fit has a probability below ``ASKS``, as long as
  a degree of freedom is left to judge the new fit.
* The fit kept must have a probability above ``IMPROBABLE``: else it says nothing, and fails.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import chi2

ASKS = 0.05
IMPROBABLE = 1e-5  # some hundred limits are tested
ERRORS = 4.5  # standard errors between limit and theory
RESOLUTION = 0.02  # largest standard error of a limit, relative to the largest value of the theory
EXACT = 1e-5  # relative rounding of what does not fluctuate, simulated in float32

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Limit:
    """Arrays of one shape: the limits, their standard errors, the probability of each fit."""

    value: Array
    error: Array
    probability: Array

    def check(
        self, theory: ArrayLike, what: object = "", *, resolution: float = RESOLUTION
    ) -> None:
        """The theory is the limit, the fit is a fit, and its error is small enough to say so."""
        expected = np.broadcast_to(np.asarray(theory, dtype=float), self.value.shape)
        said = f"{what}: {self.value} +- {self.error}, theory {expected}, p {self.probability}"
        assert (self.probability > IMPROBABLE).all(), said
        room = ERRORS * self.error + EXACT * np.abs(expected)
        assert (np.abs(self.value - expected) <= room).all(), said
        assert self.error.max() <= resolution * np.abs(expected).max(), said


def limit(sizes: ArrayLike, means: ArrayLike, errors: ArrayLike) -> Limit:
    """Limits of ``means`` (sizes, ...) with the standard errors ``errors`` of the same shape."""
    x = 1 / np.asarray(sizes, dtype=float)
    y, s = np.asarray(means, dtype=float), np.asarray(errors, dtype=float)
    shape = y.shape[1:]
    rows = zip(y.reshape(len(x), -1).T, s.reshape(len(x), -1).T, strict=True)
    made = np.array([_fit(x, *row) for row in rows]).reshape(*shape, 3)
    return Limit(made[..., 0], made[..., 1], made[..., 2])


def mean_and_error(rows: ArrayLike) -> tuple[Array, Array]:
    """Mean and its standard error over the first axis, of independent networks."""
    table = np.asarray(rows, dtype=float)
    return table.mean(axis=0), table.std(axis=0, ddof=1) / np.sqrt(len(table))


def _fit(x: Array, y: Array, s: Array) -> tuple[float, float, float]:
    """Intercept, its standard error, and the probability of a chi-square as large."""
    scale = np.abs(y).max()
    if s.max() <= EXACT * scale:  # nothing fluctuates: one value at every size, or no fit
        return float(y.mean()), 0.0, float(np.ptp(y) <= EXACT * scale)
    found = _weighted(x, y, s, terms=2)
    if found[2] < ASKS and len(x) > 4:
        found = _weighted(x, y, s, terms=3)
    return found


def _weighted(x: Array, y: Array, s: Array, *, terms: int) -> tuple[float, float, float]:
    design = x[:, None] ** np.arange(terms + 1) / s[:, None]
    covariance = np.linalg.inv(design.T @ design)
    found = covariance @ design.T @ (y / s)
    excess = float(np.sum((y / s - design @ found) ** 2))
    freedom = len(x) - terms - 1
    assert freedom > 0, f"{len(x)} sizes cannot judge a fit of {terms} terms and a limit"
    return float(found[0]), float(covariance[0, 0] ** 0.5), float(chi2.sf(excess, freedom))
