"""Order-parameter ODEs of online learning, and their paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from normscope.checks import Array, checked_number, checked_numbers
from normscope.errors import InputError
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.results.teacher_student import LearningPath
from normscope.theory.teacher_student._checks import (
    above_zero,
    correlations,
    decays,
    learning_rates_of,
    lengths,
)
from normscope.theory.teacher_student.students import STUDENTS, Student

Drift = Callable[[float, Array], Array]
ACCURACY: dict[str, Any] = {"method": "DOP853", "rtol": 1e-10, "atol": 1e-12}
POINTS = 201  # times of a path of which only the end is given
LOST = 1e6  # a student this long has diverged; the ODE stops there


@dataclass(frozen=True)
class Start:
    """Where learning begins: the student's gain, correlation with the teacher, weight length."""

    gamma: float = 0.5
    correlation: float = 0.1
    length: float = 1.0

    def __post_init__(self) -> None:
        above_zero("gamma", self.gamma, why="the student needs a direction to turn")
        correlations(self.correlation)
        lengths(self.length)


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (6), (10)")
def bn_drift(
    gamma: ArrayLike,
    correlation: ArrayLike,
    *,
    lr: float,
    zeta: float = 0.0,
    length: ArrayLike = 1.0,
    student: str = "relu",
) -> tuple[Array, Array, Array]:
    r"""Velocity of gamma, R and L under weight norm with gamma decay (batch norm's equal).

    .. math::
        \dot\gamma = \eta (I_1/\gamma - \zeta\gamma),\quad
        \dot R = \frac{\eta}{L^2}(\gamma I_3 - R I_1) - \frac{\eta^2\gamma^2 R}{2L^4} I_2,\quad
        \dot L = \frac{\eta^2\gamma^2}{2L^3} I_2

    Symbols: eta ``lr``; L ``length``; R ``correlation``; zeta in (y - yhat)^2 + zeta gamma^2.
    Holds for: N to infinity at time = steps / N; zeta = 0 is weight norm.
    Differs from the paper: the step of gamma in (5) needs 1/N, else gamma collapses.
    """
    g, r = checked_numbers(gamma, "gamma"), correlations(correlation)
    eta, decay, long = learning_rates_of(lr), decays(zeta), lengths(length)
    return _bn_velocity(g, r, long, eta, decay, STUDENTS[student])


@equation(NORMSCOPE, "docs/design/0006, SGD without a norm")
def sgd_drift(
    gamma: ArrayLike, correlation: ArrayLike, *, lr: float, student: str = "relu"
) -> tuple[Array, Array]:
    r"""Velocity of the length Q and the correlation R under SGD without a norm.

    .. math:: \dot Q = \frac{\eta I_1}{Q} + \frac{\eta^2 I_2}{2Q},\qquad
              \dot R = \frac{\eta I_3}{Q} - \frac{R}{Q}\dot Q

    Symbols: Q ``gamma``, the length ||w||/sqrt(N); R ``correlation``; eta ``lr``.
    Holds for: Q > 0; N to infinity at time = steps / N.
    """
    q = above_zero("gamma", gamma, why="R has no meaning for a student of length 0")
    r = correlations(correlation)
    slow, fast = _sgd_squares(q, r, learning_rates_of(lr), STUDENTS[student])
    growth = fast / (2 * q)
    return np.asarray(growth), np.asarray((slow - r * growth) / q)


def bn_path(
    start: Start,
    times: ArrayLike,
    *,
    lr: float,
    zeta: float,
    student: str = "relu",
    fixed_length: bool = False,
) -> LearningPath:
    """Path of weight norm with gamma decay, the paper's picture of batch norm.

    Args:
        start: gamma, R and L at time 0.
        times: the end, or all times wanted, in units of N steps.
        lr: learning rate eta.
        zeta: gamma decay of the loss (y - yhat)^2 + zeta gamma^2 (or half of both).
        student: activation of teacher and student, ``"relu"`` or ``"linear"``.
        fixed_length: hold L, as if w were rescaled after each step.

    Returns:
        The solution of Luo's Eq. (6), to about 1e-9.

    Example:
        >>> path = bn_path(Start(gamma=0.5, correlation=0.1), 16, lr=0.5, zeta=0.25)
        >>> [round(value, 4) for value in path.end]
        [0.4929, 0.7755, 1.0659]
    """
    rate, decay = checked_number(learning_rates_of(lr), "lr"), checked_number(decays(zeta), "zeta")
    made, grid = STUDENTS[student], checked_times(times)

    def drift(_: float, state: Array) -> Array:
        gamma, r, length = state
        r = np.clip(r, -1.0, 1.0)  # a trial step of the solver may leave the range
        move = np.array(_bn_velocity(gamma, r, length, rate, decay, made))
        return move * [1.0, 1.0, 0.0] if fixed_length else move

    state = [start.gamma, start.correlation, start.length]
    found, when, reason = _solved(drift, state, grid)
    gamma, r, length = (row[None] for row in found)
    how = ("bn" if decay > 0 else "wn", made.name, rate, decay, when)
    return LearningPath(*how, gamma, r, length, fixed_length=fixed_length, reason=reason)


def wn_path(
    start: Start, times: ArrayLike, *, lr: float, student: str = "relu", fixed_length: bool = False
) -> LearningPath:
    """Path of weight norm: :func:`bn_path` without gamma decay."""
    return bn_path(start, times, lr=lr, zeta=0.0, student=student, fixed_length=fixed_length)


def sgd_path(start: Start, times: ArrayLike, *, lr: float, student: str = "relu") -> LearningPath:
    """Path of SGD without a norm; ``start.gamma`` is the first length, ``start.length`` unused.

    Above lr = 2 the student's length grows without bound; the path then ends early and says so.
    """
    rate = checked_number(learning_rates_of(lr), "lr")
    made, grid = STUDENTS[student], checked_times(times)

    def drift(_: float, state: Array) -> Array:
        overlap, square = state  # Q R and Q^2: no division by Q
        q = float(np.sqrt(max(square, 0.0)))
        r = np.clip(overlap / q, -1.0, 1.0) if q > 0 else np.float64(0.0)
        return np.array(_sgd_squares(np.float64(q), r, rate, made))

    state = [start.gamma * start.correlation, start.gamma**2]
    (overlap, square), when, reason = _solved(drift, state, grid)
    q = np.sqrt(square)
    r = np.clip(overlap / q, -1.0, 1.0)
    return LearningPath("sgd", made.name, rate, 0.0, when, q[None], r[None], q[None], reason=reason)


def checked_times(times: ArrayLike) -> Array:
    """A single end as an even grid from 0; a list as given, increasing and from 0 on."""
    found = checked_numbers(times, "times")
    if found.ndim == 0:
        return np.linspace(0.0, float(above_zero("times", found, why="it is the end")), POINTS)
    if found.ndim > 1 or len(found) < 2 or found[0] < 0 or np.any(np.diff(found) <= 0):
        raise InputError(
            "times must be one number, the end, or at least two increasing numbers from 0 on, in "
            f"units of N steps. Got {times!r}."
        )
    return found


def _bn_velocity(
    g: Array, r: Array, long: Array, eta: Array | float, decay: Array | float, made: Student
) -> tuple[Array, Array, Array]:
    cross, target = made.cross(r), made.target(r)
    own = cross - made.power * g  # I1 / gamma, without the division by a gamma that may be 0
    power = made.power * g**2 + target - 2 * g * cross
    along = g * (target - made.power * g * r) - r * g * own  # gamma I3 - R I1
    push = eta**2 * g**2 * power / 2
    speed = eta * along / long**2 - r * push / long**4
    return np.asarray(eta * (own - decay * g)), np.asarray(speed), np.asarray(push / long**3)


def _sgd_squares(q: Array, r: Array, eta: Array | float, made: Student) -> tuple[Array, Array]:
    """d(QR)/dt = eta I3 and d(Q^2)/dt = 2 eta I1 + eta^2 I2."""
    cross, target = made.cross(r), made.target(r)
    along = target - made.power * q * r
    own = q * cross - made.power * q**2
    power = made.power * q**2 + target - 2 * q * cross
    return eta * along, 2 * eta * own + eta**2 * power


def _solved(drift: Drift, state: list[float], times: Array) -> tuple[Array, Array, str]:
    """States at the times, the times reached, and why the last ones are missing."""

    def lost(_: float, now: Array) -> float:
        return LOST - float(np.max(np.abs(now)))

    lost.terminal = True  # type: ignore[attr-defined]
    made: Any = solve_ivp(
        drift, (0.0, float(times[-1])), state, t_eval=times, events=lost, **ACCURACY
    )
    reached = made.t
    if made.status == 0:
        return made.y, reached, ""
    if made.status == 1:
        when = made.t_events[0][0]
        reason = f"The student diverged: an order parameter passed {LOST:g} at t = {when:.4g}."
    else:
        reason = f"The integration stopped after {len(reached)} of the times: {made.message}"
    return made.y, reached, reason
