"""Which nodes are norms and which edges gates; how deep a node is, and whether it is normalized."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from normscope.subject.graph import operations as aten
from normscope.subject.graph.arithmetic import written_norm
from normscope.subject.graph.flow import SIGNAL, Flow
from normscope.subject.graph.record import Node, Nodes, Operand
from normscope.subject.graph.recorder import RECURRENT
from normscope.subject.norms import NormCard, norm_card

STATES = ("raw", "sum", "act", "norm")  # how well an input is normalized, from nothing on
_KEEPS_GATES = aten.MOVES | aten.POOLS | aten.REDUCTIONS | {
    "mul", "div", "add", "sub", "rsub", "neg", "topk", "where", "sort", "scatter"
}  # fmt: skip


@dataclass(eq=False)
class PlacedNorm:
    """A norm and its uses.

    Attributes:
        name: name of the module, or of the module and the function or arithmetic inside it.
        kind: ``"batch"``, ``"layer"``, ``"rms"`` and so on.
        card: the norm card, if it is a module.
        places: node that gives something normalized -> what was normalized.
    """

    name: str
    kind: str
    card: NormCard | None = None
    places: dict[int, Nodes] = field(default_factory=dict)

    @property
    def uses(self) -> int:
        """How often it is used in a pass."""
        return len(self.places)


def placed_norms(flow: Flow) -> tuple[tuple[PlacedNorm, ...], set[int]]:
    """All norms: modules by their cards, functions, arithmetic.

    Returns them with the frames inside norms.
    """
    record = flow.record
    busy = {f for i in flow.weighted for f in record.within(flow.nodes[i].frame)}
    found: dict[str, PlacedNorm] = {}
    inside: set[int] = set()
    uses: defaultdict[str, int] = defaultdict(lambda: 1)
    operations = [node for node in flow.nodes if node.op in aten.NORMS]

    def add(name: str, kind: str, node: int, inputs: Nodes, card: NormCard | None = None) -> None:
        found.setdefault(name, PlacedNorm(name, kind, card)).places[node] = inputs
        flow.norms.add(node)

    def add_unnamed(node: Node, function: str, kind: str, inputs: Nodes) -> None:
        name = plain = f"{record.path(node)}.{function}".lstrip(".")
        while name in found:
            uses[plain] += 1
            name = f"{plain}#{uses[plain]}"
        add(name, kind, node.index, inputs)

    for index in reversed(range(len(record.frames))):  # the innermost module is the norm
        frame = record.frames[index]
        if index in busy or frame.in_shape != frame.out_shape or frame.outputs == frame.inputs:
            continue
        if not frame.outputs or flow.kind(frame.inputs) != SIGNAL:
            continue
        if (card := norm_card(frame.module, frame.example)) is None:
            continue
        busy.update(record.within(frame.parent))
        inside.add(index)
        # A module may do more than normalize: then the operation inside it is the norm.
        own = [node.index for node in operations if index in record.within(node.frame)]
        for i in own if len(own) == 1 else frame.outputs:
            add(frame.path, card.kind, i, frame.inputs, card)
    inside |= {i for i in range(len(record.frames)) if inside & {*record.within(i)}}
    for node in flow.nodes:
        if node.frame in inside or node.index in flow.norms:
            continue
        if node.op in aten.NORMS and flow.is_signal(node.operands[0]):
            function = record.function(node) or node.op
            add_unnamed(node, function, aten.NORMS[node.op], node.operands[0].nodes)
        elif (written := written_norm(flow, node)) is not None:
            add_unnamed(node, f"{written[0]}_norm", written[0], (written[1],))
    return tuple(sorted(found.values(), key=lambda norm: min(norm.places))), inside


def gates(flow: Flow) -> dict[int, int]:
    """Products of a signal with a gate: node -> position of the gate.

    A gate was made from the signal itself (squeeze-and-excite), or it is broadcast and was squashed
    since its last layer (a router). The halves of a gated linear unit are siblings, not gates.
    """
    squashed = [False] * len(flow.nodes)
    found: dict[int, int] = {}
    for node in flow.nodes:
        if node.index in flow.weighted:
            continue
        passed = any(squashed[i] for i in node.inputs if flow.nodes[i].floating)
        squashed[node.index] = node.op in aten.SQUASH or (passed and node.op in _KEEPS_GATES)
        if node.op != "mul" or len(node.operands) != 2 or node.index in flow.norms:
            continue
        first, second = node.operands
        if not (flow.is_signal(first) and flow.is_signal(second)) or first.nodes == second.nodes:
            continue
        pairs = [(first, second), (second, first)]
        thin = [g for x, g in pairs if _thinner(g, x) and any(squashed[i] for i in g.nodes)]
        roots = [(flow.source(x.nodes[0]), g) for x, g in pairs]
        made = [g for root, g in roots if any(flow.depends(i, root) for i in g.nodes)]
        if thin or made:
            found[node.index] = (thin or made)[0].position
    return found


def _thinner(gate: Operand, signal: Operand) -> bool:
    pairs = zip(reversed(gate.shape), reversed(signal.shape), strict=False)
    return any(m == 1 < n for m, n in pairs) or len(gate.shape) < len(signal.shape)


def depths(flow: Flow, gate: dict[int, int]) -> list[int]:
    """Layers on the longest path to each node; gates, indices and masks carry no depth."""
    found: list[int] = []
    for node in flow.nodes:
        behind = [
            found[i]
            for operand in node.operands
            if operand.position != gate.get(node.index)
            for i in operand.nodes
            if flow.kinds[i] == SIGNAL and (flow.nodes[i].floating or flow.nodes[i].op == "input")
        ]
        step = int(node.index in flow.weighted)
        if node.op in RECURRENT:
            step = flow.record.calls[node.call].layers
        found.append(max(behind, default=0) + step)
    return found


def states(flow: Flow, norms: Iterable[PlacedNorm], gate: dict[int, int]) -> list[tuple[int, str]]:
    """How normalized each node is, as an index of ``STATES``, and by which norm.

    ``norm``: a norm, then only moves, scale or shift by parameters; ``act``: then a pointwise
    function, pooling or a gate; ``sum``: a sum of these; ``raw``: anything else.
    """
    raw, total, act, norm = range(4)
    given = {node: norm.name for norm in norms for node in norm.places}
    found: list[tuple[int, str]] = []

    def state(node: Node) -> tuple[int, str]:
        if node.index in given:
            return norm, given[node.index]
        if node.index in flow.weighted or node.op in aten.PRODUCTS or not node.floating:
            return raw, ""
        used = [o for o in node.operands if o.position != gate.get(node.index)]
        groups = [s for operand in used if (s := flow.signals(operand.nodes))]
        flat = [found[i] for group in groups for i in group]
        if not flat:
            return raw, ""
        weakest, (_, source) = min(level for level, _ in flat), flat[0]
        several = len(groups) > 1
        if node.op in aten.MOVES | {"cat", "stack"}:
            return weakest, source
        if node.op in aten.POINTWISE | aten.POOLS or node.index in gate:
            return min(weakest, act), source
        if node.op in ("add", "sub"):
            return min(weakest, total) if several else weakest, source
        if node.op in ("mul", "div"):
            alike = len({name for _, name in flat}) == 1 and weakest >= act
            return (min(weakest, act) if alike else raw) if several else weakest, source
        return raw, ""

    for node in flow.nodes:
        level, source = state(node)
        found.append((level, source if level else ""))
    return found
