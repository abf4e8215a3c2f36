"""Laws that are not Gaussian: a sum of independent Gaussian factors behind activations.

A channel at one site is a function of standard normal factors u_1..u_J, sampled by quasi-random
points. At two sites the factors have correlations rho_1..rho_J, and a mean over both is a Hermite
series in several variables,

    E f(u) g(v) = sum_n f_n g_n rho_1^n_1 ... rho_J^n_J,

exact for total degree up to ``DEGREE``; what is left over is exact at equal sites and in between
follows the shape of the ReLU's own remainder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from normscope.checks import Array

POINTS = 2**13  # and their negatives
DIMENSIONS = 64
DEGREE = 4
SMALL = 1e-7  # share of a function from which a coefficient counts
CHUNK = 2**15  # pairs of sites at a time


@lru_cache(maxsize=1)
def _normals() -> Array:
    from scipy.stats import qmc  # takes a second to import, and residual streams alone need it

    points = qmc.Sobol(DIMENSIONS, scramble=True, seed=7).random(POINTS)
    half = ndtri(np.clip(points.T, 1e-12, 1 - 1e-12))
    both = np.concatenate([half, -half], axis=1)
    return np.asarray(both / np.sqrt((both**2).mean(1, keepdims=True)))


@lru_cache(maxsize=2 * DIMENSIONS)
def column(factor: int) -> Array:
    """Standard normal values of a factor, one a point."""
    table = _normals()
    turn, row = divmod(factor, DIMENSIONS)
    if not turn:
        return np.asarray(table[row])
    return np.asarray(np.random.default_rng(factor).permutation(table[row]))


def normal_ranks(values: Array) -> Array:
    """Standard normal values in the order of these."""
    places = np.empty(values.size)
    places[np.argsort(values, kind="stable")] = (np.arange(values.size) + 0.5) / values.size
    made = ndtri(places)
    return np.asarray(made / np.sqrt((made**2).mean()))


def hermite_rows(values: Array, degree: int) -> list[Array]:
    """Orthonormal Hermite polynomials at these values, degrees 0 to ``degree``."""
    made = [np.ones_like(values), values]
    for k in range(2, degree + 1):
        made.append((values * made[-1] - math.sqrt(k - 1) * made[-2]) / math.sqrt(k))
    return made[: degree + 1]


class Series:
    """Hermite series in the factors of a law, by quasi-random points."""

    def __init__(self, columns: Sequence[Array], degree: int = DEGREE) -> None:
        self.count = len(columns)
        self.degree = degree
        self.index = _multi_indices(self.count, degree)
        self.place = {n: i for i, n in enumerate(self.index)}
        rows = [hermite_rows(c, degree) for c in columns]
        size = columns[0].size if columns else 1
        self.basis = np.empty((len(self.index), size))
        for i, n in enumerate(self.index):
            used = [rows[j][k] for j, k in enumerate(n) if k]
            self.basis[i] = math.prod(used[1:], start=used[0]) if used else 1.0

    def coefficients(self, function: Array) -> Array:
        """The coefficients f_n of a function."""
        return np.asarray(self.basis @ function / function.size)

    def derivative(self, coefficients: Array, factor: int) -> Array:
        """Coefficients of the derivative in one factor; the highest degree is lost."""
        made = np.zeros_like(coefficients)
        for i, n in enumerate(self.index):
            above = (*n[:factor], n[factor] + 1, *n[factor + 1 :])
            if above in self.place:
                made[i] = math.sqrt(n[factor] + 1) * coefficients[self.place[above]]
        return made

    def own(self, function: Array, shape: str) -> Own:
        """What ``kernels`` needs for E f f, with the remainder beyond the series."""
        return self.own_all(function[None], shape)[0]

    def own_all(self, functions: Array, shape: str) -> list[Own]:
        """The same for several functions, one a row."""
        squares = (functions @ self.basis.T / functions.shape[1]) ** 2
        totals = np.einsum("fn,fn->f", functions, functions) / functions.shape[1]
        degrees = np.array(self.index, dtype=float).reshape(len(self.index), self.count)
        pulls = squares @ degrees
        lefts = np.maximum(totals - squares.sum(1), 0.0)
        made = []
        for square, total, pull, left in zip(squares, totals, pulls, lefts, strict=True):
            weights = pull / pull.sum() if pull.sum() > 0 else np.zeros(self.count)
            kept = np.where(square > SMALL * total, square, 0.0)
            made.append(Own(kept, float(left), weights, shape))
        return made

    def kernels(self, rho: Sequence[Array], wanted: Sequence[Own]) -> list[Array]:
        """The means over pairs of sites with these correlations of the factors."""
        if not self.count or not wanted:
            return [np.asarray(w.products.sum() + w.left) for w in wanted]
        shape = rho[0].shape
        # a function of symmetric correlations is symmetric: half of the pairs are enough
        square = len(shape) > 1 and shape[-1] == shape[-2]
        flat = [_half(r) if square else r.reshape(-1) for r in rho]
        table = np.stack([w.products for w in wanted])
        used = np.flatnonzero(np.any(table != 0, axis=0))
        out = np.empty((len(wanted), flat[0].size))
        for start in range(0, flat[0].size, CHUNK):
            part = [r[start : start + CHUNK] for r in flat]
            powers = [_powers(r, self.degree) for r in part]
            monomials = np.empty((used.size, part[0].size))
            for row, i in enumerate(used):
                picked = [powers[j][k] for j, k in enumerate(self.index[i]) if k]
                monomials[row] = math.prod(picked[1:], start=picked[0]) if picked else 1.0
            out[:, start : start + CHUNK] = table[:, used] @ monomials
            together = np.stack(part)
            for shape_name, shape_of in _SHAPES.items():
                rows = [i for i, w in enumerate(wanted) if w.left > 0 and w.shape == shape_name]
                if rows:
                    mean = np.stack([wanted[i].weights for i in rows]) @ together
                    left = np.array([wanted[i].left for i in rows])[:, None]
                    shaped = shape_of(np.clip(mean, -1.0, 1.0), self.degree)
                    out[rows, start : start + CHUNK] += left * shaped
        return [_mirrored(row, shape) if square else row.reshape(shape) for row in out]


def _half(kernel: Array) -> Array:
    rows, columns = np.tril_indices(kernel.shape[-1])
    return kernel[..., rows, columns].reshape(-1)


def _mirrored(half: Array, shape: tuple[int, ...]) -> Array:
    made = np.empty(shape)
    rows, columns = np.tril_indices(shape[-1])
    made[..., rows, columns] = half.reshape(*shape[:-2], -1)
    made[..., columns, rows] = made[..., rows, columns]
    return made


class Own:
    """Products of coefficients of two functions, and what the series leaves over."""

    def __init__(
        self, products: Array, left: float = 0.0, weights: Array | None = None, shape: str = "step"
    ) -> None:
        self.products, self.left, self.shape = products, left, shape
        self.weights = np.zeros(0) if weights is None else weights


@lru_cache(maxsize=64)
def _multi_indices(count: int, degree: int) -> list[tuple[int, ...]]:
    every = itertools.product(range(degree + 1), repeat=count) if count <= 3 else None
    if every is not None:
        return [n for n in every if sum(n) <= degree]
    made = []
    for total in range(degree + 1):
        for picked in itertools.combinations_with_replacement(range(count), total):
            made.append(tuple(picked.count(j) for j in range(count)))
    return made


def _powers(values: Array, degree: int) -> list[Array]:
    made = [np.ones_like(values)]
    for _ in range(degree):
        made.append(made[-1] * values)
    return made


def _remainder(series: list[float], full: Array, rho: Array, end: float, degree: int) -> Array:
    kept = series[: degree + 1]
    known = sum(c * rho**k for k, c in enumerate(kept))
    return np.asarray((full - known) / (end - sum(kept)))


def _relu_shape(rho: Array, degree: int) -> Array:
    full = np.sqrt(1 - rho**2) + rho * (np.pi / 2 + np.arcsin(rho))
    series = [1.0, np.pi / 2, 0.5, 0.0, 1 / 24, 0.0, 1 / 80]
    return _remainder(series, full, rho, np.pi, degree)


def _step_shape(rho: Array, degree: int) -> Array:
    return _remainder([0.0, 1.0, 0.0, 1 / 6, 0.0, 3 / 40], np.arcsin(rho), rho, np.pi / 2, degree)


_SHAPES = {"relu": _relu_shape, "step": _step_shape}
