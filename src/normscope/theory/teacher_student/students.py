r"""Teacher and student of the same activation: the Gaussian averages behind their dynamics.

x ~ N(0, I/N), t = w*.x of variance 1, u = W.x of variance Q^2, correlation R. One sample moves the
student by delta = g'(u) (g(t) - g(u)). ReLU and identity are both g(u) = u on the part of the line
where g' = 1, so that three numbers make all averages: c = E[g(u)^2]/Q^2, K11 and K02.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_numbers
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.registry import Registry
from normscope.theory.integrals import arccosine_kernel
from normscope.theory.teacher_student._checks import correlations


@dataclass(frozen=True)
class Student:
    """One activation and its averages.

    Attributes:
        name: name of the activation.
        function: g.
        slope: g'.
        power: c = E[g(u)^2] / Q^2, also E[g'(u)].
        cross: K11(R) = E[g(u) g(t)] / Q.
        target: K02(R) = E[g'(u) g(t)^2].
    """

    name: str
    function: Callable[[Array], Array] = field(repr=False)
    slope: Callable[[Array], Array] = field(repr=False)
    power: float
    cross: Callable[[Array], Array] = field(repr=False)
    target: Callable[[Array], Array] = field(repr=False)


def _relu_target(r: Array) -> Array:
    made: Array = (np.pi / 2 + np.arcsin(r) + r * np.sqrt(1 - r**2)) / (2 * np.pi)
    return made


_RELU = Student(
    name="relu",
    function=lambda u: np.maximum(u, 0.0),
    slope=lambda u: np.asarray(u > 0, dtype=float),
    power=0.5,
    cross=lambda r: arccosine_kernel(r) / 2,
    target=_relu_target,
)
_LINEAR = Student("linear", lambda u: u, np.ones_like, 1.0, lambda r: r, np.ones_like)
STUDENTS: Registry[Student] = Registry("student", {"relu": _RELU, "linear": _LINEAR})


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (13), first term")
def cross_moment(correlation: ArrayLike, student: str = "relu") -> Array:
    r"""K11: mean product of the outputs of student and teacher, per length of the student.

    .. math:: K_{11} = E[g(u) g(t)]/Q =
              \frac{\sqrt{1-R^2} + R(\pi/2 + \arcsin R)}{2\pi}\ \text{(ReLU)},
              \quad R\ \text{(linear)}

    Symbols: R ``correlation``; ``student`` the activation of both.
    Holds for: |R| <= 1; exact.
    """
    return np.asarray(STUDENTS[student].cross(correlations(correlation)))


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (14), first term")
def target_moment(correlation: ArrayLike, student: str = "relu") -> Array:
    r"""K02: mean square of the teacher's output where the student is active.

    .. math:: K_{02} = E[g'(u) g(t)^2] =
              \frac{\pi/2 + \arcsin R + R\sqrt{1-R^2}}{2\pi}\ \text{(ReLU)},\quad 1\ \text{(linear)}

    Symbols: R ``correlation``; ``student`` the activation of both.
    Holds for: |R| <= 1; exact.
    """
    return np.asarray(STUDENTS[student].target(correlations(correlation)))


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (13)")
def gradient_along_student(
    gamma: ArrayLike, correlation: ArrayLike, student: str = "relu"
) -> Array:
    r"""I1: mean push of one sample along the student itself.

    .. math:: I_1 = E[\delta u] = Q K_{11} - c Q^2

    Symbols: Q ``gamma``; R ``correlation``; c = 1/2 (ReLU), 1 (linear).
    Holds for: Q >= 0, |R| <= 1; exact for Gaussian inputs.
    """
    q = checked_numbers(gamma, "gamma")
    return q * cross_moment(correlation, student) - STUDENTS[student].power * q**2


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (15)")
def gradient_power(gamma: ArrayLike, correlation: ArrayLike, student: str = "relu") -> Array:
    r"""I2: mean square of the push of one sample.

    .. math:: I_2 = E[\delta^2 x^T x] = c Q^2 + K_{02} - 2 Q K_{11}

    Symbols: Q ``gamma``; R ``correlation``; c = 1/2 (ReLU), 1 (linear).
    Holds for: Q >= 0, |R| <= 1; N to infinity, where x.x = 1.
    Differs from the paper: (15) prints pi R for the pi of K02, wrong unless R = 1.
    """
    q = checked_numbers(gamma, "gamma")
    first = STUDENTS[student].power * q**2 + target_moment(correlation, student)
    return np.asarray(first - 2 * q * cross_moment(correlation, student))


@equation(NORMSCOPE, "docs/design/0006, linear student")
@equation(LUO2019, "Eq. (14)")
def gradient_along_teacher(
    gamma: ArrayLike, correlation: ArrayLike, student: str = "relu"
) -> Array:
    r"""I3: mean push of one sample along the teacher.

    .. math:: I_3 = E[\delta t] = K_{02} - c Q R

    Symbols: Q ``gamma``; R ``correlation``; c = 1/2 (ReLU), 1 (linear).
    Holds for: Q >= 0, |R| <= 1; exact for Gaussian inputs.
    """
    q, r = checked_numbers(gamma, "gamma"), correlations(correlation)
    return np.asarray(target_moment(r, student) - STUDENTS[student].power * q * r)
