r"""A Krylov space that can take new directions at any time and be shrunk at any time.

The state is one relation, exact up to rounding, with orthonormal rows of V and F together:

.. math:: A V^T = V^T H + F^T E

V (m, n) is the basis, H = V A V^T the projected matrix, F (b, n) the open ends: directions that
products have reached but that have not been multiplied yet, E (b, m) their couplings. One end is
Lanczos (E = beta e_m^T), several are block Lanczos; a random end with E = 0 is a fresh start in
the complement; V <- S^T V keeps the relation, which is the thick restart (Wu and Simon 2000).
A Ritz pair H s = theta s has the residual norm ||E s||, without any further product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array
from normscope.errors import MeasurementError
from normscope.measure.spectral.products import Products, numbers
from normscope.registry import check_choice

Which = Literal["largest", "smallest", "magnitude"]
ASYMMETRY = 1e-3  # relative; below it is rounding of low precision, above it a wrong product


def checked_which(which: str) -> Which:
    """``which`` if it is known, otherwise an error with the near match."""
    names = ["largest", "smallest", "magnitude"]
    check_choice("which", which, names)
    return which  # type: ignore[return-value]


def rank_key(values: Array, which: Which) -> Array:
    """What is maximised: lambda, -lambda or |lambda|."""
    if which == "largest":
        return values
    return -values if which == "smallest" else np.abs(values)


@dataclass(frozen=True)
class Ritz:
    """Ritz pairs of one space, best first."""

    values: Array  # (m,)
    vectors: Array  # (m, m) columns, in the basis
    couplings: Array  # (b, m) residuals in the open ends
    residuals: Array  # (m,) ||A y - theta y||: an eigenvalue lies within, always
    bounds: Array  # (m,) of the eigenvalue error


def ritz_pairs(matrix: Array, couplings: Array, which: Which) -> Ritz:
    r"""The eigenpairs of the projected matrix H with residuals E s and bounds.

    For the j leading Ritz values as a group, with residual block R_j and the distance delta_j to
    the other Ritz values, each of them is off by about

    .. math:: |\lambda_i - \theta_i| \le \min(\|r_i\|, \|R_j\|^2 / \delta_j), \qquad i \le j

    (Parlett 1998, section 11.7; Mathias 1998). The group form does not suffer from small distances
    inside a cluster. The distance is one between Ritz values, so the second term holds only if no
    eigenvalue was missed: that is what :mod:`normscope.measure.spectral.search` verifies.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    order = np.argsort(-rank_key(values, which), kind="stable")
    values, vectors = values[order], vectors[:, order]
    coupled = couplings @ vectors
    residuals = np.linalg.norm(coupled, axis=0)
    return Ritz(values, vectors, coupled, residuals, _bounds(values, residuals))


def _bounds(values: Array, residuals: Array) -> Array:
    """The least over the groups of leading values that contain i; i alone counts as a group too."""
    if len(values) < 2:
        return residuals
    distance = np.abs(values[:, None] - values[None])
    squares = np.cumsum(residuals**2)[:-1]
    groups = np.array([distance[:j, j:].min() for j in range(1, len(values))])
    np.fill_diagonal(distance, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        grouped = np.nan_to_num(squares / groups, nan=0.0, posinf=np.inf)
        alone = np.nan_to_num(residuals**2 / distance.min(axis=1), nan=0.0, posinf=np.inf)
    best = np.minimum.accumulate(grouped[::-1])[::-1]
    bounds: Array = np.minimum(np.minimum(residuals, alone), np.append(best, np.inf))
    return bounds


@dataclass(frozen=True)
class Extension:
    """One step of the recurrence: A v = (old part) + alpha v + beta w, with w among the ends."""

    alpha: float
    beta: float  # 0 when the product stayed inside the space
    onward: Array  # (b,) the unit vector w in terms of the ends


class KrylovSpace:
    """The relation A V^T = V^T H + F^T E and the three ways to change it."""

    def __init__(self, products: Products) -> None:
        operator = products.operator
        self._products = products
        self._rows = torch.empty(0, products.n, dtype=operator.dtype, device=operator.device)
        self._ends = self._rows.clone()  # (b, n)
        self.matrix: Array = np.zeros((0, 0))  # H
        self.couplings: Array = np.zeros((0, 0))  # E
        self.size = 0

    @property
    def num_ends(self) -> int:
        """Number of open ends b of the block recursion."""
        return len(self._ends)

    @property
    def basis(self) -> Tensor:
        """The basis V, of shape (m, n)."""
        return self._rows[: self.size]

    @property
    def floor(self) -> float:
        """Size below which a number is rounding error of the products."""
        return 10 * self._products.eps * float(np.abs(self.matrix).max(initial=0.0))

    def open_end(self, vector: Tensor) -> Array:
        """Make ``vector`` (n,), without its part in V, a direction of the ends; (b,) unit."""
        vector = vector / torch.linalg.vector_norm(vector)
        for _ in range(2):
            vector = vector - self.basis.T @ (self.basis @ vector)
        inside, remainder = self._split(vector)
        return self._open(inside, remainder)

    def extend(self, direction: Array) -> Extension:
        """Multiply the end sum_b direction_b F_b (a unit vector) and take it into the basis."""
        self._rotate(direction)
        row, coupling = self._ends[0], self.couplings[0]
        self._ends, self.couplings = self._ends[1:], self.couplings[1:]
        product = self._products(row[None])[0]
        seen, alpha = numbers(self.basis @ product), float(row @ product)
        self._check_symmetry(seen, coupling, float(torch.linalg.vector_norm(product)))
        self._append(row, (seen + coupling) / 2, alpha)
        for _ in range(2):  # once is not enough
            product = product - self.basis.T @ (self.basis @ product)
        inside, remainder = self._split(product)
        beta = math.hypot(float(np.linalg.norm(inside)), _norm(remainder))
        self.couplings = np.column_stack([self.couplings, np.zeros(self.num_ends)])
        if beta <= self.floor:
            return Extension(alpha, 0.0, np.zeros(self.num_ends))
        onward = self._open(inside, remainder)
        self.couplings[:, -1] = beta * onward
        return Extension(alpha, beta, onward)

    def restart(self, vectors: Array) -> None:
        """Keep only the span of orthonormal ``vectors`` (m, kept), given in the basis."""
        kept = vectors.shape[1]
        weights = torch.from_numpy(vectors.T.copy()).to(self._rows)
        self._rows[:kept] = weights @ self.basis
        self.matrix = vectors.T @ self.matrix @ vectors
        self.couplings = self.couplings @ vectors
        self.size = kept

    def lift(self, vectors: Array) -> Tensor:
        """Vectors of the space (m, k) as rows of the full space, (k, n)."""
        return torch.from_numpy(vectors.T.copy()).to(self._rows) @ self.basis

    def _split(self, vector: Tensor) -> tuple[Array, Tensor]:
        """The part of ``vector`` inside the ends (b,), and what is left of it (n,)."""
        inside = self._ends @ vector
        vector = vector - self._ends.T @ inside
        again = self._ends @ vector
        return numbers(inside + again), vector - self._ends.T @ again

    def _open(self, inside: Array, remainder: Tensor) -> Array:
        """Append ``remainder`` as an end unless it is rounding; the whole as unit direction."""
        norm = _norm(remainder)
        full = self.size + self.num_ends >= self._products.n
        if norm > max(self.floor, 10 * self._products.eps * np.linalg.norm(inside)) and not full:
            self._ends = torch.cat([self._ends, remainder[None] / norm])
            self.couplings = np.vstack([self.couplings, np.zeros((1, self.couplings.shape[1]))])
            inside = np.append(inside, norm)
        direction: Array = inside / np.linalg.norm(inside)
        return direction

    def _rotate(self, direction: Array) -> None:
        """Rotate the ends so that the first one is ``direction`` (Householder)."""
        axis = direction.copy()
        axis[0] += np.copysign(1.0, axis[0])  # maps direction to -sign * first: sign is free
        reflector = np.eye(len(axis)) - 2 * np.outer(axis, axis) / (axis @ axis)
        if len(axis) > 1:
            self._ends = torch.from_numpy(reflector).to(self._ends) @ self._ends
            self.couplings = reflector @ self.couplings

    def _append(self, row: Tensor, coupling: Array, alpha: float) -> None:
        if self.size == len(self._rows):
            room = torch.empty_like(self._rows[:0]).new_empty(max(8, self.size), self._products.n)
            self._rows = torch.cat([self._rows, room])
        self._rows[self.size] = row
        self.matrix = np.block(
            [[self.matrix, coupling[:, None]], [coupling[None], np.array([[alpha]])]]
        )
        self.size += 1

    def _check_symmetry(self, seen: Array, expected: Array, norm: float) -> None:
        error = float(np.abs(seen - expected).max(initial=0.0))
        scale = max(norm, float(np.abs(self.matrix).max(initial=0.0)))
        if error > ASYMMETRY * scale:
            raise MeasurementError(
                f"{type(self._products.operator).__name__} is tagged symmetric, but u^T A v and "
                f"v^T A u differ by {error / scale:.1%} of its size at product "
                f"{self._products.count}. Either a product is not reproducible (randomness in the "
                "model), or its derivative rule is wrong, or the tag is."
            )


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
