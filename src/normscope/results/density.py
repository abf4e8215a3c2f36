"""The distribution of all eigenvalues, from quadrature nodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_positive
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of
from normscope.results.estimate import Estimate, student


@dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Drawable):
    r"""The spectral density of an operator, smoothed by a Gaussian of standard deviation ``width``.

    .. math:: \phi(t) = \frac{1}{R}\sum_r \sum_i w_{ri}\, g_\sigma(t - \theta_{ri})

    Each run r is one random vector; its nodes and weights integrate polynomials exactly, and its
    weights add up to 1 - ``zero_mass``. ``zero_mass`` is the exact share of eigenvalues that are
    zero because the dual side is smaller; it is an atom: part of ``cumulative``, not of
    ``density``. A standard error is that over the runs, or that of random vectors given the
    eigenvalues found, whichever is larger: few runs often miss an outlier together.

    The chart: the density with a 95 % band.
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
        width = checked_positive(width, "width (a standard deviation)")
        from scipy.special import ndtr

        points = self.grid if grid is None else np.asarray(grid, dtype=np.float64)
        distance = (points[None] - self.nodes.reshape(-1, 1)) / width  # (run * node, points)
        bumps = np.exp(-(distance**2) / 2) / (width * np.sqrt(2 * np.pi))
        (density, density_error), (below, below_error) = (
            self._means(part.reshape(*self.nodes.shape, -1)) for part in (bumps, ndtr(distance))
        )
        return replace(
            self,
            grid=points,
            width=float(width),
            density=density,
            density_error=density_error,
            cumulative=below + self.zero_mass * (points >= 0),
            cumulative_error=below_error,
        )

    def _means(self, values: Array) -> tuple[Array, Array]:
        """Mean over the runs and standard error of functions at the nodes, (run, node, ...)."""
        sums, squares = (
            np.einsum("rn,rn...->r...", self.weights, part) for part in (values, values**2)
        )
        mean, error = sums.mean(axis=0), standard_error_of(sums, 0.0)
        if self.exact:
            return mean, error
        # v^T f(A) v has variance 2 / (n + 2) times that of f over the eigenvalues of n x n.
        share = 1 - self.zero_mass
        spread = np.maximum(squares.mean(axis=0) / share - (mean / share) ** 2, 0.0)
        count = len(sums) * (share * self.dimension + 2)
        return mean, np.maximum(error, share * np.sqrt(2 * spread / count))

    @property
    def band(self) -> float:
        """Standard errors on either side of a 95 % interval: Student's, for so many runs."""
        return student(len(self.nodes))

    def moment(self, power: int) -> Estimate:
        """The mean of lambda^power, tr A^power / n; no quadrature error below 2 steps - 1."""
        mean, error = self._means(self.nodes**power)
        return Estimate(
            quantity=f"tr A^{power} / n",
            value=float(mean) + (self.zero_mass if power == 0 else 0.0),
            standard_error=float(error),
            exact=self.exact,
            matvecs=self.matvecs,
            samples=len(self.nodes),
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
