"""Theta of a group: the mean over channels of its terms.

Slopes and the projection of batch norm depend on the same values, so they are averaged together:
with B = gamma^2 G Theta G and x ~ N(0, C) inside the integral over tau (``sphere``), a channel's
kernel D_a D_b (J Theta J^T)_ab is a polynomial in x times slopes. Stein's lemma gives its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.spec import Activation, activation
from normscope.theory.graph.algebra import Algebra
from normscope.theory.graph.pairs import correlation, piecewise
from normscope.theory.graph.particles import Own
from normscope.theory.graph.sphere import Sphere
from normscope.theory.graph.state import Factor, Group, Lazy, Term
from normscope.theory.integrals import arccosine_kernel
from normscope.theory.quadrature import hermite_coefficients

AT_ONCE = 500_000  # entries of a stack of kernels that are worked on together
TERMS = 64  # of the series of one smooth activation


@dataclass(frozen=True)
class Moments:
    """Means of slopes D with the normalized value u at the same site; F = D u.

    Off the diagonal, as functions of the pair: d = D D, kappa = F F, alpha = F' D, beta = F D',
    e = F' F', h = F'' F (primes: derivatives in u). On it: m0, m2, m4 = E D^2 u^k.
    """

    d: Array
    kappa: Array
    alpha: Array
    beta: Array
    e: Array
    h: Array
    m0: float | Array
    m2: float
    m4: float


def piecewise_moments(rho: Array, below: float) -> Moments:
    """Slopes of phi(u) = u above zero and ``below`` times u under it, in closed form."""
    jump = (1 - below) ** 2
    d = below + jump * (0.25 + np.arcsin(rho) / (2 * np.pi))
    kink = jump * np.sqrt(1 - rho**2) / (2 * np.pi)
    kappa = below * rho + jump * arccosine_kernel(rho) / 2
    half = (1 + below**2) / 2
    return Moments(d, kappa, d, kink, d, kink, half, half, 3 * half)


def smooth_moments(rho: Array, act: Activation, scale: float) -> Moments:
    """Slopes phi'(scale u) of one smooth activation, by Hermite series."""
    spread = np.array([1.0])
    slope, _ = hermite_coefficients(lambda u: act.derivative(scale * u), spread, TERMS)
    pulled, _ = hermite_coefficients(lambda u: u * act.derivative(scale * u), spread, TERMS)
    d, f = slope[0], pulled[0]

    def derivative(c: Array) -> Array:
        return np.append(c[1:] * np.sqrt(np.arange(1, c.size)), 0.0)

    df, dd = derivative(f), derivative(d)
    ddf = derivative(df)
    pairs = [d * d, f * f, df * d, f * dd, df * df, ddf * f]
    kernels = [np.polynomial.polynomial.polyval(rho, c) for c in pairs]

    def moment(k: int) -> float:
        def weighted(u: Array) -> Array:
            return np.asarray(u**k * act.derivative(scale * u) ** 2)

        return float(hermite_coefficients(weighted, spread, 2)[0][0, 0])

    first, kappa, alpha, beta, e, h = kernels
    return Moments(first, kappa, alpha, beta, e, h, moment(0), moment(2), moment(4))


def projected(sphere: Sphere, stack: Array, below: float | None, moments: Moments | None) -> Array:
    """Mean over channels of D_a D_b (J Theta J^T)_ab for batch norm in train mode.

    Args:
        sphere: the law behind the norm.
        stack: B = gamma^2 G Theta G, one kernel a source.
        below: the slope below zero of the one piecewise linear activation since (1: none); its
            moments are then exact at every tau.
        moments: those of other slopes, at the mean law.
    """
    algebra = sphere.algebra
    out = np.zeros_like(stack)
    live = np.flatnonzero(stack.reshape(len(stack), -1).any(axis=1))
    if not live.size:
        return out
    small = algebra.level == "homogeneous"
    at_once = max(1, AT_ONCE // algebra.ones().size)

    def integrand(tau: Any, kernel: Array) -> Array:
        found = moments or piecewise_moments(correlation(algebra, kernel), below or 0.0)
        spread = np.sqrt(np.maximum(algebra.diagonal(kernel), 0.0))
        safe = np.maximum(spread, 1e-150)
        ratio = algebra.rows(safe) / algebra.columns(safe)
        kappa = algebra.rows(spread) * algebra.columns(spread) * found.kappa
        common = (kernel, found, ratio, kappa, tau / algebra.sites)
        if small:
            return _stein(algebra, stack[live][:, None], *common)
        pieces = np.array_split(live, max(1, live.size // at_once))
        return np.concatenate([_stein(algebra, stack[some], *common) for some in pieces])

    out[live] = sphere.mean(integrand)
    return out


def _stein(
    algebra: Algebra,
    b: Array,
    c: Array,
    m: Moments,
    ratio: Array,
    kappa: Array,
    step: Any,
) -> Array:
    """The integrand at one tau; ``step`` = tau / N."""
    if m.alpha is m.d and algebra.axes > 1:  # one kink: nearly all is S B S with S = 1 - step C
        s = algebra.eye() - step * c
        sb = algebra.product(s, b)
        sbs = algebra.product(sb, s)
        part = step / 2 * (algebra.trace(b) - algebra.trace(sb))
        own = algebra.diagonal(sbs)
        gap = (own - algebra.diagonal(b)) / 2
        made = m.d * sbs + kappa * part
        made += m.beta * (ratio * algebra.columns(gap) + algebra.rows(gap) / ratio)
        part = part.reshape(-1, 1)
        return algebra.with_diagonal(made, m.m0 * (own + algebra.diagonal(c) * part))
    bc = algebra.product(b, c)
    cbc = algebra.product(c, bc)
    trace = algebra.trace(bc)
    once, twice = algebra.diagonal(bc), algebra.diagonal(cbc)
    cubic = m.alpha * (bc + algebra.transpose(bc))
    cubic += m.beta * (ratio * algebra.columns(once) + algebra.rows(once) / ratio)
    quartic = kappa * trace + 2 * m.e * cbc
    quartic += m.h * (ratio * algebra.columns(twice) + algebra.rows(twice) / ratio)
    made = m.d * b - step * cubic + step**2 / 2 * quartic
    power = algebra.sites * algebra.mean_diagonal(bc)[..., None]
    own = m.m2 * algebra.diagonal(c) * power + (m.m4 - m.m2) * twice
    diagonal = m.m0 * algebra.diagonal(b) - 2 * step * m.m2 * once + step**2 / 2 * own
    return algebra.with_diagonal(made, diagonal)


def piecewise_value(sphere: Sphere, below: float) -> Array:
    """E phi(xhat) phi(xhat') for a piecewise linear phi, exact."""
    if below not in sphere.known:  # an activation and the gain before it ask for the same
        sphere.known[below] = _over_tau(sphere, below, slopes=False)
    return sphere.known[below]


def frozen_slope(sphere: Sphere, below: float) -> Array:
    """E D D' / s^2 for a piecewise linear phi, exact."""
    return _over_tau(sphere, below, slopes=True)


def _over_tau(sphere: Sphere, below: float, *, slopes: bool) -> Array:
    algebra = sphere.algebra

    def integrand(tau: Any, kernel: Array) -> Array:
        found = piecewise_moments(correlation(algebra, kernel), below)
        variance = np.maximum(algebra.diagonal(kernel), 0.0)
        spread = np.sqrt(variance)
        if slopes:
            return algebra.with_diagonal(found.d, np.full_like(variance, found.m0))
        part = algebra.rows(spread) * algebra.columns(spread) * found.kappa
        return algebra.with_diagonal(part, found.m2 * variance)

    return sphere.mean(integrand)


def direction_slope(sphere: Sphere, below: float) -> Array:
    """E D D' for a piecewise linear phi, which sees the direction of x alone."""
    algebra = sphere.algebra
    found = piecewise_moments(correlation(algebra, sphere.centred()), below)
    return algebra.with_diagonal(found.d, np.full_like(algebra.diagonal(found.d), found.m0))


def theta_of(group: Group, sources: int) -> Array:
    """E over channels of the parameters' kernel, a stack with one kernel a source."""
    out = group.algebra.zeros(sources)
    waiting = [t for t in group.terms if t.slopes is not None]
    found = _slope_means(group, waiting)
    for term in group.terms:
        if term.kind == "gamma":
            out[term.source] += term.scale**2 * _gain(group, term)
        elif term.kind == "plain":
            assert term.theta is not None
            mean = term.closed if term.closed is not None else found.get(id(term))
            out += term.theta if mean is None else term.theta * mean
        else:
            out += _behind_norm(group, term, found)
    return out


def _slope_means(group: Group, terms: list[Term]) -> dict[int, Array]:
    """E D D' of the terms that have no closed form, all in one series."""
    open_terms = [
        t
        for t in terms
        if t.closed is None and (t.kind == "plain" or (t.kind == "frozen" and _below(t) is None))
    ]
    means = slope_overlaps(group, open_terms)
    return {id(term): mean for term, mean in zip(open_terms, means, strict=True)}


def slope_overlaps(group: Group, terms: list[Term]) -> list[Array]:
    """E D D' of the slopes of terms, by the series in the factors of the group's law."""
    if not terms:
        return []
    series, _, rho = group.series()
    columns = np.stack([_slopes(t) for t in terms])
    means = series.kernels(rho, series.own_all(columns, "step"))
    algebra = group.algebra
    powers = (columns**2).mean(1)
    site = np.ones_like(algebra.diagonal(algebra.ones()))
    return [
        algebra.with_diagonal(mean * algebra.ones(), power * site)
        for mean, power in zip(means, powers, strict=True)
    ]


def _slopes(term: Term) -> Array:
    assert isinstance(term.slopes, Lazy)
    return term.slopes()


def _factor(group: Group, term: Term) -> tuple[Factor, Sphere]:
    assert group.law is not None
    factor = group.law.factors[term.factor]
    assert factor.sphere is not None
    return factor, factor.sphere


def _below(term: Term) -> float | None:
    """The slope below zero of what followed the norm: 1 for nothing; None if it is not closed."""
    if term.slopes is None:
        return 1.0
    return None if term.activation is None else piecewise(activation(term.activation))


def _gain(group: Group, term: Term) -> Array:
    """E F F', what a batch norm's gain sees."""
    _, sphere = _factor(group, term)
    below = _below(term)
    if term.slopes is None:
        return sphere.kernel
    if below is not None:
        return piecewise_value(sphere, below)
    return _moments(group, term, sphere).kappa


def _behind_norm(group: Group, term: Term, found: dict[int, Array]) -> Array:
    """Theta divided by s^2 of a batch norm and, in train mode, projected."""
    assert term.theta is not None
    _, sphere = _factor(group, term)
    below = _below(term)
    if term.kind == "frozen":
        if term.slopes is None:
            return sphere.inverse * term.theta
        if below is not None:
            return term.theta * frozen_slope(sphere, below)
        mean = term.closed if term.closed is not None else found[id(term)]
        return sphere.inverse * term.theta * mean
    if below is not None:
        return projected(sphere, term.theta, below, None)
    moments = _moments(group, term, sphere)
    return projected(sphere, term.theta, None, moments)


def _moments(group: Group, term: Term, sphere: Sphere) -> Moments:
    """Moments of slopes that have no closed form; ``kappa`` on the diagonal too."""
    algebra = group.algebra
    factor, _ = _factor(group, term)
    if term.activation is not None:
        rho = correlation(algebra, sphere.kernel)
        scale = factor.gain * float(np.sqrt(algebra.mean_diagonal(sphere.kernel)))
        made = smooth_moments(rho, activation(term.activation), scale)
        if term.closed is None:
            return made
        return replace(made, d=term.closed, m0=algebra.diagonal(term.closed))
    series, numbers, rhos = group.series()
    place = numbers.index(term.factor)
    assert group.law is not None
    u = group.law.column(term.factor)
    slopes = _slopes(term)
    pulled = slopes * u
    d, f = series.coefficients(slopes), series.coefficients(pulled)
    df, dd = series.derivative(f, place), series.derivative(d, place)
    ddf = series.derivative(df, place)
    wanted = [
        series.own(slopes, "step"),
        series.own(pulled, "step"),
        *(Own(c) for c in (df * d, f * dd, df * df, ddf * f)),
    ]
    kernels = series.kernels(rhos, wanted)
    powers = [float((slopes**2 * u**k).mean()) for k in (0, 2, 4)]
    profile = np.full_like(algebra.diagonal(algebra.ones()), powers[1])
    kernels[1] = algebra.with_diagonal(kernels[1] * algebra.ones(), profile)
    if term.closed is not None:
        kernels[0] = term.closed
    first, kappa, alpha, beta, e, h = kernels
    return Moments(first, kappa, alpha, beta, e, h, *powers)
