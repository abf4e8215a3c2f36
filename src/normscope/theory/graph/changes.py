"""Changed networks: another norm or none, other gains, twice the depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normscope.theory.graph.nodes import (
    Activate,
    Add,
    Affine,
    BatchNorm,
    Graph,
    Identity,
    LayerNorm,
    Node,
)

Norm = BatchNorm | LayerNorm  # RMS norm is a layer norm
EPS = 1e-5


def with_norms(graph: Graph, make: Callable[[Norm], Node]) -> Graph:
    """The graph with every norm replaced by what ``make`` gives, of the same name and inputs.

    Example:
        >>> from normscope.spec import mlp
        >>> from normscope.theory.graph.specs import graph_of
        >>> graph = graph_of(mlp([4, 8, 2], norm="batch"))
        >>> [type(node).__name__ for node in with_norms(graph, without).nodes]
        ['Input', 'Dense', 'Identity', 'Activate', 'Dense']
    """
    return Graph(tuple(make(v) if isinstance(v, Norm) else v for v in graph.nodes))


def without(norm: Norm) -> Node:
    """In place of a norm nothing."""
    return Identity(norm.name, norm.inputs)


def layer_in_place(norm: Norm) -> Node:
    """Layer norm of the same gain."""
    return LayerNorm(norm.name, norm.inputs, gamma=norm.gamma, eps=norm.eps or EPS,
                     parameters=norm.parameters)  # fmt: skip


def batch_in_place(norm: Norm) -> Node:
    """Batch norm of the same gain."""
    return BatchNorm(norm.name, norm.inputs, gamma=norm.gamma, eps=norm.eps or EPS,
                     parameters=norm.parameters)  # fmt: skip


def scaled_gain(factor: float) -> Callable[[Norm], Node]:
    """The same norm with another gain."""
    return lambda norm: replace(norm, gamma=factor * norm.gamma)


def deeper(graph: Graph) -> tuple[Graph, int]:
    """The graph with every layer or block twice that can stand twice, and how many these are.

    These are the parts through which all signals pass from one node to another of the same shape:
    from one activation to the next, or from one sum to the next.
    """
    made: list[Node] = []
    renamed: dict[str, str] = {}  # by the copy, for what comes behind
    count, start = 0, 0
    ends = {end: begin for begin, end in _repeatable(graph)}
    for place, node in enumerate(graph.nodes):
        made.append(replace(node, inputs=tuple(renamed.get(n, n) for n in node.inputs)))
        if place not in ends:
            continue
        start, count = ends[place], count + 1
        part = graph.nodes[start + 1 : place + 1]
        names = {v.name: f"{v.name} again" for v in part} | {graph.nodes[start].name: node.name}
        made += [
            replace(v, name=names[v.name], inputs=tuple(names[n] for n in v.inputs)) for v in part
        ]
        renamed[node.name] = names[node.name]
    return Graph(tuple(made)), count


def _repeatable(graph: Graph) -> list[tuple[int, int]]:
    """Pairs of nodes between which a part may stand twice, without overlap, by their places."""
    nodes, shapes = graph.nodes, graph.shapes
    place = {node.name: k for k, node in enumerate(nodes)}
    oldest = [len(nodes)] * len(nodes)  # place of the oldest node that is read behind this one
    for node in nodes:
        for name in node.inputs:
            for k in range(place[name] + 1, place[node.name]):
                oldest[k] = min(oldest[k], place[name])
    cuts = [k for k in range(1, len(nodes)) if oldest[k] >= k]
    found: list[tuple[int, int]] = []
    for j in cuts:
        last = found[-1][1] if found else 0
        for i in (k for k in cuts if last <= k < j):
            alike = shapes[nodes[i].name] == shapes[nodes[j].name]
            if alike and _same_role(nodes[i], nodes[j]) and _has_weights(nodes[i + 1 : j + 1]):
                found.append((i, j))
                break
    return found


def _same_role(first: Node, last: Node) -> bool:
    if isinstance(first, Activate) or isinstance(last, Activate):
        return isinstance(first, Activate) and isinstance(last, Activate)
    return isinstance(last, Add) and (isinstance(first, Add) or first.name in last.inputs)


def _has_weights(nodes: tuple[Node, ...]) -> bool:
    return any(isinstance(node, Affine) for node in nodes)
