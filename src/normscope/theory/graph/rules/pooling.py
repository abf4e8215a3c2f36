"""Average pooling and flatten: linear maps after which a channel's law is not known."""

from __future__ import annotations

from normscope.errors import TheoryError
from normscope.theory.graph.nodes import AveragePool, Flatten, GlobalPool, Unsupported, window_of
from normscope.theory.graph.rules.registry import Groups, Run, rule
from normscope.theory.graph.state import Group, Term


@rule(AveragePool, GlobalPool)
def pooled(node: AveragePool | GlobalPool, inputs: list[Groups], run: Run) -> Groups:
    """K and Theta averaged over both windows of a pair."""
    return [_pooled(node, group, run) for group in inputs[0]]


def _pooled(node: AveragePool | GlobalPool, group: Group, run: Run) -> Group:
    algebra = group.algebra
    if not algebra.sides:
        return group
    if isinstance(node, AveragePool):
        window = node.window(algebra.sides)
    else:
        window = window_of(node, algebra.sides, algebra.sides, 1, 0, 1)
    theta = algebra.pool(run.theta(group), window)
    kernel = algebra.pool(group.kernel, window)
    mean = None if group.mean is None else algebra.pool_profile(group.mean, window)
    sides = window.after(algebra.sides)
    small = algebra.on(() if isinstance(node, GlobalPool) else sides)
    terms = [Term("plain", theta)]
    return Group(group.channels, small, kernel, terms, None, group.sources, mean)


@rule(Flatten)
def flattened(node: Flatten, inputs: list[Groups], run: Run) -> Groups:
    """Means over positions of the pairs at one position; channels times positions."""
    return [_flattened(group, run) for group in inputs[0]]


def _flattened(group: Group, run: Run) -> Group:
    algebra = group.algebra
    if not algebra.sides:
        return group
    theta = algebra.flatten(run.theta(group))
    small = algebra.on(())
    mean = None
    if group.mean is not None:
        mean = algebra.sample_mean(group.mean)[:: algebra.positions]
    return Group(
        group.channels * algebra.positions,
        small,
        algebra.flatten(group.kernel),
        [Term("plain", theta)],
        None,
        group.sources,
        mean,
    )


@rule(Unsupported)
def refused(node: Unsupported, inputs: list[Groups], run: Run) -> Groups:
    """Never reached by a checked graph."""
    raise TheoryError(f"No rule for {node.what}.")
