"""Products of random matrices: conditioning by depth, singular values, reduced linear networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, framed, ranked, standard_error_of


@dataclass(frozen=True, eq=False, repr=False)
class DepthConditioning(Drawable):
    """Extreme singular values of products X_m ... X_1, one row per run, one column per depth m.

    Condition numbers have heavy tails (their mean is infinite): logarithms are averaged, and the
    median is given beside their mean.

    The chart: condition number and largest singular value by depth.

    Attributes:
        depths: 1, ..., M.
        log10_largest: log10 of the largest singular value.
        log10_smallest: log10 of the smallest; -inf for a singular product.
        log10_edge: log10 of the largest singular value that theory predicts for large Gaussian
            factors; NaN for given factors.
        size: N, rows and columns of a factor.
        seed: seed for the simulation; None for given factors.
        reason: what to know about the values.
    """

    depths: NDArray[np.int64]  # (depth,)
    log10_largest: Array  # (run, depth)
    log10_smallest: Array  # (run, depth)
    log10_edge: Array  # (depth,)
    size: int
    seed: int | None
    reason: str = ""

    @property
    def runs(self) -> int:
        """Number of independent products that were drawn."""
        return len(self.log10_largest)

    @property
    def log10_condition(self) -> Array:
        """Log10 of largest over smallest, (run, depth); inf for a singular product."""
        with np.errstate(invalid="ignore"):
            ratio = self.log10_largest - self.log10_smallest
        return np.where(self.log10_smallest == -np.inf, np.inf, ratio)

    @property
    def largest(self) -> Array:
        """The largest singular values themselves, (run, depth)."""
        with np.errstate(over="ignore"):
            return 10.0**self.log10_largest

    def to_frame(self) -> DataFrame:
        """One row per depth: means of logs, medians, standard errors of the means."""
        columns: dict[str, Any] = {"log10_edge": self.log10_edge}
        for name in ("log10_condition", "log10_largest", "log10_smallest"):
            values = getattr(self, name)
            columns[name] = values.mean(axis=0)
            columns[f"{name}_error"] = _standard_error(values)
            columns[f"{name}_median"] = np.median(values, axis=0)
        return framed(columns, index=self.depths).rename_axis("depth")

    def summary(self) -> str:
        """One line per depth, at most a dozen."""
        frame = self.to_frame()
        kept = np.unique(np.linspace(0, len(frame) - 1, min(len(frame), 12)).astype(int))
        origin = "given factors" if self.seed is None else f"runs: {self.runs}, seed {self.seed}"
        lines = [
            f"Products of {self.size} x {self.size} matrices ({origin}); "
            "means of logs ± s.e., and the edge predicted for large N",
            "  depth  log10 kappa       median   log10 s_max         edge",
        ]
        for depth, row in frame.iloc[kept].iterrows():
            lines.append(
                f"  {depth:5d}  {row.log10_condition:7.3f}"
                f"{_plus_minus(row.log10_condition_error)}  {row.log10_condition_median:7.3f}"
                f"  {row.log10_largest:8.4f}{_plus_minus(row.log10_largest_error)}"
                f"  {row.log10_edge:8.4f}".replace("nan", "  -")
            )
        return "\n".join(lines + ([f"  {self.reason}"] if self.reason else []))

    def __repr__(self) -> str:
        last = float(np.median(self.log10_condition[:, -1]))
        return (
            f"DepthConditioning(depth {self.depths[-1]}, size {self.size}, {self.runs} runs, "
            f"log10 kappa {last:.3f} at the end)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class ProductSpectrum(Drawable):
    """All singular values of simulated products, beside the density of large matrices.

    The chart: histogram of the runs with the predicted density.

    Attributes:
        num_factors: M.
        values: singular values, largest first, one row per run.
        rounding: per run; smaller values are rounding of an explicit product.
        distance: Kolmogorov-Smirnov distance of each run to the law.
        grid: points of the predicted curve, up to the edge.
        density: density of the singular values there.
        edge: end of the support.
        variances: sigma_i^2 of each factor.
        seed: seed for the simulation.
    """

    num_factors: int
    values: Array  # (run, size)
    rounding: Array  # (run,)
    distance: Array  # (run,)
    grid: Array  # (points,)
    density: Array  # (points,)
    edge: float
    variances: tuple[float, ...]
    seed: int

    def to_frame(self) -> DataFrame:
        """One row per singular value: run, rank, value."""
        runs, size = self.values.shape
        return framed(
            {
                "run": np.repeat(np.arange(runs), size),
                "rank": np.tile(np.arange(1, size + 1), runs),
                "value": self.values.ravel(),
                "above_rounding": (self.values >= self.rounding[:, None]).ravel(),
            }
        )

    def summary(self) -> str:
        """A few lines for a terminal."""
        runs, size = self.values.shape
        lost = int(np.sum(self.values < self.rounding[:, None]))
        note = f"\n  {lost} of {self.values.size} values are below rounding" if lost else ""
        return (
            f"Singular values of {runs} products of {self.num_factors} Gaussian {size} x {size} "
            f"matrices, seed {self.seed}\n"
            f"  largest {self.values[:, 0].mean():.4f} on average, edge {self.edge:.4f}\n"
            f"  KS distance to the law {self.distance.min():.4f} to {self.distance.max():.4f}{note}"
        )

    def __repr__(self) -> str:
        runs, size = self.values.shape
        return (
            f"ProductSpectrum({self.num_factors} factors, size {size}, {runs} runs, "
            f"KS distance {self.distance.max():.4f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class LinearReduction(Record):
    """Training layer ``layer`` of a linear network, as min |A-bar a - b|^2 for every column.

    Attributes:
        layer: number of the weight matrix A_i, from 1.
        matrix: A-bar, the product of the layers above.
        targets: y-bar; column j is b of problem j.
        left: U, and
        scales: Sigma, of what the layer sees; A-bar_i = A_i U Sigma.
        constant: C, the loss that no A_i can change.
    """

    layer: int
    matrix: Array  # (outputs, rows of A_i)
    targets: Array  # (outputs, columns of A_i)
    left: Array  # (columns of A_i, columns of A_i)
    scales: Array  # (columns of A_i,)
    constant: float

    @property
    def condition(self) -> float:
        """Condition number of A-bar, that of every reduced problem; inf if columns depend."""
        values = np.linalg.svd(self.matrix, compute_uv=False).astype(np.float64)
        return _condition(values, self.matrix.shape[1])

    @property
    def input_condition(self) -> float:
        """Condition number of what the layer sees; descent in A_i meets the product of both."""
        return _condition(self.scales, len(self.scales))

    def reduced(self, weight: ArrayLike) -> Array:
        """A-bar_i = A_i U Sigma of a weight matrix A_i."""
        return np.asarray(weight, dtype=np.float64) @ self.left * self.scales

    def restored(self, reduced: ArrayLike) -> Array:
        """The weight matrix A_i of a reduced one."""
        return np.asarray(reduced, dtype=np.float64) / self.scales @ self.left.T

    def loss(self, reduced: ArrayLike) -> float:
        """|A-bar A-bar_i - y-bar|^2 + C, the loss of the network."""
        return (
            float(np.sum((self.matrix @ np.asarray(reduced) - self.targets) ** 2)) + self.constant
        )

    def gradient(self, reduced: ArrayLike) -> Array:
        """Gradient in A-bar_i; times Sigma U^T it is the gradient in A_i."""
        gradient: Array = 2 * self.matrix.T @ (self.matrix @ np.asarray(reduced) - self.targets)
        return gradient

    def solution(self) -> Array:
        """The best A-bar_i, column by column; the shortest one where A-bar is rank deficient."""
        return np.linalg.lstsq(self.matrix, self.targets, rcond=None)[0].astype(np.float64)

    def optimum(self) -> float:
        """The least loss that layer ``layer`` alone can reach."""
        return self.loss(self.solution())

    def to_frame(self) -> DataFrame:
        """One row per problem: scale of its input direction, target norm, least loss."""
        rest = self.matrix @ self.solution() - self.targets
        norms, least = np.linalg.norm(self.targets, axis=0), np.sum(rest**2, axis=0)
        columns = {"scale": self.scales, "target_norm": norms, "least_loss": least}
        return ranked(columns, "problem")

    def summary(self) -> str:
        """A few lines for a terminal."""
        rows, columns = self.matrix.shape
        return (
            f"Layer {self.layer} alone: {len(self.scales)} independent problems "
            f"min |A a - b|^2, A {rows} x {columns}\n"
            f"  condition number of A {self.condition:.4g}, of the inputs "
            f"{self.input_condition:.4g}\n"
            f"  least loss {self.optimum():.6g}, of which {self.constant:.6g} whatever the layer"
        )

    def __repr__(self) -> str:
        return (
            f"LinearReduction(layer {self.layer}, {len(self.scales)} problems, "
            f"condition {self.condition:.4g})"
        )


def _condition(singular_values: Array, columns: int) -> float:
    """Largest over smallest; inf where there are fewer than ``columns`` or the last is 0."""
    if len(singular_values) < columns or singular_values[-1] == 0:
        return float("inf")
    return float(singular_values[0] / singular_values[-1])


def _standard_error(values: Array) -> Array:
    """Of the mean over runs; NaN for one run or infinite values: then it is not known."""
    finite = np.isfinite(values).all(axis=0)
    return np.where(finite, standard_error_of(np.where(finite, values, 0.0)), np.nan)


def _plus_minus(error: float) -> str:
    return f" ± {error:.3f}" if np.isfinite(error) else " " * 8
