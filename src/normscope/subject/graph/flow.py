"""Signals, parameters and constants: what each node of a record carries, and where weights act."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from normscope.subject.graph import operations as aten
from normscope.subject.graph.record import Node, Nodes, Operand, Record
from normscope.subject.graph.recorder import RECURRENT

SIGNAL, PARAMETER, CONSTANT = "signal", "parameter", "constant"
_LEAVES = {"input": SIGNAL, "parameter": PARAMETER, "buffer": CONSTANT, "constant": CONSTANT}
_RECURRENT = aten.FUSED_RECURRENT | {*RECURRENT}


class Weighted(NamedTuple):
    """An operation of a signal with weights."""

    kind: str  # "linear", "conv", "embedding", "experts" or "recurrent"
    weight: Nodes
    inputs: Nodes


class Flow:
    """What depends on the inputs, what on parameters only, and what on neither.

    Attributes:
        record: the pass.
        nodes: its nodes.
        kinds: kind of each node: ``"signal"``, ``"parameter"`` or ``"constant"``.
        parameters: for nodes computed from parameters only, the names of these.
        weighted: node -> what its weights are.
        norms: nodes that give something normalized (filled in later): walks stop there.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.nodes = record.nodes
        self.kinds: list[str] = []
        self.parameters: list[frozenset[str]] = []
        self.weighted: dict[int, Weighted] = {}
        self.norms: set[int] = set()
        self._before: list[int] = []  # of each node: a bit for every node that it depends on
        for node in self.nodes:
            self._classify(node)
            mask = 0
            for i in node.inputs:
                mask |= self._before[i] | (1 << i)
            self._before.append(mask)

    def depends(self, node: int, on: int) -> bool:
        """Whether ``node`` uses the result of ``on``, directly or not."""
        return bool(self._before[node] >> on & 1)

    def kind(self, nodes: Iterable[int]) -> str:
        """Of several nodes together."""
        found = {self.kinds[i] for i in nodes}
        return next((kind for kind in (SIGNAL, PARAMETER) if kind in found), CONSTANT)

    def is_signal(self, operand: Operand) -> bool:
        """Whether an operand depends on the inputs."""
        return self.kind(operand.nodes) == SIGNAL

    def names(self, nodes: Iterable[int]) -> frozenset[str]:
        """The parameters behind nodes that depend on nothing else."""
        return frozenset[str]().union(*(self.parameters[i] for i in nodes))

    def signals(self, nodes: Iterable[int]) -> list[int]:
        """Those that carry floating-point signals."""
        return [i for i in nodes if self.kinds[i] == SIGNAL and self.nodes[i].floating]

    def source(self, node: int, through: Collection[str] = aten.CARRIES) -> int:
        """Back through operations that only move a signal."""
        while True:
            here = self.nodes[node]
            if here.op not in through or node in self.weighted or node in self.norms:
                return node
            found = set(self.signals(here.inputs))
            if len(found) != 1:
                return node
            node = found.pop()

    def is_stored(self, weight: Nodes) -> bool:
        """Whether these are all the numbers of one parameter, in whatever order."""
        here, size = self.nodes[weight[0]], math.prod(self.nodes[weight[0]].shape)
        while here.op in aten.MOVES and len(here.inputs) == 1:
            here = self.nodes[here.inputs[0]]
        return len(weight) == 1 and here.op == "parameter" and math.prod(here.shape) == size

    def reaches(self, start: Iterable[int], through: Collection[str], found: Callable[[Node], bool]) -> bool:  # fmt: skip  # noqa: E501
        """Whether a walk back through operations of these names comes to a node like that."""
        todo, seen = list(start), set[int]()
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            if found(self.nodes[i]):
                return True
            if self.nodes[i].op in through:
                todo += self.nodes[i].inputs
        return False

    # ---- node by node

    def _classify(self, node: Node) -> None:
        self.kinds.append(_LEAVES.get(node.op) or self._kind(node))
        names = frozenset(node.names[:1]) if node.op == "parameter" else frozenset[str]()
        if self.kinds[-1] == PARAMETER and node.op != "parameter":
            names = self.names(node.inputs)
        self.parameters.append(names)

    def _kind(self, node: Node) -> str:
        found = self._weights(node)
        if found is not None:
            self.weighted[node.index] = found
            return SIGNAL
        return CONSTANT if node.op in aten.FRESH else self.kind(node.inputs)

    def _weights(self, node: Node) -> Weighted | None:
        if node.op in aten.PRODUCTS:
            return self._product(node)
        if node.op in aten.LOOKUPS and node.operands:
            return self._lookup(node)
        if node.op in _RECURRENT | aten.FUSED_ATTENTION:
            ins = node.inputs
            weights = tuple(i for i in ins if self.kinds[i] == PARAMETER)
            kind = "recurrent" if node.op in _RECURRENT else "linear"
            return Weighted(kind, weights, tuple(i for i in ins if self.kinds[i] == SIGNAL))
        if node.op == "sum" and node.operands:
            return self._summed(self.nodes[node.operands[0].nodes[0]])
        return None

    def _product(self, node: Node) -> Weighted | None:
        at = {operand.position: operand for operand in node.operands}
        first, second = (at.get(place) for place in aten.PRODUCTS[node.op])
        if first is None or second is None:
            return None
        kinds = self.kind(first.nodes), self.kind(second.nodes)
        told = self.record.calls[node.call].weight if node.call >= 0 else ()
        if node.op in aten.CONVOLUTIONS:
            pair = (second, first) if kinds[1] == PARAMETER else None
        elif set(kinds) == {SIGNAL, PARAMETER}:
            pair = (second, first) if kinds[1] == PARAMETER else (first, second)
        elif PARAMETER in kinds and told:  # a learned query or a constant goes through a layer
            names = self.names(second.nodes)
            pair = (second, first) if names and names <= self.names(told) else (first, second)
        elif kinds == (PARAMETER, PARAMETER) and self._spread(first) != self._spread(second):
            pair = (second, first) if self._spread(first) else (first, second)
        else:
            pair = None
        if pair is None:
            return None
        kind = "conv" if node.op in aten.CONVOLUTIONS else "linear"
        return Weighted("experts" if "grouped" in node.op else kind, pair[0].nodes, pair[1].nodes)

    def _spread(self, operand: Operand) -> bool:
        """Whether a parameter was repeated for every sample: a learned query is a signal."""

        def grown(node: Node) -> bool:
            ins = node.operands[0].shape if node.operands else ()
            return node.op in ("expand", "repeat") and math.prod(node.shape) > math.prod(ins)

        return self.reaches(operand.nodes, aten.MOVES | {"add"}, grown)

    def _lookup(self, node: Node) -> Weighted | None:
        table, *rest = node.operands
        where = tuple(i for operand in rest for i in operand.nodes)
        if self.kind(table.nodes) != PARAMETER or _axes(table.shape) < 2:
            return None
        by_name = "embedding" in node.op
        return Weighted("embedding", table.nodes, where) if by_name or self.kind(where) == SIGNAL else None  # fmt: skip  # noqa: E501

    def _summed(self, node: Node) -> Weighted | None:
        """The sum over a product of a signal with a matrix."""
        if node.op != "mul" or len(node.operands) != 2:
            return None
        signal = [o for o in node.operands if self.is_signal(o)]
        weight = [o for o in node.operands if self.kind(o.nodes) == PARAMETER]
        if not signal or not weight or _axes(weight[0].shape) < 2:
            return None
        return Weighted("linear", weight[0].nodes, signal[0].nodes)


def _axes(shape: tuple[int, ...]) -> int:
    """Axes with more than one entry."""
    return sum(n > 1 for n in shape)
