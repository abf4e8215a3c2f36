"""Roster of ``normscope.theory.teacher_student``: each formula beside an independent number.

Oracles: the Gaussian plane integrated in polar coordinates, Monte Carlo moments, Jacobians by
differences, literal minimisation in two variables, sums over sampled eigenvalues.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy import integrate, optimize

from normscope.theory import teacher_student as ts
from roster import NOT_FORMULAS, check

NOT_FORMULAS.update(
    {
        "dynamics.bn_path": "integrates bn_drift",
        "dynamics.checked_times": "reads an argument",
        "dynamics.sgd_path": "integrates sgd_drift",
        "dynamics.wn_path": "integrates bn_drift",
        "online.simulate_bn": "a simulation",
        "online.simulate_sgd": "a simulation",
        "online.simulated_overlap_rate": "a simulation",
        "online.with_simulation": "a simulation",
        "panels.linear_panel": "theory and simulation side by side",
        "panels.relu_panel": "theory and simulation side by side",
        "rates.learning_rates": "a table of formulas",
        "samples.draw_sample": "draws data",
        "samples.simulated_errors": "a simulation",
        "solved.convex_relu_weights": "solves for a student",
        "solved.ridge_weights": "solves for students",
    }
)
FUNCTIONS = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: np.where(np.asarray(z) > 0, 1.0, 0.0)),
    "linear": (lambda z: z, np.ones_like),
}
PLACES = ((0.8, 0.5), (1.3, -0.4), (0.6, 0.95), (2.0, 0.0))


def plane_mean(f, q, r):
    """E f(u, t) of a Gaussian pair by polar coordinates, split where u or t changes sign.

    For f homogeneous of degree 2 the radius integrates to E rho^2 = 2.
    """
    spread = np.sqrt(1 - r * r)
    tilt = np.arctan2(-r, spread)  # where t = 0
    edges = np.sort(np.mod([np.pi / 2, 3 * np.pi / 2, tilt, tilt + np.pi, 0, 2 * np.pi], 2 * np.pi))
    edges = np.append(edges, 2 * np.pi)

    def around(angle):
        x, y = np.cos(angle), np.sin(angle)
        return float(f(q * x, r * x + spread * y))

    return sum(integrate.quad(around, lo, hi)[0] for lo, hi in pairwise(edges)) / np.pi


def delta(name):
    g, slope = FUNCTIONS[name]
    return lambda u, t: slope(u) * (g(t) - g(u))


def moments(function, integrand):
    for name in FUNCTIONS:
        for q, r in PLACES:
            oracle = plane_mean(integrand(name), q, r)
            yield function(q, r, name) + 1.0, oracle + 1.0, 1e-9


@check("students.cross_moment")
def _():
    for name, (g, _) in FUNCTIONS.items():
        for q, r in PLACES:
            oracle = plane_mean(lambda u, t, g=g: g(u) * g(t), q, r) / q
            yield ts.cross_moment(r, name) + 1.0, oracle + 1.0, 1e-9


@check("students.target_moment")
def _():
    for name, (g, slope) in FUNCTIONS.items():
        for q, r in PLACES:
            oracle = plane_mean(lambda u, t, g=g, slope=slope: slope(u) * g(t) ** 2, q, r)
            yield ts.target_moment(r, name), oracle, 1e-9


@check("students.gradient_along_student")
def _():
    yield from moments(ts.gradient_along_student, lambda name: lambda u, t: delta(name)(u, t) * u)


@check("students.gradient_power")
def _():
    yield from moments(ts.gradient_power, lambda name: lambda u, t: delta(name)(u, t) ** 2)


@check("students.gradient_along_teacher")
def _():
    yield from moments(ts.gradient_along_teacher, lambda name: lambda u, t: delta(name)(u, t) * t)


@check("dynamics.bn_drift")
def _():
    """The displayed equations, term by term, with moments by quadrature."""
    eta, zeta, long = 0.7, 0.3, 1.4
    for name in FUNCTIONS:
        for gamma, r in PLACES:
            d = delta(name)
            i1 = plane_mean(lambda u, t, d=d: d(u, t) * u, gamma, r)
            i2 = plane_mean(lambda u, t, d=d: d(u, t) ** 2, gamma, r)
            i3 = plane_mean(lambda u, t, d=d: d(u, t) * t, gamma, r)
            oracle = (
                eta * i1 / gamma - eta * zeta * gamma,
                eta * gamma * i3 / long**2
                - eta * r * i1 / long**2
                - eta**2 * gamma**2 * r * i2 / (2 * long**4),
                eta**2 * gamma**2 * i2 / (2 * long**3),
            )
            made = ts.bn_drift(gamma, r, lr=eta, zeta=zeta, length=long, student=name)
            yield np.array(made) + 1.0, np.array(oracle) + 1.0, 1e-9


@check("dynamics.sgd_drift")
def _():
    """From the squares: d(Q^2) = 2 eta I1 + eta^2 I2, d(QR) = eta I3."""
    eta, step = 0.9, 1e-6
    for name in FUNCTIONS:
        for q, r in PLACES:
            d = delta(name)
            i1 = plane_mean(lambda u, t, d=d: d(u, t) * u, q, r)
            i2 = plane_mean(lambda u, t, d=d: d(u, t) ** 2, q, r)
            i3 = plane_mean(lambda u, t, d=d: d(u, t) * t, q, r)
            ends = []
            for sign in (-1, 1):
                square = q**2 + sign * step * (2 * eta * i1 + eta**2 * i2)
                overlap = q * r + sign * step * eta * i3
                ends.append(np.array([np.sqrt(square), overlap / np.sqrt(square)]))
            oracle = (ends[1] - ends[0]) / (2 * step)
            yield np.array(ts.sgd_drift(q, r, lr=eta, student=name)) + 1.0, oracle + 1.0, 1e-8
    # linear: the error 1 - 2 QR + Q^2 decays at the rate 2 eta - eta^2, exactly
    q, r = 0.6, 0.3
    dq, dr = ts.sgd_drift(q, r, lr=0.5, student="linear")
    moved = 2 * q * dq - 2 * (q * dr + r * dq)
    yield moved, -0.75 * (1 - 2 * q * r + q * q), 1e-12


@check("rates.fixed_gamma")
def _():
    """The gain at which the gamma equation stands still, by root finding."""
    for name in FUNCTIONS:
        for zeta in (0.0, 0.05, 0.25, 2.0):
            oracle = optimize.brentq(
                lambda g, zeta=zeta, name=name: float(
                    ts.bn_drift(g, 1.0, lr=1.0, zeta=zeta, student=name)[0]
                ),
                1e-3,
                2.0,
                xtol=1e-13,
            )
            yield ts.fixed_gamma(zeta, name), oracle, 1e-10


def slope_in(index, of, *, zeta, eta, long, name):
    """Central difference of one drift in gamma, one-sided in R, at (gamma0, 1)."""
    g0 = float(ts.fixed_gamma(zeta, name))

    def drift(gamma, r):
        made = ts.bn_drift(gamma, r, lr=eta, zeta=zeta, length=long, student=name)
        return float(made[of])

    if index == 0:
        step = 1e-5
        return (drift(g0 + step, 1.0) - drift(g0 - step, 1.0)) / (2 * step)
    # K11 and K02 have a (1-R)^(3/2) term: Richardson in sqrt(step) takes it out
    steps = 1e-4 * 4.0 ** -np.arange(6)
    table = np.array([(drift(g0, 1.0) - drift(g0, 1.0 - h)) / h for h in steps])
    for power in (0.5, 1.0, 1.5, 2.0):
        table = (4**power * table[1:] - table[:-1]) / (4**power - 1)
    return table[-1]


@check("rates.gain_rate")
def _():
    for name in FUNCTIONS:
        for eta, zeta in ((0.5, 0.25), (1.2, 0.0)):
            oracle = slope_in(0, 0, zeta=zeta, eta=eta, long=1.0, name=name)
            yield ts.gain_rate(eta, zeta, name), oracle, 1e-7


@check("rates.overlap_rate")
def _():
    for name in FUNCTIONS:
        for eta, long in ((0.5, 1.0), (1.5, 1.3), (2.5, 1.0)):
            oracle = slope_in(1, 1, zeta=0.0, eta=eta, long=long, name=name)
            yield ts.overlap_rate(eta, 0.0, length=long, student=name), oracle, 2e-6
            if long == 1.0:  # SGD has the same eigenvalue: its Jacobian is triangular
                h = 1e-8
                _, down = ts.sgd_drift(1.0, 1.0 - h, lr=eta, student=name)
                yield ts.overlap_rate(eta, student=name), -float(down) / h, 3e-4


@check("rates.complete_overlap_rate")
def _():
    for name in FUNCTIONS:
        for eta, zeta, long in ((0.5, 0.25, 1.0), (1.2, 0.1, 1.0), (2.0, 0.6, 1.4)):
            oracle = slope_in(1, 1, zeta=zeta, eta=eta, long=long, name=name)
            value = ts.complete_overlap_rate(eta, zeta, length=long, student=name)
            yield value, oracle, 1e-6


@check("rates.max_effective_lr")
def _():
    """Where lambda_R changes sign, in units of eta_eff."""
    for name in FUNCTIONS:
        for zeta, long in ((0.0, 1.0), (0.25, 1.0), (0.1, 1.7)):
            edge = optimize.brentq(
                lambda eta, zeta=zeta, long=long, name=name: float(
                    ts.overlap_rate(eta, zeta, length=long, student=name)
                ),
                0.1,
                100.0,
            )
            effective = ts.effective_lr(edge, zeta, length=long, student=name)
            yield ts.max_effective_lr(zeta, name), effective, 1e-9
            yield ts.max_lr(zeta, length=long, student=name), edge, 1e-9


@check("rates.effective_lr")
def _():
    """The first-order speed of R: dR/dt = 2 c eta_eff (1 - R) for a small learning rate."""
    for name, power in (("relu", 0.5), ("linear", 1.0)):
        for zeta, long in ((0.0, 1.0), (0.25, 1.6)):
            eta, h = 1e-7, 1e-6
            g0 = float(ts.fixed_gamma(zeta, name))
            move = ts.bn_drift(g0, 1 - h, lr=eta, zeta=zeta, length=long, student=name)[1]
            value = ts.effective_lr(eta, zeta, length=long, student=name)
            yield value, float(move) / (2 * power * h), 2e-3


@check("rates.max_lr")
def _():
    for zeta in (0.0, 0.25):
        for name, bound in (("relu", 2 * (1 + 2 * zeta) ** 2), ("linear", 2 * (1 + zeta) ** 2)):
            yield ts.max_lr(zeta, length=1.5, student=name), 1.5**2 * bound, 1e-12


@check("rates.overlap_deficit")
def _():
    """The steady state at a small learning rate: the remainder is O(eta^(3/2))."""
    for name in FUNCTIONS:
        for zeta, long in ((0.25, 1.0), (0.6, 1.5)):
            eta = 1e-5
            _, r = ts.steady_state(eta, zeta, length=long, student=name)
            yield ts.overlap_deficit(eta, zeta, length=long, student=name), 1 - r, 5e-3


@check("rates.late_length")
def _():
    """A long run of the ODE at a small learning rate."""
    for name in FUNCTIONS:
        path = ts.bn_path(ts.Start(0.7, 0.9, 0.5), [0.0, 2e4, 4e4], lr=0.05, zeta=0.3, student=name)
        value = ts.late_length(2e4, lr=0.05, zeta=0.3, length=path.length[0, 1], student=name)
        yield value, path.length[0, 2], 2e-3


@check("rates.steady_state")
def _():
    """The end of a long ODE run with L held; for the linear student, a quadratic in R^2."""
    for eta, zeta in ((0.5, 0.25), (1.0, 0.05), (2.5, 0.0), (5.175, 0.25)):
        path = ts.bn_path(
            ts.Start(0.5, 0.5, 1.0), [0.0, 2000.0], lr=eta, zeta=zeta, fixed_length=True
        )
        yield ts.steady_state(eta, zeta), (path.gamma[0, -1], path.correlation[0, -1]), 1e-6
    for eta, zeta, long in ((0.5, 0.25, 1.0), (3.0, 0.0, 1.0), (9.0, 0.4, 1.3)):
        rate = eta / (2 * long**2 * (1 + zeta))
        bend = (1 + 2 * zeta) / (1 + zeta) ** 2
        squares = np.roots([rate * bend, -1 - rate, 1.0])
        r = np.sqrt(min(s for s in squares if 0 < s <= 1 + 1e-12))
        value = ts.steady_state(eta, zeta, length=long, student="linear")
        yield value, (r / (1 + zeta), r), 1e-8


@check("linear_errors.student_error")
def _():
    for name, (g, _) in FUNCTIONS.items():
        for gamma, r in PLACES:
            oracle = plane_mean(lambda u, t, g=g: (t - g(u)) ** 2, gamma, r)
            yield ts.student_error(gamma, r, name), oracle, 1e-9


def density(alpha):
    """Marchenko-Pastur law of X'X, variance 1/N: edges, density, mass at zero."""
    low, high = (1 - np.sqrt(alpha)) ** 2, (1 + np.sqrt(alpha)) ** 2
    law = lambda s: np.sqrt(max((high - s) * (s - low), 0.0)) / (2 * np.pi * s)  # noqa: E731
    return low, high, law, max(0.0, 1 - alpha)


def spectral_mean(f, alpha):
    low, high, law, atom = density(alpha)

    def turned(angle):  # s = middle - half cos(angle) removes the square-root ends
        half, middle = (high - low) / 2, (high + low) / 2
        s = middle - half * np.cos(angle)
        return f(s) * law(s) * half * np.sin(angle)

    return integrate.quad(turned, 0, np.pi, limit=200)[0] + (atom * f(0.0) if atom else 0.0)


@check("linear_errors.resolvent")
def _():
    for lam, alpha in ((0.25, 0.5), (0.01, 0.9), (0.25, 2.0), (1e-6, 3.0), (0.3, 1.0)):
        oracle = spectral_mean(lambda s, lam=lam: 1 / (s + lam), alpha)
        yield ts.resolvent(lam, alpha), oracle, 1e-8


def spectral_error(lam, alpha, noise):
    """Bias lam^2/(s + lam)^2 and variance S s/(s + lam)^2, averaged over the spectrum."""
    return spectral_mean(lambda s: (lam**2 + noise * s) / (s + lam) ** 2, alpha)


@check("linear_errors.ridge_error")
def _():
    for lam, alpha in ((0.25, 0.5), (0.05, 0.9), (0.25, 2.0), (0.3, 1.0), (1.5, 0.2)):
        yield (
            ts.ridge_error(alpha, lam=lam, noise_variance=0.4),
            [spectral_error(lam, alpha, 0.4)],
            1e-8,
        )


@check("linear_errors.weight_norm_error")
def _():
    for zeta, alpha in ((1 / 64, 0.9), (1 / 64, 1.5), (0.25, 3.0)):
        yield (
            ts.weight_norm_error(alpha, zeta=zeta, noise_variance=0.25),
            [spectral_error(alpha * zeta, alpha, 0.25)],
            1e-8,
        )


@check("linear_errors.least_squares_error")
def _():
    for alpha in (0.3, 0.8, 1.3, 4.0):
        variance = 0.25 * spectral_mean(lambda s: 1 / s if s > 0 else 0.0, alpha)
        oracle = variance + max(0.0, 1 - alpha)
        yield ts.least_squares_error(alpha, noise_variance=0.25), [oracle], 1e-8


def free_energy(alpha, a, spread):
    """-beta f of Luo's Eq. (21) as a function of (gamma^2, u, q^2) at beta given by a."""

    def energy(gamma2, u, q2, beta):
        d = q2 - gamma2
        return (
            (gamma2 - u**2) / (2 * d)
            + np.log(d) / 2
            - alpha / 4 * np.log(1 + beta * d)
            - alpha * beta / 4 * (1 - 2 * u + gamma2 + spread) / (1 + beta * d)
        )

    return energy


@check("relu_errors.published_relu_error")
def _():
    """A point at which the published free energy is stationary in gamma and R, by differences."""
    for alpha, a in ((0.8, 1.5), (1.2, 1.3), (4.0, 2.0)):
        made = ts.published_relu_error(alpha, noise_variance=0.25, a=a)
        energy, q2 = free_energy(alpha, a, 0.25), float(made.gamma2[0]) + 0.7
        beta = 1 / (0.7 * (a - 1))  # a = (1 + beta D) / (beta D) with D = 0.7

        def at(move, energy=energy, q2=q2, beta=beta, made=made):
            return energy(made.gamma2[0] + move[0], made.overlap[0] + move[1], q2, beta)

        slopes = optimize.approx_fprime(np.zeros(2), at, 1e-7)
        yield slopes + 1.0, [1.0, 1.0], 2e-6
        error = ts.student_error(np.sqrt(made.gamma2), made.overlap / np.sqrt(made.gamma2))
        yield made, error, 1e-12
    for alpha in (0.5, 1.0, 1.5):
        printed = 1 - alpha / 4 + alpha * 0.25 / (2 * (2 - alpha))
        yield ts.published_relu_error(alpha, noise_variance=0.25), [printed], 1e-12
    for alpha in (2.5, 4.0):
        yield ts.published_relu_error(alpha, noise_variance=0.25), [0.5 + 0.25 / (alpha - 2)], 1e-12


def d2(u, v, spread):
    """D2 of the text, literally."""
    gamma2 = u**2 + v**2
    rc = u / np.sqrt(gamma2 * (1 + spread))
    j = (np.pi / 2 - np.arcsin(rc) - rc * np.sqrt(1 - rc**2)) / (2 * np.pi)
    return ((1 - u) ** 2 + v**2 + spread) / 2 + gamma2 * j


@check("relu_errors.relu_threshold")
def _():
    """A literal search over u and v."""
    for spread in (0.05, 0.25, 1.0):
        best = optimize.minimize(
            lambda z, spread=spread: -(z[1] ** 2) / d2(*z, spread),
            (1.2, 1.5),
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 4000},
        )
        yield ts.relu_threshold(spread), -best.fun, 1e-9
    yield ts.relu_threshold(0.0), 2.0, 1e-12


@check("relu_errors.relu_error")
def _():
    """Literal constrained and free minimisation in (u, v)."""
    for spread, alpha in ((0.25, 0.5), (0.25, 1.0), (0.25, 1.4), (0.5, 0.8), (0.0, 1.5)):
        best = optimize.minimize(
            lambda z: z[0] ** 2 + z[1] ** 2,
            (0.5, 0.9),
            method="SLSQP",
            constraints={
                "type": "ineq",
                "fun": lambda z, a=alpha, s=spread: z[1] ** 2 - a * d2(*z, s),
            },
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        u, v = best.x
        made = ts.relu_error(alpha, noise_variance=spread)
        assert made.regimes == ("interp",)
        yield (made.gamma2[0], made.overlap[0]), (u * u + v * v, u), 1e-5
        yield made, [1 + (u * u + v * v) / 2 - u], 1e-6
    for spread, alpha in ((0.25, 1.5), (0.25, 2.5), (1.0, 4.0)):
        best = optimize.minimize(
            lambda z, a=alpha, s=spread: np.sqrt(a * d2(*z, s)) - z[1],
            (1.0, 0.5),
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000},
        )
        u, v = best.x
        made = ts.relu_error(alpha, noise_variance=spread)
        assert made.regimes == ("noninterp",)
        yield (made.gamma2[0], made.overlap[0]), (u * u + v * v, u), 1e-5
