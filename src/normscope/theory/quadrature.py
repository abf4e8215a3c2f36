"""Gaussian averages of one and two variables by quadrature, each with its own error check.

Smooth functions: the trapezoid rule on [-12, 12] converges geometrically under Gaussian weights
(Gauss-Hermite is a trap here: 4e-4 off for tanh at variance 3.64 with 40 nodes). Two correlated
variables are reduced to one by the Hermite (Mehler) series

    E f(√a x) g(√b y) = Σ_k c_k(f, a) c_k(g, b) ρ^k,    c_k(f, a) = E f(√a z) h_k(z),

whose remainder is bounded by |ρ|^K times what Parseval leaves over; pairs for which that bound is
not small are integrated on a grid. Functions with kinks use Gauss-Legendre panels split there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Array
from normscope.errors import ConvergenceError

Function = Callable[[Any], Any]

REACH = 12.0  # exp(-12^2/2) = 5e-32
TOLERANCE = 1e-10  # relative to the root-mean-square of the integrand
NODES = (241, 481, 961, 1921, 3841)
SERIES = 256  # terms of the Hermite series
CHUNK = 4_000_000  # entries of a temporary


def gaussian_mean(
    function: Function, variance: ArrayLike, *, kinks: tuple[float, ...] = ()
) -> Array:
    """E f(√a z) for z ~ N(0, 1), elementwise in the variances a.

    Args:
        function: f, elementwise on arrays.
        variance: a >= 0, any shape.
        kinks: points where f is not smooth.

    Raises:
        ConvergenceError: the rule did not settle; f is not smooth or has no finite mean.
    """
    a = np.asarray(variance, dtype=float)
    scale = np.sqrt(a.ravel())
    if kinks:
        return _panel_mean(function, scale, kinks).reshape(a.shape)
    mean, error = np.empty(scale.size), np.full(scale.size, np.inf)
    for count in NODES:
        todo = np.flatnonzero(~(error <= TOLERANCE))
        if not todo.size:
            return mean.reshape(a.shape)
        mean[todo], error[todo] = _trapezoid_mean(function, scale[todo], count)
    worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    if not error[worst] <= TOLERANCE:
        raise _not_settled(function, float(a.ravel()[worst]), float(error[worst]))
    return mean.reshape(a.shape)


def gaussian_pair_mean(
    function: Function,
    variance: ArrayLike,
    covariance: ArrayLike,
    *,
    variance2: ArrayLike | None = None,
    kinks: tuple[float, ...] = (),
) -> Array:
    """E f(x) f(y) for centred Gaussian x, y, elementwise.

    Args:
        function: f, elementwise on arrays.
        variance: variance of x.
        covariance: covariance of x and y; the correlation is clipped to [-1, 1].
        variance2: variance of y; that of x if not given.
        kinks: points where f is not smooth.
    """
    a1, a2, b = np.broadcast_arrays(
        np.asarray(variance, float),
        np.asarray(variance if variance2 is None else variance2, float),
        np.asarray(covariance, float),
    )
    shape = a1.shape
    a1, a2, b = a1.ravel(), a2.ravel(), b.ravel()
    rho = correlation(a1, a2, b)
    if kinks:
        pairs = zip(a1, a2, rho, strict=True)
        return np.array([_panel_pair(function, *p, kinks) for p in pairs]).reshape(shape)
    value, bad = _series_pair(function, a1, a2, rho)
    if bad.any():
        value[bad] = _grid_pair(function, a1[bad], a2[bad], rho[bad])
    return value.reshape(shape)


def angular_mean(function: Callable[[Array, Array], Array], scale: float, rho: float) -> float:
    """E f(u, t) of a function of degree 2, for Gaussian u and t that may both go through a ReLU.

    In polar coordinates the radius gives E r^2 = 2; over the angle the integrand is smooth between
    the kinks of both ReLUs.

    Args:
        function: f(u, t), with f(c u, c t) = c^2 f(u, t) for c > 0 and kinks at u = 0 and t = 0.
        scale: standard deviation of u; that of t is 1.
        rho: correlation of u and t.
    """
    tilt = np.arccos(rho)
    kinks = np.array([-np.pi / 2, np.pi / 2, tilt - np.pi / 2, tilt + np.pi / 2])
    edges = np.sort([-np.pi, np.pi, *((kinks + np.pi) % (2 * np.pi) - np.pi)])
    x, w = np.polynomial.legendre.leggauss(40)
    middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    angle = middle[:, None] + half[:, None] * x
    values = function(scale * np.cos(angle), np.cos(angle - tilt))
    return float(np.sum(values * w * half[:, None]) / np.pi)


def correlation(a1: ArrayLike, a2: ArrayLike, b: ArrayLike) -> Array:
    """B / √(a1 a2) clipped to [-1, 1]; 1 where a variance is zero (both are then constant)."""
    norm = np.sqrt(np.asarray(a1, float) * np.asarray(a2, float))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(norm > 0, np.clip(np.asarray(b, float) / norm, -1.0, 1.0), 1.0)


def hermite_coefficients(function: Function, variance: Array, terms: int) -> tuple[Array, Array]:
    """c_k = E f(√a z) h_k(z), k < terms, orthonormal h_k, and their error in units of rms f.

    Returns:
        coefficients (variances, terms) and errors (variances,); each variance gets a rule fine
        enough that every second node gives the same.
    """
    scale = np.sqrt(variance)
    table, error = np.zeros((scale.size, terms)), np.full(scale.size, np.inf)
    for nodes in NODES:
        todo = np.flatnonzero(~(error <= TOLERANCE))
        if not todo.size:
            break
        z, basis = _hermite_basis(terms, nodes)
        coarse_basis = 2 * basis[::2]
        step = max(1, CHUNK // nodes)
        for start in range(0, todo.size, step):
            rows = todo[start : start + step]
            values = np.asarray(function(scale[rows, None] * z), dtype=float)
            values = np.broadcast_to(values, (rows.size, z.size))
            table[rows] = values @ basis
            size = np.sqrt(values**2 @ _rule(nodes)[1]) + 1e-300
            gap = np.max(np.abs(table[rows] - values[:, ::2] @ coarse_basis), axis=1)
            error[rows] = gap / size
    return table, error


@lru_cache(maxsize=16)
def _rule(nodes: int) -> tuple[Array, Array]:
    z = np.linspace(-REACH, REACH, nodes)
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    return z, weight


@lru_cache(maxsize=16)  # two lengths of the series on every rule
def _hermite_basis(terms: int, nodes: int) -> tuple[Array, Array]:
    z, _ = _rule(nodes)
    # Hermite functions: half of the weight inside the recursion keeps it from overflowing.
    columns = [np.exp(-(z**2) / 4), z * np.exp(-(z**2) / 4)]
    for k in range(1, terms - 1):
        columns.append((z * columns[k] - np.sqrt(k) * columns[k - 1]) / np.sqrt(k + 1))
    half = np.exp(-(z**2) / 4) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    return z, np.stack(columns[:terms], axis=1) * half[:, None]


def _trapezoid_mean(function: Function, scale: Array, nodes: int) -> tuple[Array, Array]:
    """The mean on ``nodes`` nodes, and how far the same sum on every second node is from it."""
    z, weight = _rule(nodes)
    mean, error = np.empty(scale.size), np.empty(scale.size)
    step = max(1, CHUNK // nodes)
    for start in range(0, scale.size, step):
        part = scale[start : start + step, None] * z
        values = np.broadcast_to(np.asarray(function(part), dtype=float), part.shape)
        fine = values @ weight
        size = np.sqrt(values**2 @ weight) + 1e-300
        coarse = values[:, ::2] @ (2 * weight[::2])
        # what is cut off beyond the last node: not small if f outgrows the Gaussian
        edge = np.abs(values[:, [0, -1]]).max(axis=1) * weight[0]
        mean[start : start + step] = fine
        error[start : start + step] = np.abs(fine - coarse) / size + edge / (
            np.abs(values) @ weight + 1e-300
        )
    return mean, error


def _series_pair(f: Function, a1: Array, a2: Array, rho: Array) -> tuple[Array, NDArray[np.bool_]]:
    """The Hermite series, and where its remainder is not provably small."""
    distinct, index = np.unique(np.concatenate([a1, a2]), return_inverse=True)
    first, second = index[: a1.size], index[a1.size :]
    power = gaussian_mean(lambda x: np.asarray(f(x)) ** 2, distinct)
    value = np.zeros(a1.size)
    remainder = np.full(a1.size, np.inf)
    for terms in (SERIES // 8, SERIES):
        todo = np.flatnonzero(~(remainder <= TOLERANCE))
        if not todo.size:
            break
        c, error = hermite_coefficients(f, distinct, terms)
        left = np.sqrt(np.clip(power - np.sum(c**2, axis=1), 0, None) / (power + 1e-300))
        value[todo] = _horner(c, first[todo], second[todo], rho[todo])
        bound = np.abs(rho[todo]) ** terms * left[first[todo]] * left[second[todo]]
        remainder[todo] = bound + np.maximum(error[first[todo]], error[second[todo]])
    return value, ~(remainder <= 4 * TOLERANCE)


def _horner(c: Array, first: NDArray[np.intp], second: NDArray[np.intp], rho: Array) -> Array:
    total = np.zeros(rho.size)
    for k in range(c.shape[1] - 1, -1, -1):
        total = total * rho + c[first, k] * c[second, k]
    return total


def _grid_pair(f: Function, a1: Array, a2: Array, rho: Array) -> Array:
    """Trapezoid rule in two independent variables, for strong correlation and sharp functions."""
    error = np.inf
    for count in NODES[:4]:
        z, weight = _rule(count)
        result = np.empty(rho.size)
        error = 0.0
        for i, (va, vb, r) in enumerate(zip(a1, a2, rho, strict=True)):
            y = r * z[:, None] + np.sqrt(max(0.0, 1 - r * r)) * z[None, :]
            table = np.asarray(f(np.sqrt(va) * z))[:, None] * np.asarray(f(np.sqrt(vb) * y))
            result[i] = weight @ table @ weight
            coarse = 4 * (weight[::2] @ table[::2, ::2] @ weight[::2])
            size = np.sqrt(weight @ table**2 @ weight) + 1e-300
            error = max(error, abs(result[i] - coarse) / size)
        if error <= TOLERANCE:
            return result
    raise _not_settled(f, float(max(np.max(a1), np.max(a2))), float(error))


@lru_cache(maxsize=8)
def _legendre(count: int) -> tuple[Array, Array]:
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def _panels(breaks: Array, width: float, order: int = 16) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on [breaks[0], breaks[-1]], split at every break."""
    counts = [max(2, int(np.ceil(gap / width)) + 1) for gap in np.diff(breaks)]
    panels = zip(breaks[:-1], breaks[1:], counts, strict=True)
    edges = np.unique(np.concatenate([np.linspace(*panel) for panel in panels]))
    x, w = _legendre(order)
    length = np.diff(edges)
    return (edges[:-1, None] + length[:, None] * x).ravel(), (length[:, None] * w).ravel()


def _breaks(points: Array) -> Array:
    return np.unique(np.concatenate([[-REACH, REACH], points[np.abs(points) < REACH]]))


def _panel_mean(f: Function, scale: Array, kinks: tuple[float, ...]) -> Array:
    def mean(s: float, width: float) -> tuple[float, float]:
        cuts = np.asarray(kinks) / s if s > 0 else np.array([])
        z, w = _panels(_breaks(cuts), width)
        weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * w
        values = np.broadcast_to(np.asarray(f(s * z), dtype=float), z.shape)
        return float(values @ weight), float(np.sqrt(values**2 @ weight))

    error, result = 0.0, np.empty(scale.size)
    for i, s in enumerate(scale):
        (fine, size), (coarse, _) = mean(s, 0.5), mean(s, 1.0)
        error = max(error, abs(fine - coarse) / (size + 1e-300))
        result[i] = fine
    if not error <= TOLERANCE:
        raise _not_settled(f, float(np.max(scale) ** 2), error)
    return result


def _panel_pair(f: Function, a1: float, a2: float, rho: float, kinks: tuple[float, ...]) -> float:
    spread = np.sqrt(max(0.0, 1 - rho * rho))
    if spread < 1e-7 or min(a1, a2) == 0:
        sign = 1.0 if rho >= 0 else -1.0
        ratio = sign * np.sqrt(a2 / a1) if a1 > 0 else 0.0
        cuts = kinks + tuple(k / ratio for k in kinks) if ratio else kinks
        scale = np.array([np.sqrt(a1)])
        return float(_panel_mean(lambda x: np.asarray(f(x)) * f(ratio * x), scale, cuts)[0])

    def inner(y0: Array, width: float) -> Array:
        """E_w f(√a2 (y0 + spread w)), split where the argument meets a kink."""
        result = np.empty(y0.size)
        for i, y in enumerate(y0):
            cuts = (np.asarray(kinks) / np.sqrt(a2) - y) / spread
            w, weight = _panels(_breaks(cuts), width)
            values = np.asarray(f(np.sqrt(a2) * (y + spread * w)))
            result[i] = values * np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi) @ weight
        return result

    def total(width: float) -> float:
        marks = np.asarray(kinks) / np.sqrt(a1)
        if rho != 0:  # the inner mean bends within `spread` of these points
            bends = np.asarray(kinks) / np.sqrt(a2) / rho
            near = [bends + m * spread / abs(rho) for m in (-6.0, -2.0, 0.0, 2.0, 6.0)]
            marks = np.concatenate([marks, *near])
        z, w = _panels(_breaks(marks), width)
        values = np.asarray(f(np.sqrt(a1) * z)) * inner(rho * z, 2 * width)
        return float(values * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) @ w)

    fine, coarse = total(1.0), total(2.0)
    if not abs(fine - coarse) <= 1e-7 * (abs(fine) + 1e-3):
        raise _not_settled(f, max(a1, a2), abs(fine - coarse))
    return fine


def _not_settled(function: Function, variance: float, error: float) -> ConvergenceError:
    name = getattr(function, "__name__", "<lambda>")
    name = "an activation" if name == "<lambda>" else name
    return ConvergenceError(
        f"The Gaussian average of {name} at variance {variance:.4g} did not settle: two rules "
        f"differ by {error:.1e} (relative), above {TOLERANCE:.0e}. The function is not smooth on "
        "the scale of its input, or grows too fast. List its corners in kinks=, or use a smaller "
        "variance."
    )
