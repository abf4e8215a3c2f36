"""Batch norm, layer norm, RMS norm."""

from __future__ import annotations

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.theory.graph.nodes import BatchNorm, LayerNorm
from normscope.theory.graph.rules.registry import Groups, Run, rule
from normscope.theory.graph.sphere import sphere_of
from normscope.theory.graph.state import DATA, GAIN, Factor, Group, Law, Term


@rule(BatchNorm)
def batch_norm(node: BatchNorm, inputs: list[Groups], run: Run) -> Groups:
    """Each channel over its own statistics of the batch, group by group."""
    statistics = node.statistics or run.statistics
    if statistics == "running":
        return [_running(node, group, run) for group in inputs[0]]
    return [_batch(node, group, run, statistics) for group in inputs[0]]


def _batch(node: BatchNorm, group: Group, run: Run, statistics: str) -> Group:
    """A new factor xhat; Theta waits for the slopes that follow."""
    algebra = group.algebra
    if algebra.sites < 2:
        raise InputError(
            f"{node.label} has one value a channel to normalize: the variance of one value is "
            "zero. Use a batch of two samples or more, or statistics='running'."
        )
    if group.law is None:
        if group.sources == {DATA}:
            raise TheoryError(
                f"{node.label} normalizes the data itself, whose few channels are not random. "
                "Standardize the data beforehand, and leave the norm out of the prediction."
            )
        run.note(f"{node.label} follows a pooling or flatten: its input is taken as Gaussian.")
    elif not group.law.linear:
        run.note(f"{node.label} follows an activation: its input is taken as Gaussian (about 1 %).")
    plain = algebra.zeros(run.sources)
    if (slot := run.slot(node, "beta")) is not None:
        plain[slot] += algebra.ones()
    sphere = sphere_of(algebra, group.kernel, node.eps, node.name)
    sources = group.sources
    if sphere is None:  # all values are equal: what is left is beta
        return group.with_(
            kernel=algebra.zeros(), mean=None, terms=[Term("plain", plain)], law=Law({})
        )
    number = run.number()
    gain_slot = run.slot(node, "gamma")
    if node.gamma == 0:
        if gain_slot is not None:
            plain[gain_slot] += sphere.kernel
        law, kernel, terms = Law({}), algebra.zeros(), [Term("plain", plain)]
        return group.with_(kernel=kernel, mean=None, terms=terms, law=law)
    theta = node.gamma**2 * run.theta(group)
    terms = [Term("plain", plain)]
    if gain_slot is not None:
        terms.append(Term("gamma", None, number, source=gain_slot))
    if statistics == "batch":
        terms.append(Term("batch", algebra.center(theta), number))
    else:
        terms.append(Term("frozen", theta, number))
    kernel = node.gamma**2 * sphere.kernel
    return group.with_(
        kernel=kernel,
        mean=None,
        terms=terms,
        law=Law({number: Factor(kernel, sphere, node.gamma)}),
        sources=sources | {number},
    )


def _running(node: BatchNorm, group: Group, run: Run) -> Group:
    """A fixed affine map: stored mean and variance."""
    mean, shift = group.mean_profile(), node.running_mean
    divisor = node.running_variance + node.eps
    if divisor <= 0:
        raise InputError(f"{node.label} divides by a stored variance of 0, and eps is 0.")
    kernel = _shifted(group, np.full_like(mean, shift)) / divisor
    theta = node.gamma**2 / divisor * run.theta(group)
    return _affine(node, group, run, kernel, theta, mean - shift, np.full_like(mean, divisor**-0.5))


@rule(LayerNorm)
def layer_norm(node: LayerNorm, inputs: list[Groups], run: Run) -> Groups:
    """Statistics of a sample are fixed numbers when channels are many."""
    groups = inputs[0]
    algebra = groups[0].algebra
    total = sum(g.channels for g in groups)
    shares = [g.channels / total for g in groups]
    power = sum(w * algebra.diagonal(g.kernel) for w, g in zip(shares, groups, strict=True))
    mean = sum(w * g.mean_profile() for w, g in zip(shares, groups, strict=True))
    power, mean = np.asarray(power), np.asarray(mean)
    if node.over == "sample":
        power, mean = algebra.sample_mean(power), algebra.sample_mean(mean)
    if not node.centred:
        mean = np.zeros_like(mean)
    variance = power - mean**2 + node.eps
    if (variance <= 1e-14 * np.abs(power).max()).any():
        raise InputError(
            f"{node.label} would divide by zero: a sample is zero there, and eps is 0. Leave it "
            "out, or give the norm an eps."
        )
    scale = variance**-0.5
    made = []
    for group in groups:
        kernel = _shifted(group, mean) * algebra.outer(scale, scale)
        theta = node.gamma**2 * algebra.outer(scale, scale) * run.theta(group)
        made.append(_affine(node, group, run, kernel, theta, group.mean_profile() - mean, scale))
    return made


def _shifted(group: Group, shift: Array) -> Array:
    """K of the values minus a number at each site."""
    if not shift.any():
        return group.kernel
    algebra, mean = group.algebra, group.mean_profile()
    cross = algebra.outer(shift, mean) + algebra.outer(mean, shift)
    return group.kernel - cross + algebra.outer(shift, shift)


def _affine(
    node: BatchNorm | LayerNorm,
    group: Group,
    run: Run,
    kernel: Array,
    theta: Array,
    mean: Array,
    scale: Array,
) -> Group:
    """Gamma times a normalized value whose statistics are fixed; ``kernel`` is its K."""
    algebra = group.algebra
    theta = theta.copy()
    if (slot := run.slot(node, "beta")) is not None:
        theta[slot] += algebra.ones()
    gains = node.gamma * scale
    law = group.law
    if law is not None:
        product = algebra.outer(gains, gains)
        factors = {n: Factor(product * f.kernel, values=f.values) for n, f in law.factors.items()}
        if law.values is None:
            shifted = float(np.abs(mean).max()) > 0
            law = None if shifted else Law(factors)
        else:
            gain = float(algebra.mean(gains))
            move = gain * float(algebra.mean(mean - group.mean_profile()))
            old, order = law.values, law.order
            law = Law(factors, old.then(lambda v: gain * v + move), order)
    made = group.with_(
        kernel=node.gamma**2 * kernel,
        mean=None if group.mean is None and not mean.any() else node.gamma * mean * scale,
        terms=[Term("plain", theta)],
        law=law,
    )
    if (slot := run.slot(node, "gamma")) is not None:
        made.terms += _gain(node, made, kernel, slot, run)
    return made


def _gain(
    node: BatchNorm | LayerNorm, made: Group, kernel: Array, slot: int, run: Run
) -> list[Term]:
    """The source of gamma: the normalized value, times the slopes that follow."""
    theta = made.algebra.zeros(run.sources)
    if made.law is None or node.gamma == 0:
        theta[slot] += kernel
        return [Term("plain", theta)]
    theta[slot] += made.algebra.ones()
    gamma = node.gamma
    value = made.values().then(lambda v: v / gamma)
    return [Term("plain", theta, slopes=value, closed=kernel, activation=GAIN, scale=gamma)]
