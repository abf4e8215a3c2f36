"""Oracles of Gaussian and spherical averages: adaptive or spectral, none shared with the code."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy import integrate

Function = Callable[[np.ndarray], np.ndarray]
REACH = 10.0


def density(x: float) -> float:
    return float(np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def mean1(f: Function, variance: float, kinks: tuple[float, ...] = ()) -> float:
    """E f(sqrt(a) z) by adaptive quadrature."""
    s = np.sqrt(variance)
    cuts = sorted(k / s for k in kinks if s > 0 and abs(k / s) < REACH)
    edges = [-REACH, *cuts, REACH]
    return sum(
        integrate.quad(lambda x: float(f(s * x)) * density(x), lo, hi, epsabs=1e-12, limit=200)[0]
        for lo, hi in pairwise(edges)
    )


def mean2(
    f: Function,
    variance: float,
    covariance: float,
    *,
    variance2: float | None = None,
    kinks: tuple[float, ...] = (),
) -> float:
    """E f(u) f(v) by two nested Gauss-Legendre rules, split at the kinks in both variables."""
    a1, a2 = variance, variance if variance2 is None else variance2
    rho = covariance / np.sqrt(a1 * a2)
    spread = np.sqrt(1 - rho**2)
    node, weight = np.polynomial.legendre.leggauss(60)

    def rule(cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        edges = np.unique([-REACH, *np.linspace(-REACH, REACH, 9), *cuts, REACH])
        edges = edges[np.abs(edges) <= REACH]
        half = np.diff(edges)[:, None] / 2
        x = (edges[:-1, None] + half * (node + 1)).ravel()
        return x, (half * weight).ravel() * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)

    x, wx = rule(np.asarray(kinks) / np.sqrt(a1))
    inner = np.empty_like(x)
    for i, value in enumerate(x):
        w, ww = rule((np.asarray(kinks) / np.sqrt(a2) - rho * value) / spread)
        inner[i] = np.dot(f(np.sqrt(a2) * (rho * value + spread * w)), ww)
    return float(np.dot(f(np.sqrt(a1) * x) * inner, wx))


def smooth2(f: Function, variance: float, covariance: float) -> float:
    """E f(u) f(v) of a smooth f by a plain trapezoid grid: fast, good to 1e-12 for tanh."""
    z = np.linspace(-9, 9, 181)
    w = np.exp(-(z**2) / 2)
    w = w / w.sum()
    rho = min(1.0, covariance / variance)
    y = rho * z[:, None] + np.sqrt(1 - rho**2) * z[None, :]
    return float((w * f(np.sqrt(variance) * z)) @ f(np.sqrt(variance) * y) @ w)


def monte_carlo(
    f: Function, a1: float, a2: float, b: float, *, count: int = 400_000, seed: int = 0
) -> tuple[float, float]:
    """Mean and standard error of f(u) f(v) over ``count`` draws."""
    rng = np.random.default_rng(seed)
    rho = b / np.sqrt(a1 * a2)
    x, w = rng.standard_normal((2, count))
    y = rho * x + np.sqrt(1 - rho**2) * w
    values = f(np.sqrt(a1) * x) * f(np.sqrt(a2) * y)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(count))


def batch_normed_pair(f: Function, count: int, *, terms: int = 40) -> tuple[float, float]:
    """E f(z_s)^2 and E f(z_s) f(z_t) for ``count`` Gaussian values, standardized: exact.

    The standardized vector is uniform on a sphere in R^(n-1), so the pair mean is a series of
    Gegenbauer polynomials at -1/(n-1) (the Funk-Hecke theorem), for any f and any n >= 4.
    """
    order = (count - 3) / 2  # alpha of the Gegenbauer polynomials in dimension n - 1
    node, weight = np.polynomial.legendre.leggauss(60)
    half = min(1.0, 12 / np.sqrt(count)) / 8  # 8 panels a side; the density is nil beyond
    left = np.arange(-8, 8)[:, None] * half
    x = (left + half * (node + 1) / 2).ravel()
    w = np.tile(weight, 16) * np.exp((count - 4) / 2 * np.log1p(-(x**2)))
    w = w / w.sum()
    values = f(np.sqrt(count - 1) * x)
    rho = -1 / (count - 1)
    total = 0.0
    for k in range(terms):
        # C_k(x) / C_k(1) is a ratio of numbers that overflow for large order: recur on the ratio
        total += (
            float(np.dot(w, values * _ratio(k, order, x))) ** 2
            * float(_ratio(k, order, np.array([rho]))[0])
            / float(np.dot(w, _ratio(k, order, x) ** 2))
        )
    return float(np.dot(w, values**2)), total


def _ratio(degree: int, order: float, x: np.ndarray) -> np.ndarray:
    """C_k(x) / C_k(1), from (k + 2a) r_(k+1) = 2 (k + a) x r_k - k r_(k-1)."""
    before, now = np.zeros_like(x), np.ones_like(x)
    for k in range(degree):
        before, now = now, (2 * (k + order) * x * now - k * before) / (k + 2 * order)
    return now
