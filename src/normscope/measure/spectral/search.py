"""The search for leading eigenvalues: which direction is multiplied next, and when to stop.

One eigenvalue: a single Lanczos run from a random vector, until the run itself excludes anything
above the answer (`RandomRun`). Several: a single run is the cheapest way to eigenvalues that
differ, but it cannot see a second copy of an equal one. So it is followed by probes, runs from
fresh random vectors in the complement of what is known: early, when the leading values have
converged and the next ones have not, and always before the answer is given. What a probe meets
enters the same space, so that no product is lost.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from normscope.checks import Array
from normscope.measure.spectral import krylov
from normscope.measure.spectral.krylov import KrylovSpace, Ritz, Which, rank_key
from normscope.measure.spectral.products import Draw, Products

PATIENCE = 3  # steps without a newly converged value before a probe is sent early
LINEAR = 0.3  # share of the tolerance that a residual must reach where a restart cut the run
QUADRATIC = 0.5  # share that ||r||^2 / gap must reach: the gap is only estimated
BASIS_BYTES = 10**9  # the basis is restarted above this, but never below k + SPARE vectors
SPARE = 16


class RandomRun:
    r"""What one Lanczos run from a random vector says about eigenvalues it has not found.

    The run builds the orthonormal polynomials of its start vector w, so at each step m and for
    every eigenpair (lambda, u) of the matrix

    .. math:: |p_m(\lambda)|\,|\langle w, u\rangle| \le 1, \qquad
              |p_m(t)| = \prod_i |t - \theta_i| / \prod_i \beta_i

    with the Ritz values theta_i. A random unit vector of length n has |<w, u>| < delta = miss
    sqrt(pi / 2n) with probability at most ``miss``. Beyond the Ritz values p_m only grows, hence
    |p_m(t)| > 1 / delta rules out every eigenvalue beyond t, with that probability (van
    Dorsselaer, Hochstenbach, van der Vorst 2000). It is the best that can be said from the run
    alone: a residual of a Ritz pair proves that an eigenvalue is near, not that it is the largest.
    """

    def __init__(self, n: int, miss: float, which: Which) -> None:
        self._reach = math.log(math.sqrt(2 * n / math.pi) / miss)
        self._which = which
        self._alphas: list[float] = []
        self._betas: list[float] = []

    def append(self, step: krylov.Extension) -> None:
        """One more step of the recurrence."""
        self._alphas.append(step.alpha)
        self._betas.append(step.beta)

    def ritz(self) -> Ritz:
        """The Ritz pairs of the run alone."""
        inner = np.array(self._betas[:-1])
        coupling = np.zeros((1, len(self._alphas)))
        coupling[0, -1] = self._betas[-1]
        matrix = np.diag(self._alphas) + np.diag(inner, 1) + np.diag(inner, -1)
        return krylov.ritz_pairs(matrix, coupling, self._which)

    def excludes(self, threshold: float) -> bool:
        """Whether an eigenvalue whose rank key is above ``threshold`` would have been seen."""
        return self._growth(self.ritz().values, threshold) > self._reach

    def _growth(self, roots: Array, threshold: float) -> float:
        """The log of |p_m(t)| at the threshold, on both sides if magnitudes count; -inf inside."""
        top = float(rank_key(roots, self._which)[0])
        if self._betas[-1] == 0:  # an invariant space: a random vector meets every eigenvalue
            return math.inf if top <= threshold else -math.inf
        if top >= threshold:
            return -math.inf
        signs = {"largest": [1], "smallest": [-1], "magnitude": [1, -1]}[self._which]
        points = np.array(signs)[:, None] * threshold
        return float(np.log(np.abs(points - roots)).sum(axis=1).min() - np.log(self._betas).sum())


class Search:
    """One search for the k leading eigenvalues; ``run`` does it, the attributes are the answer.

    Attributes:
        ritz: all Ritz pairs of the space, best first.
        converged: how many of the k leading values have converged, counted from the first.
        verified: whether a random run has excluded missed eigenvalues.
        exhausted: whether such a run ran out of room before it could exclude them.
    """

    def __init__(
        self, products: Products, draw: Draw, k: int, which: Which, tol: float, miss: float
    ) -> None:
        self._products, self._draw = products, draw
        self._k, self._which, self._tol, self._miss = k, which, tol, miss
        self._capacity = _capacity(products, k)
        self._run: RandomRun | None = None  # the run or probe under way
        self._onward: Array = np.zeros(0)  # its next vector, in terms of the space's ends
        self._threshold = np.inf
        self._is_last_probe = False
        self._patience, self._idle = PATIENCE, 0
        self._ok = np.zeros(0, dtype=bool)
        self.space = KrylovSpace(products)
        self.converged, self.verified, self.exhausted = 0, False, False
        self.ritz = self._pairs()

    def run(self, start: Tensor | None, max_matvecs: int) -> None:
        """Multiply until the k leading values have converged or the budget is spent."""
        single = self._k == 1 and start is None
        if single:
            self._run = RandomRun(self._products.n, self._miss, self._which)
        self._onward = self.space.open_end(self._draw(1)[0] if start is None else start)
        while self._products.count < max_matvecs:
            step = self.space.extend(self._direction())
            self._update(step, single=single)
            if self.space.size == self._products.n:
                self.verified, self.converged = True, self._k
            if (self.verified or self.exhausted) and self.converged == self._k:
                return
            self._prepare(probing=not single)

    def _pairs(self) -> Ritz:
        return krylov.ritz_pairs(self.space.matrix, self.space.couplings, self._which)

    def _direction(self) -> Array:
        """The next vector of the run, if any; else the residual of the first open Ritz pair."""
        if self._run is not None or not self.space.size:
            return self._onward
        target = self.ritz.couplings[:, min(self.converged, self.space.size - 1)]
        norm = float(np.linalg.norm(target))
        return target / norm if norm > 0 else np.eye(self.space.num_ends)[-1]

    def _update(self, step: krylov.Extension, *, single: bool) -> None:
        self.ritz, self._onward = self._pairs(), step.onward
        if self._run is not None:
            self._run.append(step)
        if single:
            self._settle_single()
        else:
            self._count_converged()
            self._judge_probe()

    @property
    def bounds(self) -> Array:
        """Of the errors of the leading values: never below what was verified, the tolerance."""
        bounds = self.ritz.bounds[: self._k]
        if self.space.size == self._products.n:
            return np.full(len(bounds), self.space.floor)
        return np.maximum(bounds, self._tolerances())

    def _tolerances(self) -> Array:
        return np.maximum(self._tol * np.abs(self.ritz.values[: self._k]), self.space.floor)

    def _settle_single(self) -> None:
        """One value: the run excludes anything above the answer; a run that was cut cannot."""
        tolerance = float(self._tolerances()[0])
        top = float(rank_key(self.ritz.values[:1], self._which)[0])
        if self._run is not None:
            done = self.verified = self._run.excludes(top + tolerance)
        else:
            done = self.exhausted = float(self.ritz.residuals[0]) <= LINEAR * tolerance
        self.converged = int(done)

    def _count_converged(self) -> None:
        """Several values: one has converged if its bound held at two steps in a row.

        A residual inside a cluster that the space has not split splits it at the next step, and
        the bound of that step shows it.
        """
        bounds = self.ritz.bounds[: self._k]
        ok = bounds <= np.maximum(QUADRATIC * self._tolerances(), self.space.floor)
        before = np.zeros(len(ok), dtype=bool)
        before[: len(self._ok)] = self._ok
        held = (ok & before) | (self.ritz.residuals[: self._k] <= self.space.floor)
        count = int(np.cumprod(held).sum())
        self._idle = 0 if count > self.converged else self._idle + 1
        self._ok, self.converged = ok, count

    def _judge_probe(self) -> None:
        """Close the probe once it has met an eigenvalue, or excludes that there is one."""
        if self._run is None:
            return
        found = self._run.ritz()
        top = float(rank_key(found.values, self._which)[0])
        known = found.residuals[0] <= max(self._tol * abs(top), self.space.floor)
        if known and top > self._threshold:
            self._patience = 0  # equal eigenvalues exist: look for more of them at once
        elif known or self._run.excludes(self._threshold):
            self._patience = PATIENCE * max(self._patience, 1)
            self.verified = self._is_last_probe
        else:
            return
        self._run, self._idle = None, 0

    def _prepare(self, *, probing: bool) -> None:
        """Make room, and send a probe if it is time for one."""
        if self.space.size >= self._capacity:
            self._restart()
        stuck = 0 < self.converged < self._k and self._idle >= self._patience
        complete = self.converged == self._k and not (self.verified or self.exhausted)
        if probing and self._run is None and (stuck or complete or not self.space.num_ends):
            self._send_probe()

    def _send_probe(self) -> None:
        if self.space.size > (self._capacity + self._k) // 2:
            self._restart()
        level = float(rank_key(self.ritz.values, self._which)[max(self.converged, 1) - 1])
        slack = self._tol * abs(level) + self.space.floor
        self._is_last_probe = self.converged == self._k
        self._threshold = level + slack if self._is_last_probe else level - slack
        self._run = RandomRun(self._products.n, self._miss, self._which)
        self._onward = self.space.open_end(self._draw(1)[0])

    def _restart(self) -> None:
        """Thick restart: keep the wanted Ritz vectors and a third of the room for others."""
        keep = min(self._k + (self._capacity - self._k) // 3, self.space.size)
        self.space.restart(self.ritz.vectors[:, :keep])
        self.ritz = self._pairs()
        if self._run is not None:
            self._cut_short(self._run)

    def _cut_short(self, run: RandomRun) -> None:
        """What a restart has cut is no Lanczos run any more: it ends undecided."""
        top = float(rank_key(run.ritz().values, self._which)[0])
        self.exhausted = self._is_last_probe and top <= self._threshold
        self._patience, self._idle = PATIENCE * max(self._patience, 1), 0
        self._run = None


def _capacity(products: Products, k: int) -> int:
    affordable = int(BASIS_BYTES / (products.n * products.operator.dtype.itemsize))
    return max(k + SPARE, min(affordable, max(64, 3 * k)))
