"""Fixed points, eigenvalues and learning rates of online learning."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from normscope.checks import Array, checked_number
from normscope.refs import LUO2019, NORMSCOPE, equation
from normscope.results.teacher_student import LearningRates, OverlapSlopes
from normscope.theory.teacher_student._checks import (
    at_least_zero,
    decays,
    learning_rates_of,
    lengths,
)
from normscope.theory.teacher_student.dynamics import bn_drift
from normscope.theory.teacher_student.students import STUDENTS


@equation(LUO2019, "Proposition 1")
def fixed_gamma(zeta: ArrayLike, student: str = "relu") -> Array:
    r"""gamma0: the gain at which the student's fit and its decay balance.

    .. math:: \gamma_0 = \frac{c}{c + \zeta}:\quad \frac{1}{1 + 2\zeta}\ \text{(ReLU)},\quad
              \frac{1}{1+\zeta}\ \text{(linear)}

    Symbols: zeta in (y - yhat)^2 + zeta gamma^2, twice that of Eq. (3).
    Holds for: R = 1, first order in the learning rate; exact for zeta = 0.
    """
    power = STUDENTS[student].power
    return np.asarray(power / (power + decays(zeta)))


@equation(LUO2019, "Proposition 2, 3")
def gain_rate(lr: ArrayLike, zeta: ArrayLike, student: str = "relu") -> Array:
    r"""lambda_Q: eigenvalue of gamma at the fixed point.

    .. math:: \lambda_Q = \frac{\eta}{Q_0}\frac{\partial I_1}{\partial Q} - 2\eta\zeta
              = -\eta (c + \zeta)

    Symbols: eta ``lr``; c = 1/2 (ReLU), 1 (linear).
    Holds for: R = 1. Without a norm zeta = 0, whatever the decay.
    Differs from the paper: the first display of Proposition 2 prints zeta Q0 for 2 zeta.
    """
    return np.asarray(-learning_rates_of(lr) * (STUDENTS[student].power + decays(zeta)))


@equation(LUO2019, "Proposition 2")
def overlap_rate(
    lr: ArrayLike, zeta: ArrayLike = 0.0, *, length: ArrayLike = 1.0, student: str = "relu"
) -> Array:
    r"""lambda_R: eigenvalue of R at the fixed point, below 0 where R = 1 attracts.

    .. math:: \lambda_R = \frac{\partial I_2}{\partial R}\frac{\eta\gamma_0}{2L_0^2}
              (\eta_{max} - \eta_{eff}) = -\frac{2c\eta\gamma_0}{L_0^2}
              + \frac{c\eta^2\gamma_0^3}{L_0^4}

    Symbols: eta ``lr``; L0 ``length``; c = 1/2 (ReLU), 1 (linear).
    Holds for: zeta = 0 exactly (weight norm; SGD with L0 = 1); zeta > 0 without the term that
    :func:`complete_overlap_rate` adds.
    """
    eta, gamma, square = learning_rates_of(lr), fixed_gamma(zeta, student), lengths(length) ** 2
    power = STUDENTS[student].power
    return np.asarray(power * eta * gamma / square * (eta * gamma**2 / square - 2))


@equation(NORMSCOPE, "docs/design/0006, gamma decay has no fixed point")
def complete_overlap_rate(
    lr: ArrayLike, zeta: ArrayLike = 0.0, *, length: ArrayLike = 1.0, student: str = "relu"
) -> Array:
    r"""The whole derivative of dR/dt in R at (gamma0, 1, L0).

    .. math:: \frac{\partial \dot R}{\partial R} = \lambda_R
              - \frac{c\,\eta^2\gamma_0^2(1-\gamma_0)^2}{2L_0^4}

    Symbols: as :func:`overlap_rate`.
    Holds for: all zeta; the point itself is fixed for zeta = 0 only.
    Differs from the paper: the second term, which the paper drops with I2(gamma0, 1).
    """
    eta, gamma, four = learning_rates_of(lr), fixed_gamma(zeta, student), lengths(length) ** 4
    dropped = STUDENTS[student].power * (eta * gamma * (1 - gamma)) ** 2 / (2 * four)
    return overlap_rate(lr, zeta, length=length, student=student) - dropped


@equation(LUO2019, "Table 1")
def max_effective_lr(zeta: ArrayLike = 0.0, student: str = "relu") -> Array:
    r"""eta_max: the effective learning rate above which R = 1 no longer attracts.

    .. math:: \eta_{max} = \left(\frac{\partial(\gamma_0 I_3 - I_1)}{\gamma_0\partial R}
              - \zeta\gamma_0\right) \Big/ \frac{\partial I_2}{2\partial R} = \frac{2}{\gamma_0}

    Symbols: zeta of the batch norm row; zeta = 0 gives weight norm and SGD, 2.
    Holds for: the linearised R alone; 2 + 4 zeta (ReLU), 2 + 2 zeta (linear).
    Differs from the paper: zeta gamma0 stands inside the numerator.
    """
    return np.asarray(2 / fixed_gamma(zeta, student))


@equation(LUO2019, "Table 1")
def effective_lr(
    lr: ArrayLike, zeta: ArrayLike = 0.0, *, length: ArrayLike = 1.0, student: str = "relu"
) -> Array:
    r"""eta_eff: the learning rate that the direction of the weights feels.

    .. math:: \eta_{eff} = \eta\gamma_0 / L_0^2

    Symbols: eta ``lr``; L0 ``length``; zeta = 0 for weight norm, and L0 = 1 with it for SGD.
    Holds for: R near 1.
    """
    return np.asarray(learning_rates_of(lr) * fixed_gamma(zeta, student) / lengths(length) ** 2)


@equation(LUO2019, "Table 1, solved for the learning rate")
def max_lr(zeta: ArrayLike = 0.0, *, length: ArrayLike = 1.0, student: str = "relu") -> Array:
    r"""The raw learning rate at which eta_eff = eta_max.

    .. math:: \eta < 2 L_0^2/\gamma_0^2

    Symbols: L0 ``length``; gamma0 of ``zeta``.
    Holds for: L held at L0. With free length L grows until the bound is met again, so that weight
    norm and batch norm do not diverge at any learning rate.
    """
    return np.asarray(2 * lengths(length) ** 2 / fixed_gamma(zeta, student) ** 2)


@equation(NORMSCOPE, "docs/design/0006, gamma decay has no fixed point")
def overlap_deficit(
    lr: ArrayLike, zeta: ArrayLike, *, length: ArrayLike = 1.0, student: str = "relu"
) -> Array:
    r"""1 - R at which learning with gamma decay settles, for a small learning rate.

    .. math:: 1 - R \approx \frac{\eta\gamma_0(1-\gamma_0)^2}{4L^2}

    Symbols: eta ``lr``; L ``length``; gamma0 of ``zeta``.
    Holds for: first order in eta; both students, since c drops out.
    """
    gamma = fixed_gamma(zeta, student)
    return np.asarray(learning_rates_of(lr) * gamma * (1 - gamma) ** 2 / (4 * lengths(length) ** 2))


@equation(NORMSCOPE, "docs/design/0006, gamma decay has no fixed point")
def late_length(
    time: ArrayLike,
    *,
    lr: ArrayLike,
    zeta: ArrayLike,
    length: ArrayLike = 1.0,
    student: str = "relu",
) -> Array:
    r"""L at late times: with gamma decay the weights never stop growing.

    .. math:: L^4 \approx L_0^4 + 2c\,\eta^2\gamma_0^2(1-\gamma_0)^2\,t

    Symbols: t ``time`` in units of N steps; L0 ``length``; c = 1/2 (ReLU), 1 (linear).
    Holds for: small eta, t long after R has settled.
    """
    gamma = fixed_gamma(zeta, student)
    moved = at_least_zero("time", time, why="learning starts at 0")
    growth = 2 * STUDENTS[student].power * (learning_rates_of(lr) * gamma * (1 - gamma)) ** 2
    return np.asarray((lengths(length) ** 4 + growth * moved) ** 0.25)


@equation(NORMSCOPE, "docs/design/0006, steady state at fixed length")
def steady_state(
    lr: float, zeta: float, *, length: float = 1.0, student: str = "relu"
) -> tuple[float, float]:
    r"""Gamma and R at which learning stands still when the length of the weights is held.

    .. math:: \dot\gamma = 0,\ \dot R = 0:\quad \gamma = \frac{K_{11}(R)}{c + \zeta},\quad
              \gamma I_3 - R I_1 = \frac{\eta\gamma^2 R}{2L^2} I_2

    Symbols: eta ``lr``; L ``length``, held; zeta the gamma decay.
    Holds for: N to infinity; R in (0, 1], where there is one attracting solution.
    """
    rate, decay = checked_number(learning_rates_of(lr), "lr"), checked_number(decays(zeta), "zeta")
    held = checked_number(lengths(length), "length")
    made = STUDENTS[student]

    def gain(r: float) -> float:
        return float(made.cross(np.asarray(r))) / (made.power + decay)

    def velocity(r: float) -> float:
        move = bn_drift(gain(r), r, lr=rate, zeta=decay, length=held, student=student)
        return float(move[1])

    attracts = float(overlap_rate(rate, decay, length=held, student=student)) <= 0
    if decay == 0 and attracts:
        return 1.0, 1.0
    top = 1.0 if velocity(1.0) < 0 else 1.0 - 1e-9  # a root at R = 1 that repels is not wanted
    if velocity(top) >= 0:  # within rounding of 1
        return gain(1.0), 1.0
    r = float(brentq(velocity, 1e-9, top, xtol=1e-14, rtol=1e-13))  # at 0 a linear gain is 0
    return gain(r), r


def learning_rates(
    lr: ArrayLike,
    *,
    zeta: float,
    length: float = 1.0,
    student: str = "relu",
    measured: tuple[OverlapSlopes, ...] = (),
) -> LearningRates:
    """Luo's Table 1 over a range of learning rates: batch norm, weight norm and SGD.

    Args:
        lr: one learning rate or several.
        zeta: gamma decay of the batch norm row.
        length: L0 of batch norm and weight norm; SGD has none.
        student: ``"relu"`` or ``"linear"``.
        measured: slopes of ``simulated_overlap_rate`` to be shown beside the theory.
    """
    eta = np.atleast_1d(learning_rates_of(lr))
    decay, held = checked_number(decays(zeta), "zeta"), checked_number(lengths(length), "length")
    rows = [(decay, held), (0.0, held), (0.0, 1.0)]
    return LearningRates(
        student=STUDENTS[student].name,
        zeta=decay,
        length=held,
        methods=("bn", "wn", "sgd"),
        lr=eta,
        fixed_gamma=np.array([float(fixed_gamma(z, student)) for z, _ in rows]),
        max_effective_lr=np.array([float(max_effective_lr(z, student)) for z, _ in rows]),
        max_lr=np.array([float(max_lr(z, length=at, student=student)) for z, at in rows]),
        effective_lr=np.stack([effective_lr(eta, z, length=at, student=student) for z, at in rows]),
        gain_rate=np.stack([gain_rate(eta, z, student) for z, _ in rows]),
        overlap_rate=np.stack([overlap_rate(eta, z, length=at, student=student) for z, at in rows]),
        measured=tuple(measured),
    )
