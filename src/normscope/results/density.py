"""The distribution of all eigenvalues, from quadrature nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array
from normscope.errors import InputError
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of
from normscope.results.estimate import Estimate


@dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Drawable):
    r"""The spectral density of an operator, smoothed by a Gaussian of standard deviation ``width``.

    .. math:: \phi(t) = \frac{1}{R}\sum_r \sum_i w_{ri}\, g_\sigma(t - \theta_{ri})

    Each run r is one random vector; its nodes and weights integrate polynomials exactly, and its
    weights add up to 1 - ``zero_mass``. ``zero_mass`` is the exact share of eigenvalues that are
    zero because the dual side is smaller; it is an atom: part of ``cumulative``, not of
    ``density``. Standard errors are over the runs.

    The chart: the density with its error band.
    """

    nodes: Array  # (run, node)
    weights: Array  # (run, node), each run sums to 1 - zero_mass
    zero_mass: float
    grid: Array  # (points,)
    density: Array  # (points,) without the atom
    density_error: Array  # (points,) standard error
    cumulative: Array  # (points,) share of eigenvalues <= t, atom included
    cumulative_error: Array  # (points,) standard error
    width: float
    exact: bool  # nodes are the eigenvalues themselves
    matvecs: int
    dimension: int  # n of the operator asked
    seed: int
    side: str
    convention: dict[str, str] = field(default_factory=dict)

    def smoothed(self, width: float, grid: ArrayLike | None = None) -> SpectralDensity:
        """The same quadrature under another smoothing width, on another grid if given."""
        if not (np.isfinite(width) and width > 0):
            raise InputError(f"width is a standard deviation above 0. Got {width!r}.")
        from scipy.special import ndtr

        points = self.grid if grid is None else np.asarray(grid, dtype=np.float64)
        distance = (points[None] - self.nodes.reshape(-1, 1)) / width  # (run * node, points)
        bumps = np.exp(-(distance**2) / 2) / (width * np.sqrt(2 * np.pi))
        density, below = (  # (run, points)
            np.einsum("rn,rnp->rp", self.weights, part.reshape(*self.nodes.shape, -1))
            for part in (bumps, ndtr(distance))
        )
        below = below + self.zero_mass * (points >= 0)
        return replace(
            self,
            grid=points,
            width=float(width),
            density=density.mean(axis=0),
            density_error=standard_error_of(density, 0.0),
            cumulative=below.mean(axis=0),
            cumulative_error=standard_error_of(below, 0.0),
        )

    def moment(self, power: int) -> Estimate:
        """The mean of lambda^power, tr A^power / n; no quadrature error below 2 steps - 1."""
        per_run = (self.weights * self.nodes**power).sum(axis=1)
        if power == 0:
            per_run = per_run + self.zero_mass
        return Estimate(
            quantity=f"tr A^{power} / n",
            value=float(per_run.mean()),
            standard_error=float(standard_error_of(per_run, 0.0)),
            exact=self.exact,
            matvecs=self.matvecs,
            samples=len(per_run),
            method="exact" if self.exact else "lanczos quadrature",
            seed=self.seed,
            dimension=self.dimension,
            side=self.side,
            convention=dict(self.convention),
        )

    def to_frame(self) -> DataFrame:
        """One row per grid point: t, density, cumulative and their standard errors."""
        names = ("density", "density_error", "cumulative", "cumulative_error")
        return framed({"t": self.grid} | {name: getattr(self, name) for name in names})

    def summary(self) -> str:
        """A few lines for a terminal."""
        how = "exact" if self.exact else f"{len(self.nodes)} random vectors, s.e. over them"
        return (
            f"Spectral density of a {self.dimension} x {self.dimension} operator ({how}): "
            f"{self.matvecs} products on the {self.side} side, seed {self.seed}\n"
            f"  nodes from {self.nodes.min():.4g} to {self.nodes.max():.4g}, "
            f"width {self.width:.3g}, exact mass at zero {self.zero_mass:.4g}"
        )

    def __repr__(self) -> str:
        low, high = self.nodes.min(), self.nodes.max()
        return (
            f"SpectralDensity({low:.4g} to {high:.4g}, {len(self.nodes)} runs, "
            f"{self.matvecs} products)"
        )
