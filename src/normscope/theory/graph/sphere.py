"""A batch-normalized channel: a Gaussian vector over sites, divided by its own length.

x ~ N(0, K) over the N sites, centred, and xhat = x / sqrt(|x|^2 / N + eps). With
1 / (s^2 + eps) = int_0^inf exp(-tau (s^2 + eps)) dtau the law stays Gaussian inside the integral,
with eigenvalues w / (1 + 2 tau w / N). All means over channels are one integral over tau.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.theory.graph.algebra import Algebra

GRID = np.linspace(-30.0, 80.0, 2201)  # log tau in units of the mean variance
FEW, MANY = 5, 12  # Gauss nodes for many and for few effective directions
DIRECTIONS = 40.0  # effective dimension below which the integrand varies strongly


@dataclass(frozen=True)
class Sphere:
    """The law of the normalized channel.

    Attributes:
        algebra: where its kernels live.
        values: eigenvalues of G K G.
        counts: their multiplicities.
        vectors: their eigenvectors, as the algebra keeps them.
        inverse: E[1 / (s^2 + eps)].
        kernel: E[xhat xhat^T].
        dimension: (tr C)^2 / tr C^2 of that kernel; N - 1 for independent sites.
        nodes: tau and weights W dtau, whose sum is ``inverse``.
        known: E phi phi' of piecewise linear phi by its slope below zero, once it is computed.
    """

    algebra: Algebra
    values: Array
    counts: Array
    vectors: Any
    inverse: float
    kernel: Array
    dimension: float
    nodes: tuple[tuple[float, float], ...]
    known: dict[float, Array] = field(default_factory=dict)

    def mean(self, integrand: Callable[[Any, Array], Array]) -> Array:
        """Int W f(tau, C_tau) dtau, C_tau the covariance of x at tau."""
        tau = np.array([t for t, _ in self.nodes])
        weights = np.array([w for _, w in self.nodes])
        if self.algebra.level == "homogeneous":  # kernels are small: all tau at once
            shrunk = self.values / (1 + 2 * tau[:, None] * self.values / self.algebra.sites)
            kernels = self.algebra.from_eigen(shrunk, None)
            return np.asarray((weights[:, None] * integrand(tau[:, None], kernels)).sum(-2))
        total: Any = 0.0
        for t, weight in zip(tau, weights, strict=True):
            shrunk = self.values / (1 + 2 * t * self.values / self.algebra.sites)
            total = total + weight * integrand(t, self.algebra.from_eigen(shrunk, self.vectors))
        return np.asarray(total)

    def centred(self) -> Array:
        """G K G."""
        return self.algebra.from_eigen(self.values, self.vectors)


def sphere_of(algebra: Algebra, kernel: Array, eps: float, name: str) -> Sphere | None:
    """The law behind batch norm ``name``; None if all sites are equal and nothing is left."""
    values, counts, vectors = algebra.eigen(algebra.center(kernel))
    sites = algebra.sites
    variance = float((values * counts).sum() / sites)
    scale = float(np.abs(kernel).max()) + eps
    if variance <= 1e-14 * scale or scale == 0:
        return None
    inside = values * counts > 1e-13 * variance * sites
    rank = float(counts[inside].sum())
    if rank < 3 and eps <= 1e-3 * variance:
        raise TheoryError(
            f"Batch norm {name!r} sees values that span {rank:.0f} direction(s) after the mean is "
            "subtracted: the mean of 1/variance over random weights is infinite. Use more samples, "
            "or inputs that are not copies of one another."
        )
    unit = variance + eps
    tau = np.exp(GRID) / unit
    log = -0.5 * _log_determinant(values[inside], counts[inside], tau, sites) - tau * eps + GRID
    mass = np.exp(log) * (GRID[1] - GRID[0]) / unit
    inverse = float(mass.sum())
    distinct, index = np.unique(values, return_inverse=True)
    shrunk = _shrunk(distinct, tau, mass, sites)
    kernel_values = shrunk[index].reshape(values.shape)
    power, square = (kernel_values * counts).sum(), (kernel_values**2 * counts).sum()
    dimension = float(power**2 / square)
    middle = float((values**2 * counts).sum() / (values * counts).sum())
    nodes = _gauss(tau, mass, middle / sites, MANY if dimension < DIRECTIONS else FEW)
    return Sphere(
        algebra,
        values,
        counts,
        vectors,
        inverse,
        algebra.from_eigen(kernel_values, vectors),
        dimension,
        nodes,
    )


def _shrunk(values: Array, tau: Array, mass: Array, sites: float) -> Array:
    """Int W w / (1 + 2 tau w / N) dtau, in pieces that stay small."""
    parts = [
        mass @ (w / (1 + 2 * tau[:, None] * w / sites))
        for w in np.split(values, range(512, values.size, 512))
    ]
    return np.concatenate(parts)


def _log_determinant(values: Array, counts: Array, tau: Array, sites: float) -> Array:
    """sum_k counts log(1 + 2 tau w / N), in pieces that stay small."""
    total = np.zeros_like(tau)
    for start in range(0, values.size, 512):
        w, m = values[start : start + 512], counts[start : start + 512]
        total += np.log1p(2 * tau[:, None] * w / sites) @ m
    return total


def _gauss(tau: Array, mass: Array, scale: float, count: int) -> tuple[tuple[float, float], ...]:
    """Gauss nodes of the measure in 1 / (1 + 2 tau scale), where the integrands are smooth."""
    keep = mass > 1e-18 * mass.max()
    tau, mass = tau[keep], mass[keep]
    place = 1 / (1 + 2 * tau * scale)
    total = mass.sum()
    # Stieltjes: orthogonal polynomials of the discrete measure, as a tridiagonal matrix
    vector, before, norm = np.sqrt(mass / total), np.zeros_like(mass), 0.0
    basis, diagonal, off = [vector], [], []
    for _ in range(count):
        after = place * vector - norm * before
        diagonal.append(float(vector @ after))
        after -= diagonal[-1] * vector
        for old in basis:
            after -= (old @ after) * old
        norm, before = float(np.linalg.norm(after)), vector
        if norm < 1e-12:
            break
        off.append(norm)
        vector = after / norm
        basis.append(vector)
    size = len(diagonal)
    matrix = np.diag(diagonal) + np.diag(off[: size - 1], 1) + np.diag(off[: size - 1], -1)
    points, vectors = np.linalg.eigh(matrix)
    points = np.clip(points, 1e-300, 1.0)
    weights = total * vectors[0] ** 2
    pairs = zip((1 / points - 1) / (2 * scale), weights, strict=True)
    return tuple((float(t), float(w)) for t, w in pairs if math.isfinite(t) and w > 0)
