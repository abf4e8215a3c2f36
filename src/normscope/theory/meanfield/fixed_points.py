"""Fixed points of the forward maps, order and chaos, depth scales: whole grids at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from normscope.checks import Array
from normscope.errors import ConvergenceError, InputError
from normscope.refs import NORMSCOPE, POOLE2016, SCHOENHOLZ2017, equation
from normscope.spec import Activation, activation
from normscope.theory.integrals import second_moment, second_moment_of_derivative
from normscope.theory.meanfield.pairs import PairMap
from normscope.theory.quadrature import gaussian_mean

STEPS = 100
LARGEST = 1e3  # a length above this is taken to diverge


@dataclass(frozen=True)
class _LengthMap:
    """q -> sigma_w^2 E phi(√q z)^2 + sigma_b^2 and its slope."""

    act: Activation
    weight: Array
    bias: Array

    def value(self, q: Array, where: NDArray[np.bool_]) -> Array:
        return self.weight[where] * second_moment(self.act, q) + self.bias[where]

    def slope(self, q: Array, where: NDArray[np.bool_]) -> Array:
        return length_slope(self.act, q, self.weight[where])


@equation(POOLE2016, "Eq. (3), fixed point")
def length_fixed_point(
    phi: str | Activation, weight_variance: ArrayLike, bias_variance: ArrayLike
) -> Array:
    r"""q*: the length that layers keep, reached from above.

    .. math:: q^* = \sigma_w^2 I_\phi[q^*, q^*] + \sigma_b^2

    Symbols: sigma_w^2 ``weight_variance``; sigma_b^2 ``bias_variance``; any shapes.
    Holds for: width to infinity. Infinite where lengths grow without bound (for phi without closed
    form: where q* is above about 1000, the reach of the quadrature); for homogeneous phi
    at the critical variance without biases every length is kept, and 1 is returned.
    """
    act = activation(phi)
    given = (np.asarray(x, float) for x in (weight_variance, bias_variance))
    weight, bias = np.broadcast_arrays(*given)
    shape, weight, bias = weight.shape, weight.ravel(), bias.ravel()
    if act.homogeneous:
        return _homogeneous_length(act, weight, bias).reshape(shape)
    return _newton_from_above(_LengthMap(act, weight, bias)).reshape(shape)


def _homogeneous_length(act: Activation, weight: Array, bias: Array) -> Array:
    keep = weight * float(second_moment(act, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.where(keep < 1, bias / (1 - keep), np.inf)
    return np.where((keep == 1) & (bias == 0), 1.0, length)


def _newton_from_above(chart: _LengthMap) -> Array:
    """Newton on map(q) - q, safeguarded by bisection, from a point above the largest root."""
    count = chart.weight.size
    everywhere = np.ones(count, dtype=bool)
    high = np.maximum(4.0, 2 * (chart.weight + chart.bias))
    for _ in range(60):
        above = chart.value(high, everywhere) > high
        if not above.any() or (high[above] > LARGEST).all():
            break
        high = np.where(above & (high <= LARGEST), high * 4, high)
    diverges = chart.value(high, everywhere) > high
    q = np.where(diverges, np.inf, high)
    active = ~diverges
    low = np.zeros(count)
    for _ in range(STEPS):
        if not active.any():
            break
        x = q[active]
        gap = chart.value(x, active) - x
        low[active] = np.where(gap > 0, np.maximum(low[active], x), low[active])
        with np.errstate(divide="ignore", invalid="ignore"):
            step = x - gap / (chart.slope(x, active) - 1)
        upper = np.where(gap > 0, high[active], x)
        high[active] = upper
        fits = np.isfinite(step) & (step > low[active]) & (step < upper)
        after = np.where(fits, step, (low[active] + upper) / 2)
        after = np.where(gap == 0, x, after)
        q[active] = after
        done = (np.abs(after - x) <= 1e-13 * (x + 1e-12)) | (gap == 0)
        active[np.flatnonzero(active)[done]] = False
        vanished = active & (q < 1e-14)
        q[vanished] = 0.0
        active &= ~vanished
    if active.any():
        worst = int(np.flatnonzero(active)[0])
        raise ConvergenceError(
            f"The length fixed point of {chart.act.name} did not settle in {STEPS} steps at "
            f"weight variance {chart.weight[worst]:.4g}, bias variance {chart.bias[worst]:.4g}; "
            f"the last value is {q[worst]:.6g}. The map is too flat there: move the grid point."
        )
    return np.where(q < 1e-14, 0.0, q)


@equation(SCHOENHOLZ2017, "Eq. (9)")
def length_slope(phi: str | Activation, length: ArrayLike, weight_variance: ArrayLike) -> Array:
    r"""Slope of the length map, which sets the depth scale xi_q.

    .. math:: \chi_q = \sigma_w^2\,\frac{d}{dq}E\,\phi(\sqrt q z)^2
              = \chi_1 + \sigma_w^2 E\,\phi\phi''

    Symbols: q ``length``; sigma_w^2 ``weight_variance``.
    Holds for: q > 0; computed as E[z phi phi']/sqrt(q), which needs no second derivative.
    """
    act = activation(phi)
    q = np.asarray(length, dtype=float)
    weight = np.asarray(weight_variance, dtype=float)
    if act.homogeneous:
        return weight * float(second_moment(act, 1.0)) * np.ones_like(q)
    safe = np.where(q > 0, q, 1e-12)

    def product(x: Array) -> Array:
        return x * np.asarray(act.function(x)) * np.asarray(act.derivative(x))

    return np.asarray(weight * gaussian_mean(product, safe, kinks=act.kinks) / safe)


@equation(POOLE2016, "Eq. (5), fixed point")
def correlation_fixed_point(
    phi: str | Activation, length: ArrayLike, weight_variance: ArrayLike, bias_variance: ArrayLike
) -> tuple[Array, Array]:
    r"""c*: the correlation two inputs end at, and the slope of the map there.

    .. math:: c^* q^* = \sigma_w^2 I_\phi[q^*, c^* q^*] + \sigma_b^2,\quad
              \chi_{c^*} = \sigma_w^2 I_{\phi'}[q^*, c^* q^*]

    Symbols: q* ``length``. c = 1 is always a root: it is the answer if chi_1 <= 1, otherwise the
    root below 1, approached from c = 0 by Newton steps (the map is convex).
    Holds for: width to infinity.

    Returns:
        c* and the slope, of the broadcast shape.
    """
    act = activation(phi)
    given = (np.asarray(x, float) for x in (length, weight_variance, bias_variance))
    q, weight, bias = np.broadcast_arrays(*given)
    shape = q.shape
    q, weight, bias = q.ravel(), weight.ravel(), bias.ravel()
    chi1 = weight * second_moment_of_derivative(act, np.where(np.isfinite(q), q, 1.0))
    c, slope = np.ones(q.size), chi1.copy()
    chaotic = (chi1 > 1) & np.isfinite(q) & (q > 0)
    if chaotic.any():
        pairs = PairMap(act, q[chaotic])
        root = _below_one(pairs, q[chaotic], weight[chaotic], bias[chaotic])
        c[chaotic] = root
        slope[chaotic] = weight[chaotic] * pairs.slope(root)
    return c.reshape(shape), slope.reshape(shape)


def _below_one(pairs: PairMap, q: Array, weight: Array, bias: Array) -> Array:
    """The root in [0, 1) of a convex map: Newton from the left never overshoots."""
    c = np.zeros(q.size)
    settled = np.zeros(q.size, dtype=bool)
    for _ in range(STEPS):
        gap = (weight * pairs.value(c) + bias) / q - c
        step = gap / (1 - weight * pairs.slope(c))
        after = np.clip(c + step, 0.0, 1.0)
        # Steps go right until rounding turns one round: then nothing is left to gain.
        settled |= (step <= 0) | (after - c <= 1e-14)
        if settled.all():
            return after
        c = after
    residual = np.abs((weight * pairs.value(c) + bias) / q - c)
    if np.max(residual) <= 1e-9:
        return c
    raise ConvergenceError(
        f"The correlation fixed point did not settle in {STEPS} steps; residual "
        f"{np.max(residual):.1e} at weight variance {weight[int(np.argmax(residual))]:.6g}."
    )


@equation(SCHOENHOLZ2017, "Eq. (9)-(10)")
def depth_scale(slope: ArrayLike) -> Array:
    r"""Layers over which a deviation from the fixed point falls by e.

    .. math:: \xi = -1/\log\chi

    Symbols: chi ``slope`` of the map at its fixed point.
    Holds for: 0 <= chi; infinite for chi >= 1, zero for chi = 0.
    """
    chi = np.asarray(slope, dtype=float)
    with np.errstate(divide="ignore"):
        scale = -1 / np.log(np.where(chi > 0, chi, 1e-300))
    return np.where(chi >= 1, np.inf, np.where(chi > 0, scale, 0.0))


@equation(NORMSCOPE, "docs/design/0002, edge of chaos")
@equation(POOLE2016, "chi_1 = 1")
def critical_weight_variance(phi: str | Activation, bias_variance: float) -> float:
    r"""sigma_w^2 on the edge of chaos, chi_1 = 1.

    .. math:: \sigma_w^2 = 1/E\,\phi'(\sqrt{q}z)^2,\quad
              \sigma_b^2 = q - \sigma_w^2 E\,\phi(\sqrt q z)^2

    Symbols: sigma_b^2 ``bias_variance``; the curve is followed in q, where it has one value.
    Holds for: activations with a saturating or linear range; homogeneous phi only for
    sigma_b^2 = 0 at finite length.
    """
    act = activation(phi)
    if act.homogeneous:
        return float(1 / second_moment_of_derivative(act, 1.0))

    def gap(q: float) -> float:
        weight = 1 / float(second_moment_of_derivative(act, q))
        return q - weight * float(second_moment(act, q)) - bias_variance

    if bias_variance == 0 and float(act.function(np.zeros(1))[0]) == 0:
        return float(1 / second_moment_of_derivative(act, 0.0))
    grid = np.geomspace(1e-10, 200.0, 120)
    values = np.array([gap(q) for q in grid])
    crossing = np.flatnonzero(np.sign(values[:-1]) != np.sign(values[1:]))
    if not crossing.size:
        raise InputError(
            f"{act.name} has no edge of chaos at bias variance {bias_variance}: chi_1 = 1 needs a "
            f"bias variance between {values.min() + bias_variance:.3g} and "
            f"{values.max() + bias_variance:.3g}."
        )
    at = int(crossing[0])
    q = brentq(gap, grid[at], grid[at + 1], xtol=1e-15, rtol=1e-14)
    return float(1 / second_moment_of_derivative(act, q))
