r"""A low-rank sketch from which several leave-one-out estimates are read.

With test vectors Omega (n, m), Y = A Omega = Q R and Z = A Q (2m products in all), leaving out
column i of Omega gives the projector

.. math:: P_i = Q (I - s_i s_i^T) Q^T, \qquad s_i \propto R^{-T} e_i

so that all m splits of A into a known and an unknown part cost no further product (Epperly,
Tropp, Webber 2024). The unknown part is estimated with the vector left out: its direction in the
complement, of dimension n - m + 1, is uniform, which makes every split unbiased.

The m estimates are exchangeable but share their vectors, so that their scatter alone understates
the error of their mean (by up to a half, measured). The standard error here is the jackknife over
the test vectors, which is conservative on average (Efron and Stein 1981); it needs no product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array
from normscope.measure.spectral.products import Products, numbers

DELETIONS = 50  # vectors left out in turn for the jackknife; more would only cost time


@dataclass(frozen=True)
class Sketch:
    """The small matrices of a sketch; everything below is computed from them."""

    n: int
    r: Array  # (m, m) R
    h: Array  # (m, m) Q^T A Q
    w: Array  # (m, m) Q^T Omega
    t: Array  # (m, m) Q^T A^T Omega
    z_gram: Array  # (m, m) Z^T Z
    norms: Array  # (m,) ||omega_i||^2
    eps: float

    @classmethod
    def of(cls, products: Products, tests: Tensor) -> Sketch:
        """The sketch of an operator with test vectors as rows (m, n)."""
        q, r = torch.linalg.qr(products(tests).T)
        z = products(q.T).T
        return cls(
            n=products.n,
            r=numbers(r),
            h=numbers(q.T @ z),
            w=numbers(q.T @ tests.T),
            t=numbers(z.T @ tests.T),
            z_gram=numbers(z.T @ z),
            norms=numbers((tests**2).sum(dim=1)),
            eps=products.eps,
        )

    @property
    def captured(self) -> bool:
        """Whether A has no part outside the sketch: then the sketch knows it exactly."""
        diagonal = np.abs(np.diag(self.r))
        return bool(diagonal.min() <= 100 * self.eps * diagonal.max())

    @property
    def _rest(self) -> float:
        """About the Frobenius norm of the part of A outside: the least new length of an image."""
        return float(np.abs(np.diag(self.r)).min())

    def hidden_trace(self) -> float:
        """The trace of a rest of that norm, if its n eigenvalues are equal."""
        return math.sqrt(self.n) * self._rest

    def hidden_square(self) -> float:
        """The squared Frobenius norm of that rest."""
        return self._rest**2

    def without(self, j: int) -> Sketch:
        """The sketch that test vector j had never entered."""
        keep = np.arange(len(self.norms)) != j
        u, r = np.linalg.qr(self.r[:, keep])
        return Sketch(
            n=self.n,
            r=r,
            h=u.T @ self.h @ u,
            w=u.T @ self.w[:, keep],
            t=u.T @ self.t[:, keep],
            z_gram=u.T @ self.z_gram @ u,
            norms=self.norms[keep],
            eps=self.eps,
        )

    def traces(self) -> Array:
        r"""(m,) estimates of tr A: tr(P_i A) + c_i omega_i^T (I - P_i) A (I - P_i) omega_i."""
        if self.captured:
            return np.full(1, np.trace(self.h))
        s, x, c = self._splits()
        known = np.trace(self.h) - _dots(s, self.h @ s)
        rest = _dots(self.w, self.r) - _dots(self.t, x) - _dots(x, self.r) + _dots(x, self.h @ x)
        traces: Array = known + c * rest
        return traces

    def squares(self) -> Array:
        r"""(m,) estimates of ||A||_F^2, A symmetric: known part, twice the cross part, rest.

        .. math:: \|A\|^2 = \|P A P\|^2 + 2 \|(I - P) A P\|^2 + \|(I - P) A (I - P)\|^2
        """
        if self.captured:  # then A = Q H Q^T
            return np.full(1, np.sum(self.h**2))
        s, x, c = self._splits()
        both = np.trace(self.z_gram) - _dots(s, self.z_gram @ s)  # ||A P_i||^2
        hs, sh = self.h @ s, self.h.T @ s
        inner = np.sum(self.h**2) - _dots(hs, hs) - _dots(sh, sh) + _dots(s, hs) ** 2
        # the image y_i - Z x_i of (I - P_i) omega_i: its squared norm, and its part inside P_i
        norm = _dots(self.r, self.r - 2 * self.h @ x) + _dots(x, self.z_gram @ x)
        inside = self.r - self.h @ x
        inside = inside - s * _dots(s, inside)
        squares: Array = 2 * both - inner + c * (norm - _dots(inside, inside))
        return squares

    def _splits(self) -> tuple[Array, Array, Array]:
        """Left-out directions s (m, m), P_i omega_i in Q's coordinates, and the scales c."""
        s = np.linalg.inv(self.r).T
        s = s / np.linalg.norm(s, axis=0)
        x = self.w - s * _dots(s, self.w)
        return s, x, (self.n - len(self.norms) + 1) / (self.norms - _dots(x, x))


def jackknife(sketch: Sketch, estimates: Callable[[Sketch], Array]) -> float:
    """Standard error of the mean of ``estimates``, from leaving each test vector out in turn."""
    m = len(sketch.norms)
    deletions = range(min(m, DELETIONS))
    means = np.array([estimates(sketch.without(j)).mean() for j in deletions])
    return math.sqrt((m - 1) * float(means.var(ddof=1)) * (m - 1) / m)


def _dots(a: Array, b: Array) -> Array:
    """Scalar products of the columns."""
    dots: Array = np.einsum("ji,ji->i", a, b)
    return dots
