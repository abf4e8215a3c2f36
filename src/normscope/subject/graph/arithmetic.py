"""Norms that are written as arithmetic: x / s(x), where s scales with x."""

from __future__ import annotations

from normscope.subject.graph.flow import SIGNAL, Flow
from normscope.subject.graph.operations import EVEN, MOVES, POOLS, REDUCTIONS, SPREADS
from normscope.subject.graph.record import Node

EPS = 1e-2  # numbers up to this may be added to a statistic
_SAME = MOVES | POOLS | {"sum", "std", "std_mean", "abs", "linalg_vector_norm", "norm", "neg", "relu"}  # fmt: skip  # noqa: E501
_POWERS = {"var": 2.0, "var_mean": 2.0, "square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}  # fmt: skip  # noqa: E501


def written_norm(flow: Flow, node: Node) -> tuple[str, int] | None:
    """Kind of the norm that this product or quotient completes, and what it normalizes.

    One operand is x itself, moved or with something subtracted; the other is made from x by way of
    an even statistic (a variance, a norm, squares), which rules out softmax and shares of a sum;
    and the result does not change when x is multiplied by a number.
    """
    if node.op not in ("mul", "div") or len(node.operands) != 2:
        return None
    whole, small = node.operands
    if not (flow.is_signal(whole) and flow.is_signal(small)):
        return None
    if node.op == "mul" and whole.shape.count(1) > small.shape.count(1):
        whole, small = small, whole
    behind = _behind(flow, list(small.nodes), limit=40)
    ops = {flow.nodes[i].op for i in behind}
    if not ops & (REDUCTIONS | EVEN - {"pow", "abs", "square"}):
        return None
    beside = _behind(
        flow, list(whole.nodes), limit=12, through=MOVES | POOLS - REDUCTIONS | {"sub"}
    )
    for x in beside:
        even = any(_even(flow.nodes[i]) for i in behind if flow.depends(i, x))
        if x in behind and even and _degree(flow, x, node.index) == 0:
            subtracts = "sub" in {flow.nodes[i].op for i in (*behind, *beside)}
            return "layer" if subtracts or ops & SPREADS else "rms", x
    return None


def _behind(flow: Flow, start: list[int], limit: int, through: set[str] | None = None) -> list[int]:
    """Signals behind ``start``, up to the next layer or norm, or through these operations."""
    todo, found = start, list[int]()
    while todo and len(found) < limit:
        i = todo.pop(0)
        if i in found or flow.kinds[i] != SIGNAL:
            continue
        found.append(i)
        stops = i in flow.weighted or i in flow.norms
        if not stops and (through is None or flow.nodes[i].op in through):
            todo = todo + flow.nodes[i].inputs
    return found


def _even(node: Node) -> bool:
    squared = node.op == "mul" and len({operand.nodes for operand in node.operands}) == 1
    return node.op in EVEN or (squared and len(node.operands) == 2)


def _degree(flow: Flow, source: int, target: int) -> float | None:
    """The target is multiplied by c^degree if the source is by c; None if by no power of c."""
    degrees: dict[int, float | None] = {source: 1.0}
    for node in flow.nodes[source + 1 : target + 1]:
        if flow.depends(node.index, source):
            degrees[node.index] = _degree_of(node, degrees)
    return degrees.get(target)


def _degree_of(node: Node, degrees: dict[int, float | None]) -> float | None:
    each: list[float] = []
    for operand in node.operands:
        known = [degrees[i] for i in operand.nodes if i in degrees]
        numbers = [d for d in known if d is not None]
        if known and not numbers:
            return None
        each.append(max(numbers, default=0.0))
    numbers = [s for s in node.scalars if isinstance(s, int | float) and not isinstance(s, bool)]
    negligible = all(abs(number) <= EPS for number in numbers)
    if node.op in _SAME:
        return each[0]
    if node.op in _POWERS:
        return each[0] * _POWERS[node.op]
    if node.op == "pow" and numbers:
        return each[0] * numbers[0]
    if node.op == "mul":
        return sum(each)
    if node.op == "div":
        return each[0] - sum(each[1:])
    if node.op in ("clamp_min", "clamp", "add", "sub") and (len(each) == 1 or len(set(each)) == 1):
        return each[0] if negligible or len(each) > 1 else None
    return None
