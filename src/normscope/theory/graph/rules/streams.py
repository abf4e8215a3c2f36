"""Sums, shortcuts, concatenation: where paths fork and join."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.theory.graph.algebra import Algebra
from normscope.theory.graph.averages import slope_overlaps, theta_of
from normscope.theory.graph.nodes import WAY_OUT, Add, Concat, Identity, Input, Scale, Shortcut
from normscope.theory.graph.particles import hermite_rows, normal_ranks
from normscope.theory.graph.rules.registry import Groups, Run, rule
from normscope.theory.graph.state import GAIN, Factor, Group, Law, Lazy, Term

WINDOW = 3  # factors of a residual stream that are kept apart
FLOOR = 0.05  # share of the slopes' overlap at one site that a sum of old terms is divided by
RANKS = 12  # Hermite degrees that match an old stream's correlation


@rule(Identity)
def identity(node: Identity, inputs: list[Groups], run: Run) -> Groups:
    """The groups pass unchanged."""
    return inputs[0]


@rule(Scale)
def scaled(node: Scale, inputs: list[Groups], run: Run) -> Groups:
    """K and Theta times the square of the factor."""
    return [_scaled(group, node.factor) for group in inputs[0]]


def _scaled(group: Group, factor: float) -> Group:
    square = factor**2
    terms = [
        replace(
            _unbound(t),
            theta=None if t.theta is None else square * t.theta,
            scale=t.scale * factor,
        )
        for t in group.terms
    ]
    law = group.law
    if law is not None:
        factors = law.factors
        if law.linear:
            factors = {
                n: Factor(square * f.kernel, f.sphere, factor * f.gain, f.values)
                for n, f in factors.items()
            }
        values = None if law.values is None else law.values.then(lambda v: factor * v)
        law = Law(factors, values, law.order)
    mean = None if group.mean is None else factor * group.mean
    return group.with_(kernel=square * group.kernel, terms=terms, law=law, mean=mean)


@rule(Concat)
def concatenated(node: Concat, inputs: list[Groups], run: Run) -> Groups:
    """Groups side by side."""
    return [group for groups in inputs for group in groups]


@rule(Add)
def added(node: Add, inputs: list[Groups], run: Run) -> Groups:
    """K and Theta add: fresh weights in all branches but one kill the cross terms.

    Means of the branches do not: K' = K_1 + K_2 + m_1 m_2^T + m_2 m_1^T.
    """
    edges = sorted(
        {e for groups in inputs for e in itertools.accumulate(g.channels for g in groups)}
    )
    cut = [_cut(groups, edges) for groups in inputs]
    return [_sum(node, list(parts), run) for parts in zip(*cut, strict=True)]


def _cut(groups: Groups, edges: list[int]) -> Groups:
    """The same channels, split at more places."""
    made, start = [], 0
    for group in groups:
        end = start + group.channels
        inner = [start, *(e for e in edges if start < e < end), end]
        if len(inner) == 2:
            made.append(group)
        else:
            made += [group.with_(channels=b - a) for a, b in itertools.pairwise(inner)]
        start = end
    return made


def _sum(node: Add, parts: Groups, run: Run) -> Group:
    algebra = parts[0].algebra
    seen: set[int] = set()
    for group in parts:
        if seen & group.sources:
            raise TheoryError(
                f"{node.label} adds branches that share a random layer, with no layer of weights "
                "in between, such as x + relu(x): their product has a mean that the theory does "
                f"not carry. {WAY_OUT}, or put a layer with weights into all branches but one."
            )
        seen |= group.sources
    kernel = np.sum([g.kernel for g in parts], axis=0)
    mean: Array | None = None
    for group in parts:
        if group.mean is None:
            continue
        if mean is not None:
            kernel = kernel + algebra.outer(mean, group.mean) + algebra.outer(group.mean, mean)
        mean = group.mean if mean is None else mean + group.mean
    parts = [_shortened(group, run) for group in parts]
    terms = [_unbound(term) for group in parts for term in group.terms]
    laws = [group.law for group in parts]
    law: Law | None = None
    if all(found is not None for found in laws):
        known = [found for found in laws if found is not None]
        factors = {n: f for found in known for n, f in found.factors.items()}
        columns = [group.values() for group in parts]
        law = Law(factors)
        if not all(found.linear for found in known):
            law = Law(factors, Lazy(lambda: np.asarray(sum(c() for c in columns))))
        elif all(t.kind == "plain" and t.slopes is None for t in terms):
            law = Law({run.number(): Factor(kernel)})  # a sum of Gaussians is Gaussian
    if all(t.kind == "plain" and t.slopes is None for t in terms):
        thetas = [t.theta for t in terms if t.theta is not None]
        terms = [Term("plain", np.sum(thetas, axis=0))]
    return Group(parts[0].channels, algebra, kernel, terms, law, frozenset(seen), mean)


def _unbound(term: Term) -> Term:
    """A gain whose channel is no longer what it multiplied."""
    return replace(term, activation=None) if term.activation == GAIN else term


def _shortened(group: Group, run: Run) -> Group:
    """A residual stream with its old factors in one, and its old terms in one.

    The stream's rank among channels stands for all old factors: one Gaussian whose correlation
    gives back K. Old terms become one whose slopes are their root mean square.
    """
    law = group.law
    if law is None or law.linear or len(law.factors) < WINDOW or law.order is None:
        return group
    assert law.values is not None
    algebra = group.algebra
    values = law.values()
    ranks = normal_ranks(law.order())
    power = np.maximum(algebra.diagonal(group.kernel), 0.0)
    typical = float(algebra.mean(power))
    if typical <= 0:
        return group
    rms = np.sqrt(power / typical)
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = np.where(
            algebra.outer(rms, rms) > 0, group.kernel / algebra.outer(rms, rms), typical
        )
    weights = np.array([float((values * h).mean()) ** 2 for h in hermite_rows(ranks, RANKS)])
    weights[-1] += max(float((values**2).mean()) - weights.sum(), 0.0)
    grid = np.linspace(-1.0, 1.0, 801)
    curve = np.maximum.accumulate(np.polynomial.polynomial.polyval(grid, weights))
    rho = np.interp(wanted, curve, grid)
    kernel = algebra.with_diagonal(rho, np.ones_like(power)) * algebra.outer(rms, rms)
    number = run.number()
    made = group.with_(
        law=Law({number: Factor(kernel, values=ranks)}, Lazy(lambda: values), law.order)
    )
    made.terms = _old_terms(group, made, run)
    return made


def _old_terms(group: Group, made: Group, run: Run) -> list[Term]:
    """Its terms, averaged as they are and carried on with their slopes in the new law.

    Those with the same slopes become one.
    """
    algebra = group.algebra
    terms = [part for term in group.terms for part in _plain_terms(term, group, run)]
    alike: dict[bytes, list[Term]] = {}
    for term in terms:
        if term.slopes is not None:
            alike.setdefault(term.slopes().tobytes(), []).append(term)
    overlaps = slope_overlaps(made, [same[0] for same in alike.values()])
    done = [t for t in terms if t.slopes is None]
    for same, overlap in zip(alike.values(), overlaps, strict=True):
        safe = _safe(algebra, overlap)
        theta: Array | float = 0.0
        for term in same:
            assert term.theta is not None
            theta = theta + term.theta * (1.0 if term.closed is None else term.closed / safe)
        assert isinstance(theta, np.ndarray)
        done.append(Term("plain", theta, slopes=same[0].slopes, closed=safe))
    return done


def _safe(algebra: Algebra, overlap: Array) -> Array:
    """To divide by: where slopes hardly overlap, so does what they multiply."""
    return np.maximum(overlap, FLOOR * float(algebra.mean_diagonal(overlap)))


def _plain_terms(term: Term, group: Group, run: Run) -> list[Term]:
    """A term as plain ones, which remember their slopes: the projection's part goes with D u.

    Each has ``closed``, so that its mean now is exact; theirs after more slopes follows from the
    columns alone.
    """
    if term.slopes is None:
        return [Term("plain", theta_of(group.with_(terms=[term]), run.sources))]
    algebra, law, slopes = group.algebra, group.law, term.slopes
    assert law is not None
    if term.kind == "plain":
        if term.closed is not None:
            return [term]
        (closed,) = slope_overlaps(group, [term])
        return [Term("plain", term.theta, slopes=slopes, closed=closed)]
    theta = theta_of(group.with_(terms=[term]), run.sources)
    column = law.column(term.factor)
    pulled = Lazy(lambda: slopes() * column)
    if term.kind == "gamma":
        unit = np.zeros_like(theta)
        unit[term.source] = term.scale**2 * algebra.ones()
        closed = theta[term.source] / term.scale**2
        return [Term("plain", unit, slopes=pulled, closed=closed)]
    sphere = law.factors[term.factor].sphere
    assert sphere is not None
    assert term.theta is not None
    main = sphere.inverse * term.theta
    first = Term("plain", main, slopes=slopes, closed=term.closed)
    second = Term("plain", main, slopes=pulled)
    found = slope_overlaps(group, [first, second])
    closed = found[0] if term.closed is None else term.closed
    safe = _safe(algebra, found[1])
    rest = (theta - main * closed) / safe
    return [
        Term("plain", main, slopes=slopes, closed=closed),
        Term("plain", rest, slopes=pulled, closed=safe),
    ]


@rule(Shortcut)
def shortcut(node: Shortcut, inputs: list[Groups], run: Run) -> Groups:
    """Every stride-th position, then channels of zeros, which stay apart: their law differs."""
    groups = inputs[0]
    algebra = groups[0].algebra
    if algebra.sides:
        made = [_strided(group, node, run) for group in groups]
        algebra = made[0].algebra
    else:
        made = list(groups)

    def zeros(channels: int) -> Groups:
        if not channels:
            return []
        terms = [Term("plain", algebra.zeros(run.sources))]
        return [Group(channels, algebra, algebra.zeros(), terms, Law({}), frozenset())]

    return [*zeros(node.before), *made, *zeros(node.after)]


def _strided(group: Group, node: Shortcut, run: Run) -> Group:
    algebra = group.algebra
    window = node.window(algebra.sides)
    if window.after(algebra.sides) == algebra.sides:
        return group

    def kept(kernel: Array) -> Array:
        return algebra.slide(kernel, window)

    small = algebra.on(window.after(algebra.sides))
    kernel = kept(group.kernel)
    terms = []
    for term in (part for old in group.terms for part in _plain_terms(old, group, run)):
        assert term.theta is not None
        closed = None if term.closed is None else kept(term.closed)
        terms.append(Term("plain", kept(term.theta), slopes=term.slopes, closed=closed))
    law = group.law
    if law is not None:
        factors = {
            n: Factor(kept(f.kernel), None, f.gain, f.values) for n, f in law.factors.items()
        }
        values = law.values
        if values is not None:  # the positions kept may have another mean square
            before = float(algebra.mean_diagonal(group.kernel))
            after = float(small.mean_diagonal(kernel))
            ratio = float(np.sqrt(after / before)) if before > 0 else 1.0
            values = values.then(lambda v: ratio * v)
        law = Law(factors, values, law.order)
    mean = None if group.mean is None else algebra.keep(group.mean, window)
    return Group(group.channels, small, kernel, terms, law, group.sources, mean)


@rule(Input)
def data(node: Input, inputs: list[Groups], run: Run) -> Groups:
    """Set by the pass itself."""
    raise TheoryError(f"{node.label} is not the first node.")
