"""The pass: K and Theta from the data to the outputs, node by node."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.theory.graph.algebra import Algebra
from normscope.theory.graph.nodes import Affine, Graph, Node
from normscope.theory.graph.rules import Run, merged, rule_of
from normscope.theory.graph.state import DATA, Group, Term


@dataclass(frozen=True)
class Source:
    """Where a part of Theta comes from.

    Attributes:
        layer: name of the node; ``""`` where all layers before the last stand together.
        kind: weight, bias, gamma or beta; ``""`` where they stand together.
        head: whether it belongs to the last layer with weights.
        grows: whether it is proportional to the width of the network.
    """

    layer: str
    kind: str
    head: bool = False
    grows: bool = False


@dataclass(frozen=True)
class Signals:
    """Mean squares at one layer with weights: of its inputs and of its outputs."""

    inputs: float
    inputs_other: float
    outputs: float
    outputs_other: float


@dataclass(frozen=True, eq=False)
class Passed:
    """What comes out of a pass.

    Attributes:
        algebra: the level, on the outputs, without positions.
        kernel: K of the outputs.
        theta: a stack of Theta, one kernel a source.
        sources: their names.
        gradients: by layer, the sum over its units and positions of the squared derivatives of
            one output, mean over samples; empty if it was not asked for.
        signals: by layer with weights.
        head_channels: channels that enter the last layer with weights.
        notes: approximations on the way.
    """

    algebra: Algebra
    kernel: Array
    theta: Array
    sources: tuple[Source, ...]
    gradients: dict[str, float]
    signals: dict[str, Signals]
    head_channels: int
    notes: tuple[str, ...]


def propagate(
    graph: Graph,
    kernel: Array,
    algebra: Algebra,
    *,
    statistics: str = "batch",
    by_layer: bool = True,
    gradients: bool = False,
) -> Passed:
    """Pass the kernel of the data through the graph.

    Args:
        graph: the nodes.
        kernel: K of the data, in ``algebra``.
        algebra: the level of detail.
        statistics: what batch norm does, where its node does not say.
        by_layer: one slice of Theta for each layer and kind. Else a few slices: the last layer, the
            others, and in each what grows with the width.
        gradients: also the power of gradients at each layer.
    """
    shapes = graph.shapes
    sources, slots = _sources(graph, by_layer)
    layers = [node.name for node in graph.nodes if isinstance(node, Affine)]
    probes = {name: len(sources) + i for i, name in enumerate(layers)} if gradients else {}
    head, size = _head(graph), len(sources) + len(probes)
    # what belongs to the last layer is zero before it, and no memory is taken for it
    late = sum(s.head for s in sources) if head is graph.nodes[-1] and not probes else 0
    run = Run(slots, max(size - late, 1), statistics, probes)
    left = Counter(name for node in graph.nodes for name in node.inputs)
    left[graph.nodes[-1].name] += 1
    state: dict[str, list[Group]] = {}
    signals: dict[str, Signals] = {}
    for node in graph.nodes:
        rule = rule_of(node)
        if node is head and run.sources < size:
            run.sources = size
            for group in state[node.inputs[0]]:
                group.terms = [_longer(term, size) for term in group.terms]
            run.forget(state[node.inputs[0]])
        if not node.inputs:
            terms = [Term("plain", algebra.zeros(run.sources))]
            channels = shapes[node.name][0]
            made = [Group(channels, algebra, kernel, terms, None, frozenset({DATA}))]
        else:
            made = rule(node, [state[name] for name in node.inputs], run)
            _check(node, made, shapes[node.name])
        if isinstance(node, Affine):
            signals[node.name] = _signals(state[node.inputs[0]], made)
        state[node.name] = made
        for name in node.inputs:
            left[name] -= 1
            if not left[name]:
                run.forget(state.pop(name))
    groups = state[graph.nodes[-1].name]
    channels, out, theta = merged(groups, run)
    small = groups[0].algebra
    powers = {n: float(small.mean_diagonal(theta[i])) for n, i in probes.items()}
    fan = shapes[head.inputs[0]][0] if head is not None else channels
    return Passed(
        small, out, theta[: len(sources)], sources, powers, signals, fan, tuple(run.notes)
    )


def _longer(term: Term, size: int) -> Term:
    if term.theta is None:
        return term
    theta = np.zeros((size, *term.theta.shape[1:]))
    theta[: len(term.theta)] = term.theta
    return replace(term, theta=theta)


def _head(graph: Graph) -> Node | None:
    affine = [node for node in graph.nodes if isinstance(node, Affine)]
    return affine[-1] if affine else None


def _sources(graph: Graph, by_layer: bool) -> tuple[tuple[Source, ...], dict[tuple[str, str], int]]:
    head = _head(graph)
    fixed = _reads_data(graph)
    made: dict[Source, int] = {}
    slots: dict[tuple[str, str], int] = {}
    for name, kind in graph.counts():
        grows = kind == "weight" and name not in fixed
        last = head is not None and name == head.name
        source = Source(name, kind, last, grows) if by_layer else Source("", "", last, grows)
        slots[name, kind] = made.setdefault(source, len(made))
    return tuple(made), slots


def _reads_data(graph: Graph) -> set[str]:
    """Nodes whose input channels are those of the data."""
    from_data: set[str] = set()
    layers: set[str] = set()
    for node in graph.nodes:
        if all(name in from_data for name in node.inputs):
            if isinstance(node, Affine):
                layers.add(node.name)
            else:
                from_data.add(node.name)
    return layers


def _check(node: Node, groups: list[Group], shape: tuple[int, ...]) -> None:
    channels = sum(group.channels for group in groups)
    if channels != shape[0] or groups[0].algebra.sides != shape[1:]:
        raise TheoryError(
            f"The rule of {node.label} gives {channels} channels on {groups[0].algebra.sides}, but "
            f"the node says {shape}. Correct the rule or the node's shape."
        )
    for group in groups:
        if not np.isfinite(group.kernel).all():
            raise TheoryError(
                f"The signals leave the range of float64 at {node.label}: they explode with depth. "
                "Use smaller variances, or a norm."
            )


def _signals(inputs: list[Group], outputs: list[Group]) -> Signals:
    def power(groups: list[Group]) -> tuple[float, float]:
        total = sum(g.channels for g in groups)
        same = sum(g.channels * float(g.algebra.mean_diagonal(g.kernel)) for g in groups)
        other = sum(g.channels * g.algebra.mean_other(g.kernel) for g in groups)
        return same / total, other / total

    return Signals(*power(inputs), *power(outputs))
