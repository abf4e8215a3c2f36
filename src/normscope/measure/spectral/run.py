r"""What one Lanczos run from a random vector says about eigenvalues it has not found.

The run builds the orthonormal polynomials of its start vector w, so at each step m and for
every eigenpair (lambda, u) of the matrix

.. math:: |p_m(\lambda)|\,|\langle w, u\rangle| \le 1, \qquad
          |p_m(t)| = \prod_i |t - \theta_i| / \prod_i \beta_i

with the Ritz values theta_i. A random unit vector has |<w, u>| < delta = miss sqrt(pi / 2n) with
probability at most ``miss``. Beyond the Ritz values p_m only grows, hence |p_m(t)| > 1 / delta
rules out every eigenvalue beyond t, with that probability (van Dorsselaer, Hochstenbach, van der
Vorst 2000). It is the best that can be said from the run alone: a residual of a Ritz pair proves
that an eigenvalue is near, not that it is the largest.
"""

from __future__ import annotations

import math

import numpy as np

from normscope.measure.spectral.krylov import Extension
from normscope.measure.spectral.products import Floats
from normscope.measure.spectral.ritz import Ritz, Which, rank_key, ritz_pairs

__all__ = ["RandomRun"]


class RandomRun:
    """The tridiagonal matrix of a run from a random vector of length n."""

    def __init__(self, n: int, miss: float, which: Which) -> None:
        self._reach = math.log(math.sqrt(2 * n / math.pi) / miss)
        self._which = which
        self._alphas: list[float] = []
        self._betas: list[float] = []

    def append(self, step: Extension) -> None:
        """One more step of the recurrence."""
        self._alphas.append(step.alpha)
        self._betas.append(step.beta)

    def ritz(self) -> Ritz:
        """The Ritz pairs of the run alone."""
        inner = np.array(self._betas[:-1])
        coupling = np.zeros((1, len(self._alphas)))
        coupling[0, -1] = self._betas[-1]
        matrix = np.diag(self._alphas) + np.diag(inner, 1) + np.diag(inner, -1)
        return ritz_pairs(matrix, coupling, self._which)

    def excludes(self, threshold: float) -> bool:
        """Whether an eigenvalue whose rank key is above ``threshold`` would have been seen."""
        return self._growth(self.ritz().values, threshold) > self._reach

    def _growth(self, roots: Floats, threshold: float) -> float:
        """The log of |p_m(t)| at the threshold, on both sides if magnitudes count; -inf inside."""
        top = float(rank_key(roots, self._which)[0])
        if self._betas[-1] == 0:  # an invariant space: a random vector meets every eigenvalue
            return math.inf if top <= threshold else -math.inf
        if top >= threshold:
            return -math.inf
        signs = {"largest": [1], "smallest": [-1], "magnitude": [1, -1]}[self._which]
        points = np.array(signs)[:, None] * threshold
        return float(np.log(np.abs(points - roots)).sum(axis=1).min() - np.log(self._betas).sum())
