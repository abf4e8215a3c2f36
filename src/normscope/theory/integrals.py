"""Gaussian integrals of activations: closed where a closed form is known, else quadrature."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Array
from normscope.refs import CHO2009, KARAKIDA2019, NORMSCOPE, WEI2019, WILLIAMS1997, equation
from normscope.spec import Activation, activation
from normscope.theory.quadrature import (
    SERIES,
    correlation,
    gaussian_mean,
    gaussian_pair_mean,
    hermite_coefficients,
)

EDGE = 1e-14  # 1 - c^2 below which two samples count as one


@equation(CHO2009, "Eq. (6), order 1")
def arccosine_kernel(correlation: ArrayLike) -> Array:
    r"""Correlation of relu(u) and relu(v), in units of E relu(u)^2.

    .. math:: J(x) = \left(\sqrt{1-x^2} + x(\pi - \arccos x)\right)/\pi

    Symbols: x ``correlation`` of u and v.
    Holds for: |x| <= 1 (clipped); exact.
    """
    x = np.clip(np.asarray(correlation, dtype=float), -1.0, 1.0)
    return np.asarray((np.sqrt(1 - x**2) + x * (np.pi - np.arccos(x))) / np.pi)


@equation(WILLIAMS1997, "Eq. (10), erf")
@equation(WEI2019, "Eq. (21), ReLU")
@equation(KARAKIDA2019, "below Eq. (6)")
def product_mean(
    phi: str | Activation,
    variance: ArrayLike,
    covariance: ArrayLike,
    *,
    variance2: ArrayLike | None = None,
    closed: bool = True,
) -> Array:
    r"""I_phi: mean of phi(u) phi(v) for a centred Gaussian pair.

    .. math:: I_\phi[a, b] = E\,\phi(u)\phi(v), \quad u, v \sim N(0, a),\ \mathrm{Cov}(u,v) = b

    Symbols: a ``variance`` of u, ``variance2`` of v (a if not given); b ``covariance``.
    Holds for: a >= 0, |b| <= a (clipped); exact in closed form, quadrature to 1e-10 otherwise.
    Differs from the paper: Wei (21) prints 2 where 2 pi is meant.
    ``closed=False`` forces quadrature.
    """
    act = activation(phi)
    a1 = np.asarray(variance, dtype=float)
    a2 = a1 if variance2 is None else np.asarray(variance2, dtype=float)
    b = np.asarray(covariance, dtype=float)
    if closed and act.family is not None:
        return _closed_product(act, a1, a2, b)
    return gaussian_pair_mean(act.function, a1, b, variance2=a2, kinks=act.kinks)


@equation(WILLIAMS1997, "derivative of Eq. (10), erf")
@equation(WEI2019, "Eq. (22), ReLU")
@equation(KARAKIDA2019, "below Eq. (7)")
def derivative_product_mean(
    phi: str | Activation,
    variance: ArrayLike,
    covariance: ArrayLike,
    *,
    variance2: ArrayLike | None = None,
    closed: bool = True,
) -> Array:
    r"""I_phi': mean of phi'(u) phi'(v) for a centred Gaussian pair.

    .. math:: I_{\phi'}[a, b] = E\,\phi'(u)\phi'(v) = \partial I_\phi / \partial b

    Symbols: a ``variance`` of u, ``variance2`` of v (a if not given); b ``covariance``.
    Holds for: a >= 0, |b| <= a (clipped); exact in closed form, quadrature to 1e-10 otherwise.
    Differs from the paper: Wei (22) prints 2 where 2 pi is meant.
    ``closed=False`` forces quadrature.
    """
    act = activation(phi)
    a1 = np.asarray(variance, dtype=float)
    a2 = a1 if variance2 is None else np.asarray(variance2, dtype=float)
    b = np.asarray(covariance, dtype=float)
    if closed and act.family is not None:
        return _closed_derivative(act, a1, a2, b)
    return gaussian_pair_mean(act.derivative, a1, b, variance2=a2, kinks=act.kinks)


@equation(NORMSCOPE, "docs/design/0002, Price's theorem")
def derivative_product_slope(
    phi: str | Activation, variance: ArrayLike, covariance: ArrayLike
) -> Array:
    r"""Slope of I_phi' in the covariance.

    .. math:: \partial I_{\phi'}[a, b] / \partial b = E\,\phi''(u)\phi''(v)

    Symbols: a ``variance`` of both; b ``covariance``.
    Holds for: |b| <= a; closed forms exact, smooth phi by the Hermite series of phi', otherwise
    a central difference of I_phi' (relative error about 1e-8). With kinks the slope is infinite
    at |b| = a: it is taken just inside.
    """
    act = activation(phi)
    a, b = np.broadcast_arrays(np.asarray(variance, float), np.asarray(covariance, float))
    if act.family == "linear":
        return np.zeros(a.shape)
    if act.family in ("relu", "leaky_relu"):
        root = np.sqrt(np.maximum(a**2 - b**2, EDGE * a**2))
        jump = 1 - (act.parameter or 0.0)
        return np.asarray(jump**2 / (2 * np.pi) / np.where(root > 0, root, np.inf))
    if act.family == "erf":
        k2 = float(act.parameter or 1.0) ** 2
        root = (1 + 2 * k2 * a) ** 2 - 4 * k2**2 * b**2
        return np.asarray(16 * k2**3 * b / np.pi / root**1.5)
    slope, settled = _series_slope(act, a, b)
    if not settled.all():
        inside = 1e-4 * np.maximum(a - np.abs(b), EDGE * a)
        high = derivative_product_mean(act, a, b + inside)
        low = derivative_product_mean(act, a, b - inside)
        slope = np.where(settled, slope, (high - low) / np.where(inside > 0, 2 * inside, np.inf))
    return slope


def _series_slope(act: Activation, a: Array, b: Array) -> tuple[Array, NDArray[np.bool_]]:
    """sum_k k c_k^2 rho^(k-1) / a with c_k of phi', and where its tail is negligible."""
    if act.kinks:
        return np.zeros(a.shape), np.zeros(a.shape, dtype=bool)
    safe = np.maximum(a.ravel(), 1e-12)  # the limit a to 0 is phi''(0)^2
    c, error = hermite_coefficients(act.derivative, safe, SERIES)
    rho = correlation(a, a, b).reshape(-1, 1)
    k = np.arange(1, SERIES)
    terms = k * c[:, 1:] ** 2 * rho ** (k - 1)
    tail = np.abs(terms[:, -SERIES // 8 :]).sum(axis=1)
    settled = (tail <= 1e-9 * (np.abs(terms).sum(axis=1) + 1e-300)) & (error <= 1e-9)
    total = terms.sum(axis=1) / safe
    return total.reshape(a.shape), settled.reshape(a.shape)


@equation(KARAKIDA2019, "below Eq. (6), b = a")
def second_moment(phi: str | Activation, variance: ArrayLike) -> Array:
    r"""E phi(u)^2 for u ~ N(0, a).

    .. math:: I_\phi[a, a] = E\,\phi(\sqrt a z)^2

    Symbols: a ``variance``.
    Holds for: a >= 0; exact in closed form, quadrature to 1e-10 otherwise.
    """
    act = activation(phi)
    a = np.asarray(variance, dtype=float)
    if act.family is not None:
        return product_mean(act, a, a)
    return gaussian_mean(lambda x: np.asarray(act.function(x)) ** 2, a, kinks=act.kinks)


@equation(KARAKIDA2019, "below Eq. (7), b = a")
def second_moment_of_derivative(phi: str | Activation, variance: ArrayLike) -> Array:
    r"""E phi'(u)^2 for u ~ N(0, a).

    .. math:: I_{\phi'}[a, a] = E\,\phi'(\sqrt a z)^2

    Symbols: a ``variance``.
    Holds for: a >= 0; exact in closed form, quadrature to 1e-10 otherwise.
    """
    act = activation(phi)
    a = np.asarray(variance, dtype=float)
    if act.family is not None:
        return derivative_product_mean(act, a, a)
    return gaussian_mean(lambda x: np.asarray(act.derivative(x)) ** 2, a, kinks=act.kinks)


@equation(NORMSCOPE, "docs/design/0002, moments m_j")
def hermite_moment(
    phi: str | Activation, gamma: ArrayLike, *, degree: int, of: str = "function"
) -> Array:
    r"""Projection of an activation on a Hermite polynomial.

    .. math:: m_j = E\,g(\gamma z)\,He_j(z), \quad g = \phi,\ \phi^2,\ \phi' \text{ or } \phi'^2

    Symbols: gamma ``gamma``; j ``degree`` (He_j monic: 1, z, z^2-1, ...); g named by ``of``:
    function, square, derivative or derivative_square.
    Holds for: quadrature to 1e-10.
    """
    act = activation(phi)
    scale = np.asarray(gamma, dtype=float)
    power = 2 if of.endswith("square") else 1
    base = act.derivative if of.startswith("derivative") else act.function
    he = np.polynomial.hermite_e.HermiteE.basis(degree)

    def moment(g: float) -> float:
        kinks = tuple(k / g for k in act.kinks) if g > 0 else ()
        mean = gaussian_mean(lambda z: np.asarray(base(g * z)) ** power * he(z), 1.0, kinks=kinks)
        return float(mean)

    if act.homogeneous:  # the scale passes through phi, and does not reach phi'
        through = scale**power if not of.startswith("derivative") else np.ones_like(scale)
        return np.asarray(moment(1.0) * through)
    distinct, index = np.unique(scale, return_inverse=True)
    return np.array([moment(float(g)) for g in distinct])[index].reshape(scale.shape)


def _closed_product(act: Activation, a1: Array, a2: Array, b: Array) -> Array:
    if act.family == "linear":
        return np.asarray(b * np.ones(np.broadcast(a1, a2, b).shape))
    c = correlation(a1, a2, b)
    geometric = np.sqrt(a1 * a2)
    if act.family == "erf":
        k2 = float(act.parameter or 1.0) ** 2
        norm = np.sqrt((1 + 2 * k2 * a1) * (1 + 2 * k2 * a2))
        return np.asarray(2 / np.pi * np.arcsin(2 * k2 * c * geometric / norm))
    relu = geometric / 2 * arccosine_kernel(c)
    slope = act.parameter or 0.0
    return np.asarray(slope * c * geometric + (1 - slope) ** 2 * relu)


def _closed_derivative(act: Activation, a1: Array, a2: Array, b: Array) -> Array:
    if act.family == "linear":
        return np.ones(np.broadcast(a1, a2, b).shape)
    c = correlation(a1, a2, b)
    if act.family == "erf":
        k2 = float(act.parameter or 1.0) ** 2
        root = (1 + 2 * k2 * a1) * (1 + 2 * k2 * a2) - 4 * k2**2 * c**2 * a1 * a2
        return np.asarray(4 * k2 / np.pi / np.sqrt(root))
    relu = (np.pi / 2 + np.arcsin(c)) / (2 * np.pi)
    slope = act.parameter or 0.0
    return np.asarray(slope + (1 - slope) ** 2 * relu)
