"""Layers with weights, and activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.spec import Activation, activation
from normscope.theory.graph.averages import direction_slope, piecewise_value, slope_overlaps
from normscope.theory.graph.nodes import Activate, Conv, Dense, Window
from normscope.theory.graph.pairs import (
    PairMeans,
    channel_mean,
    pair_means,
    piecewise,
    pulled_means,
    sphere_pair_means,
)
from normscope.theory.graph.rules.registry import Groups, Run, merged, rule
from normscope.theory.graph.state import GAIN, Factor, Group, Law, Lazy, Term

FEW_DIRECTIONS = 6.0  # effective dimension below which smooth slopes behind batch norm are rough


@rule(Dense, Conv)
def linear(node: Dense | Conv, inputs: list[Groups], run: Run) -> Groups:
    """K' = (sw2/k) sum K + sb2; Theta' the same, plus n sum K for the weights and 1 for the biases.

    The sum is over the k sites of the kernel, the same on both sides of a pair; n input channels.
    """
    (groups,) = inputs
    algebra = groups[0].algebra
    channels, kernel, theta = merged(groups, run)
    window = None
    if isinstance(node, Conv):
        window = node.window(algebra.sides)
        kernel = algebra.slide(kernel, window)
        theta = algebra.slide(theta, window)
        algebra = algebra.on(window.after(algebra.sides))
    scale = node.weight_variance / _sites(window)
    theta = scale * theta
    if (slot := run.slot(node, "weight")) is not None:
        theta[slot] += channels * kernel
    kernel = scale * kernel
    if node.bias_variance is not None:
        kernel = kernel + node.bias_variance
        if (slot := run.slot(node, "bias")) is not None:
            theta[slot] += algebra.ones()
    if node.name in run.probes:
        theta[run.probes[node.name]] += algebra.eye()
    number = run.number()
    law = Law({number: Factor(kernel)})
    return [Group(node.outputs, algebra, kernel, [Term("plain", theta)], law, frozenset({number}))]


def _sites(window: Window | None) -> int:
    return 1 if window is None else int(np.prod(window.kernel))


@rule(Activate)
def activate(node: Activate, inputs: list[Groups], run: Run) -> Groups:
    """K' = E phi phi', and the slopes join every term of Theta."""
    act = activation(node.activation)
    return [_activated(node, group, act, run) for group in inputs[0]]


def _activated(node: Activate, group: Group, act: Activation, run: Run) -> Group:
    if group.law is None:
        raise TheoryError(
            f"{node.label} follows the data, a pooling or a flatten, where the law of a channel is "
            "not known. Put a layer with weights or a norm between them, or measure the network "
            "(fisher, top_eigenvalues)."
        )
    values = group.values()
    slopes = values.then(act.derivative)
    after = values.then(act.function)
    if group.law.linear:
        means, own = _on_gaussian(group, act, run)
        mean = channel_mean(group.algebra, group.kernel, act)
        kernel = means.value
    else:
        own, means = False, None
        kernel, mean = _on_stream(group, act, values())
    terms = []
    for term in group.terms:
        slope, closed = slopes, None
        if term.slopes is not None:
            slope = _times(term.slopes, slopes)
            if term.activation == GAIN and means is not None:
                closed = pulled_means(group.algebra, group.kernel, act) / term.scale**2
        elif means is not None:
            closed = means.slope
        name = act.name if own and term.slopes is None else None
        terms.append(replace(term, slopes=slope, closed=closed, activation=name))
    law = group.law.behind(after, values)
    made = group.with_(kernel=kernel, mean=mean, terms=terms, law=law)
    if means is None:  # all overlaps of slopes in one series
        overlaps = slope_overlaps(made, terms)
        made.terms = [replace(t, closed=c) for t, c in zip(terms, overlaps, strict=True)]
    return made


def _times(first: Lazy, second: Lazy) -> Lazy:
    return Lazy(lambda: first() * second())


def _on_gaussian(group: Group, act: Activation, run: Run) -> tuple[PairMeans, bool]:
    """Means over a Gaussian channel, and whether one normalized factor is all there is in it."""
    factor = group.only_normalized()
    if factor is None or factor.sphere is None:
        return pair_means(group.algebra, group.kernel, act), False
    sphere, below = factor.sphere, piecewise(act)
    if below is not None:
        value = factor.gain**2 * piecewise_value(sphere, below)
        return PairMeans(value, direction_slope(sphere, below)), True
    if sphere.dimension < FEW_DIRECTIONS:
        run.note(
            f"Batch statistics rest on {sphere.dimension:.1f} effective directions before "
            f"{act.name}: gradients are 3 to 5 % uncertain there."
        )
    return sphere_pair_means(group.algebra, group.kernel, act, sphere.dimension), True


def _on_stream(group: Group, act: Activation, before: Array) -> tuple[Array, Array]:
    """K' and the mean of a channel that is not Gaussian, by its series."""
    algebra = group.algebra
    after = act.function(before)
    series, _, rho = group.series()
    (mean,) = series.kernels(rho, [series.own(after, "relu")])
    square = float((after**2).mean())
    scale = _site_scale(group, before, after, act)
    kernel = mean * algebra.outer(scale, scale)
    return algebra.with_diagonal(kernel, square * scale**2), float(after.mean()) * scale


def _site_scale(group: Group, before: Array, after: Array, act: Activation) -> Array:
    """How a channel's size differs between sites, to first order in the factors' variances.

    v dE[f]/dv = E[(u^2 - 1) f] / 2 for a factor u of variance v; all factors together follow from
    scaling the channel, which also gives the share of a factor that stands for an old stream.
    """
    algebra, law = group.algebra, group.law
    assert law is not None
    square = after**2
    power = float(square.mean())
    if power == 0:
        return np.ones_like(algebra.diagonal(group.kernel))
    left = float((after * act.derivative(before) * before).mean())
    profile = 0.0 * algebra.diagonal(group.kernel)
    old = None
    for number, factor in law.factors.items():
        variance = algebra.diagonal(factor.kernel)
        typical = float(algebra.mean(variance))
        if typical <= 0:
            continue
        relative = variance / typical - 1
        if factor.values is not None:
            old = relative
            continue
        u = law.column(number)
        share = float(((u**2 - 1) * square).mean()) / 2
        left -= share
        profile = profile + share * relative
    if old is not None:
        profile = profile + left * old
    return np.sqrt(np.maximum(1 + profile / power, 0.05))
