r"""Generalization errors of a ReLU student of noisy linear data.

As published (samples with y <= 0 ignored), and corrected: those samples ask for w.x <= 0. The
corrected theory is exact for the convexified loss, sum over y > 0 of (y - w.x)^2 plus sum over
y <= 0 of max(0, w.x)^2, with the solution of least norm where the loss reaches 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from normscope.checks import Array, checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.results.generalization import ErrorCurve
from normscope.theory.teacher_student._checks import loads, noise

POLE = (
    "alpha = 2: in the published theory half of the samples, one per input, are fitted exactly, "
    "and the noise is amplified without bound. No such divergence is seen in trained students."
)
NO_POINT = (
    "2 a^2 <= alpha: the published free energy has no stationary point here; gamma^2 has passed "
    "infinity."
)
CUSP = (
    "alpha is the threshold of interpolation: the error has its peak here, finite, with an "
    "infinite slope on the left."
)
# angles between student and teacher; near S = 0 the solution sits at very small ones
ANGLES = np.concatenate(
    [[0.0], np.geomspace(1e-7, 0.2, 1500), np.linspace(0.2, np.pi / 2, 1500)[1:]]
)


@equation(LUO2019, "Eq. (22)-(25)")
def published_relu_error(
    alpha: ArrayLike, *, noise_variance: float = 0.0, a: float | None = None
) -> ErrorCurve:
    r"""Error of the ReLU student at the stationary point of the published free energy.

    .. math:: \gamma R = \frac{\alpha}{2a},\quad
        \gamma^2 = \frac{\alpha + \alpha^2/2 - \alpha^2/a + \alpha S}{2a^2 - \alpha},\quad
        \epsilon = 1 + \gamma^2/2 - \gamma R

    Symbols: S ``noise_variance``; ``a`` = (1 + beta D)/(beta D), by default the zero-temperature
    branch: 1 for alpha < 2, alpha/2 above.
    Holds for: as published; it ignores the samples with y <= 0, so that simulations are a few
    percent lower at small alpha and far from it near 2. At alpha = 2 the error is infinite (S > 0),
    and ``reasons`` says so.
    Differs from the paper: (22) and (24) hold for a = 1 only; the branch alpha > 2 is ours.
    """
    load, spread = loads(alpha), noise(noise_variance)
    given = None if a is None else float(checked_numbers(a, "a"))
    if given is not None and given < 1:
        raise InputError(f"a = (1 + beta D)/(beta D) cannot be below 1. Got {a!r}.")
    branch = np.maximum(1.0, load / 2) if given is None else np.full_like(load, given)
    overlap = load / (2 * branch)
    above = load + load**2 / 2 - load**2 / branch + load * spread
    below = 2 * branch**2 - load
    pole, wrong = np.isclose(below, 0, atol=1e-12) & (given is None), below <= 0
    gamma2 = np.where(wrong, np.inf, above / np.where(wrong, 1.0, below))
    if spread == 0:
        gamma2 = np.where(pole, 1.0, gamma2)  # the limit from both sides
    reasons = tuple(
        "" if np.isfinite(g) else POLE if p else NO_POINT for g, p in zip(gamma2, pole, strict=True)
    )
    numbers = (spread, load, 1 + gamma2 / 2 - overlap, gamma2, overlap)
    parameters = {} if given is None else {"a": given}
    return ErrorCurve("published theory", "relu", *numbers, reasons, parameters=parameters)


@equation(NORMSCOPE, "docs/design/0006, ReLU student with all its samples")
def relu_threshold(noise_variance: float) -> float:
    r"""alpha_c: the load up to which a student can meet every sample.

    .. math:: \alpha_c = \max_{u,v} \frac{v^2}{D_2(u,v)}
              = \max_\theta \frac{\sin^2\theta}{(1-r_c^2)/2 + J(r_c)},\quad
              r_c = \frac{\cos\theta}{\sqrt{1+S}}

    Symbols: S ``noise_variance``; theta the angle between student and teacher; gamma^2 J the
    mean of max(0, w.x)^2 over y <= 0.
    Holds for: the convexified loss, N to infinity; 2 for S = 0, falling to 4/3 for S to infinity.
    """
    return _threshold(noise(noise_variance))[0]


@equation(NORMSCOPE, "docs/design/0006, ReLU student with all its samples")
def relu_error(alpha: ArrayLike, *, noise_variance: float = 0.0) -> ErrorCurve:
    r"""Error of the ReLU student that minimises the convexified loss.

    .. math:: D_2 = \tfrac12[(1-u)^2 + v^2 + S] + \gamma^2 J(r_c);\quad
        \alpha < \alpha_c:\ \min u^2 + v^2\ \text{with}\ \alpha D_2 = v^2;\quad
        \alpha > \alpha_c:\ \min \sqrt{\alpha D_2} - v;\quad
        \epsilon = 1 + \gamma^2/2 - u

    Symbols: S ``noise_variance``; u = gamma R, gamma^2 = u^2 + v^2, r_c = u/(gamma sqrt(1+S)).
    Holds for: the convexified loss, N to infinity; gradient descent on the ReLU student itself
    peaks a little later. ``regimes`` is ``"interp"`` up to alpha_c, ``"noninterp"`` above; the
    error is finite at alpha_c.

    Example:
        >>> print(relu_error([1.0, 2.5], noise_variance=0.25).summary())
        convexified loss, relu student, noise variance 0.25
          alpha 1      0.84788
          alpha 2.5    0.69612
    """
    load, spread = loads(alpha), noise(noise_variance)
    edge, angle = _threshold(spread)
    points = [
        _interpolating(a, spread, angle) if a <= edge else _averaging(a, spread) for a in load
    ]
    gamma, theta = np.array(points).T
    overlap = gamma * np.cos(theta)
    numbers = (spread, load, 1 + gamma**2 / 2 - overlap, gamma**2, overlap)
    reasons = tuple(CUSP if abs(a - edge) < 1e-9 else "" for a in load)
    regimes = tuple("interp" if a <= edge else "noninterp" for a in load)
    return ErrorCurve("convexified loss", "relu", *numbers, reasons, regimes)


def _tilt(theta: Array, spread: float) -> tuple[Array, Array]:
    """sin^2 of phi = arccos r_c, and J = (2 phi - sin 2 phi) / (4 pi)."""
    sine2 = (np.sin(theta) ** 2 + spread) / (1 + spread)
    twice = 2 * np.arctan2(np.sqrt(sine2), np.cos(theta) / np.sqrt(1 + spread))
    series = twice**3 / 6 * (1 - twice**2 / 20 * (1 - twice**2 / 42))
    return sine2, np.where(twice < 1e-2, series, twice - np.sin(twice)) / (4 * np.pi)


def _threshold(spread: float) -> tuple[float, float]:
    """alpha_c and the angle at which it is reached."""
    if spread == 0:
        return 2.0, 0.0  # a supremum, at angle 0

    def ratio(theta: Array) -> Array:
        sine2, j = _tilt(theta, spread)
        made: Array = np.sin(theta) ** 2 / (sine2 / 2 + j)
        return made

    theta = _highest(ratio, ANGLES)
    return float(ratio(np.asarray(theta))), theta


def _interpolating(alpha: float, spread: float, edge: float) -> tuple[float, float]:
    """The shortest student that meets all samples: length and angle.

    At angle theta the constraint alpha D2 = v^2 is a quadratic in 1/gamma; its larger root counts.
    """

    def inverse(theta: Array) -> Array:
        _, j = _tilt(theta, spread)
        cosine = np.cos(theta)
        inside = cosine**2 - 2 * (1 + spread) * (0.5 + j - np.sin(theta) ** 2 / alpha)
        root = (cosine + np.sqrt(np.maximum(inside, 0.0))) / (1 + spread)
        return np.where(inside >= -1e-15, root, inside)  # below 0 where no length will do

    theta = _highest(inverse, np.sort(np.append(ANGLES, edge)))
    return 1 / float(inverse(np.asarray(theta))), theta


def _averaging(alpha: float, spread: float) -> tuple[float, float]:
    """The student of least loss above the threshold: the minimum over the length is closed."""

    def parts(theta: Array) -> tuple[Array, Array, Array]:
        _, j = _tilt(theta, spread)
        curve = 0.5 + j
        depth = (1 + spread) / 2 - np.cos(theta) ** 2 / (4 * curve)
        return curve, np.maximum(depth, 0.0), alpha * curve - np.sin(theta) ** 2

    def gain(theta: Array) -> Array:
        curve, depth, rest = parts(theta)
        made: Array = np.sin(2 * theta) / (4 * curve) - np.sqrt(depth * rest / curve)
        return made

    theta = _highest(gain, ANGLES)
    curve, depth, rest = parts(np.asarray(theta))
    gamma = np.cos(theta) / (2 * curve) + np.sin(theta) * np.sqrt(depth / (curve * rest))
    return float(gamma), theta


def _highest(function: Callable[[Array], Array], grid: Array) -> float:
    """Where ``function`` is largest: the best point of the grid, then within its neighbours."""
    values = function(grid)
    best = int(np.argmax(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    made: Any = minimize_scalar(
        lambda t: -float(function(np.asarray(t))),
        bounds=(float(low), float(high)),
        method="bounded",
        options={"xatol": float(1e-13 * max(high, 1e-3))},
    )
    return float(made.x if -made.fun >= values[best] else grid[best])
