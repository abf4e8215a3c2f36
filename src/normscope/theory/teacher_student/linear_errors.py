r"""Generalization errors of a student of noisy linear data: least squares and ridge.

Teacher y = w*.x + noise of variance S, x ~ N(0, I/N), |w*|^2 = N, P = alpha N samples. Errors are
noise-free: E (w*.x - yhat)^2. Two strengths of a penalty are told apart: ``lam`` is the ridge of
X'X + lam I; ``zeta`` is the gamma decay of (1/P) sum (y - yhat)^2 + zeta gamma^2, lam = alpha zeta.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_numbers
from normscope.refs import LUO2019, equation
from normscope.results.generalization import ErrorCurve
from normscope.theory.teacher_student._checks import (
    above_zero,
    at_least_zero,
    correlations,
    decays,
    loads,
    noise,
)
from normscope.theory.teacher_student.students import STUDENTS

SINGULAR = (
    "alpha = 1: as many samples as inputs, so the smallest eigenvalue of X'X touches 0 and the "
    "noise is amplified without bound. A ridge or another alpha keeps the error finite."
)


@equation(LUO2019, "Eq. (18), and App. D.1 for ReLU")
def student_error(gamma: ArrayLike, correlation: ArrayLike, student: str = "relu") -> Array:
    r"""Error of a student of given length and direction on clean data of a linear teacher.

    .. math:: \epsilon = 1 + \gamma^2 - 2\gamma R\ \text{(linear)},\quad
              1 + \gamma^2/2 - \gamma R\ \text{(ReLU)}

    Symbols: gamma, R ``correlation``; ``student`` is the student's activation, the teacher linear.
    Holds for: Gaussian inputs; exact.
    """
    g, r = checked_numbers(gamma, "gamma"), correlations(correlation)
    return np.asarray(1 + STUDENTS[student].power * (g**2 - 2 * g * r))


@equation(LUO2019, "Sec. 4.1, WN + gamma decay: G")
def resolvent(lam: ArrayLike, alpha: ArrayLike) -> Array:
    r"""G: mean of 1/(eigenvalue + lam) over the eigenvalues of X'X.

    .. math:: G = \frac{1-\alpha-\lambda +
              \sqrt{(\lambda + (1+\sqrt\alpha)^2)(\lambda + (1-\sqrt\alpha)^2)}}{2\lambda}

    Symbols: lambda ``lam``; ``alpha`` = P/N; X is P x N with variance 1/N.
    Holds for: N to infinity (Marchenko-Pastur); lam > 0.
    """
    strength = above_zero("lam", lam, why="G is infinite for alpha < 1 without a ridge")
    load = above_zero("alpha", alpha, why="it is P / N")
    return np.asarray(_lam_times_g(strength, load)[0] / strength)


@equation(LUO2019, "Sec. 4.1, vanilla SGD")
def least_squares_error(alpha: ArrayLike, *, noise_variance: float = 0.0) -> ErrorCurve:
    r"""Error of the least-squares student, of least norm where there are several.

    .. math:: \epsilon = 1 - \alpha + \frac{\alpha S}{1-\alpha}\ (\alpha < 1),\qquad
              \frac{S}{\alpha - 1}\ (\alpha > 1)

    Symbols: S ``noise_variance``; ``alpha`` = P/N, one or several.
    Holds for: N to infinity; gradient descent from zero, at infinite time. At alpha = 1 the error
    is infinite (S > 0), and ``reasons`` says so.
    """
    load = loads(alpha)
    return _curve("least squares", load, np.zeros_like(load), noise(noise_variance), {})


@equation(LUO2019, "Sec. 4.1, WN + gamma decay")
def ridge_error(alpha: ArrayLike, *, lam: float, noise_variance: float = 0.0) -> ErrorCurve:
    r"""Error of the ridge solution with X'X + lam I.

    .. math:: \epsilon = S \frac{\partial(\lambda G)}{\partial\lambda}
              - \lambda^2 \frac{\partial G}{\partial\lambda}

    Symbols: lambda ``lam``; S ``noise_variance`` (the paper's delta^2); G :func:`resolvent`.
    Holds for: N to infinity; lam = S is the best. lam = 0 is :func:`least_squares_error`.
    """
    load = loads(alpha)
    strength = float(at_least_zero("lam", lam, why="a negative ridge may meet an eigenvalue"))
    made = np.full_like(load, strength)
    return _curve("ridge", load, made, noise(noise_variance), {"lam": strength})


@equation(LUO2019, "Sec. 4, loss of WN + gamma decay")
def weight_norm_error(alpha: ArrayLike, *, zeta: float, noise_variance: float = 0.0) -> ErrorCurve:
    r"""Error of weight norm with gamma decay: ridge of strength alpha zeta.

    .. math:: \epsilon = \epsilon_{ridge}(\lambda = \alpha\zeta)

    Symbols: ``zeta`` of the loss (1/P) sum (y - yhat)^2 + zeta gamma^2; S ``noise_variance``.
    Holds for: N to infinity, trained to convergence.
    Differs from the paper: it takes lam = zeta, which belongs to a loss with 1/N for 1/P.
    """
    load, decay = loads(alpha), float(decays(zeta))
    return _curve(
        "weight norm + gamma decay", load, load * decay, noise(noise_variance), {"zeta": decay}
    )


def _lam_times_g(lam: Array, alpha: Array) -> tuple[Array, Array]:
    """M = lam G and dm/dlam, in the forms that do not cancel; both have their limit at lam = 0.

    m solves m^2 + (lam + alpha - 1) m = lam; dm/dlam = 2 alpha / (D (lam + alpha + 1 + D)).
    """
    middle = lam + alpha - 1
    root = np.sqrt(middle**2 + 4 * lam)
    below, above = middle <= 0, middle > 0
    m = np.where(below, (root - middle) / 2, 0.0)
    m = np.where(above, 2 * lam / np.where(above, middle + root, 1.0), m)
    with np.errstate(divide="ignore"):
        slope = 2 * alpha / (root * (lam + alpha + 1 + root))
    return m, slope


def _curve(
    method: str, alpha: Array, lam: Array, noise_variance: float, parameters: dict[str, float]
) -> ErrorCurve:
    m, slope = _lam_times_g(lam, alpha)
    diverges = np.isinf(slope)
    finite = np.where(diverges, 0.0, slope)
    error = noise_variance * finite + m - lam * finite
    if noise_variance > 0:
        error = np.where(diverges, np.inf, error)
    overlap = 1 - m
    gamma2 = error - 1 + 2 * overlap
    reasons = tuple(SINGULAR if np.isinf(value) else "" for value in error)
    numbers = (noise_variance, alpha, error, gamma2, overlap)
    return ErrorCurve(method, "linear", *numbers, reasons, parameters=parameters)
