r"""The angle behind the law: phi = a (1 - u), a = pi / (M + 1), carried as v = log u.

Both ends keep their relative precision: u = e^v near x = 0, phi = -a expm1(v) near the edge.
Everything rises with u.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.errors import ConvergenceError

STEPS = 200  # a dozen are usual; at the edge, a multiple root, the steps shrink by a third only
LIMIT, SPACING = 6.0, 1 / 32  # of the double exponential rule: u from 1e-275 to 1 - 1e-275


@dataclass(frozen=True)
class Angles:
    """Sines of phi, M phi and (M + 1) phi at points v = log u < 0."""

    factors: int
    v: Array

    @property
    def width(self) -> float:
        """End a of the range of angles."""
        return float(np.pi / (self.factors + 1))

    @property
    def phi(self) -> Array:
        """The angle of the paper."""
        return -self.width * np.expm1(self.v)

    @property
    def sines(self) -> tuple[Array, Array, Array]:
        """Sin phi, sin M phi, sin (M + 1) phi; the last by pi - (M + 1) phi where that is small."""
        turn = np.pi * np.minimum(np.exp(self.v), -np.expm1(self.v))
        return np.sin(self.phi), np.sin(self.factors * self.phi), np.sin(turn)

    def log_square(self) -> Array:
        """Log x of Eq. (9), as ratios of sines: no cancellation at the edge."""
        one, last, next_ = self.sines
        return (self.factors + 1) * np.log(next_ / last) + np.log(last / one)

    def log_square_slope(self) -> Array:
        """Derivative of log x in v."""
        u, m = np.exp(self.v), self.factors
        turn = np.pi * u
        inner = m**2 / np.tan(m * self.phi) + 1 / np.tan(self.phi)
        return (m + 1) * turn / np.tan(turn) + self.width * u * inner

    def mass(self) -> Array:
        """F(x), the share below x: u + (M / pi) sin phi sin (M+1) phi / sin M phi."""
        one, last, next_ = self.sines
        return np.exp(self.v) + self.factors / np.pi * one * next_ / last

    def mass_slope(self) -> Array:
        """DF/du, bounded: the weight of integrals over u."""
        one, last, next_ = self.sines
        m, a = self.factors, self.width
        first, second = one / last, next_ / last
        turned = np.pi * np.cos(np.pi * np.exp(self.v)) * first
        bent = m * a * first * second * np.cos(m * self.phi) - a * np.cos(self.phi) * second
        return 1 + m / np.pi * (turned + bent)

    def log_density(self) -> Array:
        """Log rho(x), Eq. (10)."""
        one, last, next_ = self.sines
        return np.log(one * next_ / last / np.pi) - self.log_square()


def inside_support(log_x: Array, factors: int) -> tuple[NDArray[np.bool_], Angles]:
    """Where 0 < x < edge, and the angles there; ``log_x`` is for unit variances."""
    inside = (log_x > -np.inf) & (log_x < log_edge(factors))  # False for NaN, of negative x
    return inside, angles_of_square(log_x[inside], factors)


def log_edge(factors: int) -> float:
    """Log of (M+1)^(M+1) / M^M."""
    return float(np.log(factors + 1) + factors * np.log1p(1 / factors))


def safe_log(values: Array) -> Array:
    """Log of ``values``: -inf at 0, NaN below."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(values)


def angles_of_square(log_x: Array, factors: int) -> Angles:
    """The angles at which Eq. (9) gives x, for 0 < x < edge."""
    end = np.log(np.pi / np.sin(np.pi / (factors + 1)))  # log x = (M+1) (v + end) as v falls
    low = log_x / (factors + 1) - end
    return _solved(
        lambda at: (at.log_square(), at.log_square_slope()),
        log_x,
        factors,
        (low, np.zeros_like(low)),
    )


def angles_of_mass(mass: Array, factors: int) -> Angles:
    """The angles with share ``mass`` below, 0 < mass < 1; F/(M+1) <= u <= F."""
    log_mass = np.log(mass)

    def logs(at: Angles) -> tuple[Array, Array]:
        value = at.mass()
        return np.log(value), np.exp(at.v) * at.mass_slope() / value

    bracket = (log_mass - np.log(factors + 1), np.minimum(log_mass, -np.finfo(float).tiny))
    return _solved(logs, log_mass, factors, bracket)


def _solved(
    rising: Callable[[Angles], tuple[Array, Array]],
    target: Array,
    factors: int,
    bracket: tuple[Array, Array],
) -> Angles:
    """Newton on rising(v) = target, guarded by bisection, for all points at once."""
    low, high = bracket
    v = (low + high) / 2
    for _ in range(STEPS):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value, slope = rising(Angles(factors, v))
            step = v - (value - target) / slope  # may be no number where the slope vanishes
        below = value < target
        low, high = np.where(below, v, low), np.where(below, high, v)
        inside = (step > low) & (step < high)
        after = np.where(inside, step, (low + high) / 2)
        settled = np.abs(after - v) <= 2 * np.finfo(float).eps * np.abs(v)
        v = after
        if settled.all():
            return Angles(factors, v)
    raise ConvergenceError(f"The angle of {np.sum(~settled)} values did not settle.")


def integration_nodes(factors: int) -> tuple[Angles, Array]:
    """Nodes, and weights of the law at them, for means of functions of x.

    The double exponential rule forgives what the functions do at x = 0 and at the edge.
    """
    t = np.arange(-LIMIT, LIMIT + SPACING / 2, SPACING)
    v = -np.logaddexp(0.0, -np.pi * np.sinh(t))  # u = 1 / (1 + exp(-pi sinh t))
    steps = np.exp(v) * -np.expm1(v) * np.pi * np.cosh(t) * SPACING
    at = Angles(factors, v)
    return at, steps * at.mass_slope()
