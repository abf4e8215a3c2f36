"""Where signals meet: attention, and sums of a signal with what was made from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from normscope.subject.graph import operations as aten
from normscope.subject.graph.flow import Flow
from normscope.subject.graph.placing import PlacedNorm
from normscope.subject.graph.record import Node, Nodes

_SCORES = aten.CARRIES | aten.SQUASH | {"mul", "div", "add", "sub", "where", "scalar_tensor"}
NEAR = 20  # steps from a sum to the softmax whose scores it shifts


def attention_nodes(flow: Flow) -> list[int]:
    """Fused attention, and products with the softmax of another product of two signals."""
    products: set[int] = set()
    found = []
    for node in flow.nodes:
        if node.op.startswith(aten.ATTENTION) or node.op in aten.FUSED_ATTENTION:
            found.append(node.index)
        if node.op not in aten.PRODUCTS or node.index in flow.weighted:
            continue
        factors = [o for o in node.operands if o.position in aten.PRODUCTS[node.op]]
        if len(factors) == 2 and all(flow.is_signal(factor) for factor in factors):
            products.add(node.index)
            if any(_scored(flow, factor.nodes, products) for factor in factors):
                found.append(node.index)
    return found


def _scored(flow: Flow, nodes: Nodes, products: set[int]) -> bool:
    """Whether these are the softmax of a product of two signals, scaled and masked."""
    todo, seen = [(i, False) for i in nodes], set[tuple[int, bool]]()
    while todo:
        i, soft = todo.pop()
        soft = soft or flow.nodes[i].op in aten.SOFTMAX
        if soft and i in products:
            return True
        if flow.nodes[i].op in _SCORES and (i, soft) not in seen:
            seen.add((i, soft))
            todo += [(j, soft) for j in flow.signals(flow.nodes[i].inputs)]
    return False


class Residuals:
    """Finds the sums of a signal with what layers made from it."""

    def __init__(self, flow: Flow, norms: Iterable[PlacedNorm], depth: list[int]) -> None:
        self._flow, self._depth = flow, depth
        self._normed = {i: inputs[0] for norm in norms for i, inputs in norm.places.items()}
        self._users: dict[int, list[int]] = {}
        for node in flow.nodes:
            for i in node.inputs:
                self._users.setdefault(i, []).append(node.index)

    def among(self, nodes: Collection[int]) -> list[tuple[str, int]]:
        """``"identity"`` or ``"projection"`` (a layer stands in the short way), and the node."""
        found = []
        for node in (self._flow.nodes[i] for i in sorted(nodes)):
            signals = [o.nodes for o in node.operands if self._flow.is_signal(o)]
            if node.op not in ("add", "sub") or len(signals) != 2 or not node.floating:
                continue
            if node.index in self._flow.norms or signals[0] == signals[1] or self._is_score(node):
                continue
            pairs = [(signals[0], signals[1]), (signals[1], signals[0])]
            if any(self._leads(self._flow.source(x[0]), y) for x, y in pairs):
                found.append(("identity", node.index))
            elif any(self._projects(x[0], y) for x, y in pairs):
                found.append(("projection", node.index))
        return found

    def _leads(self, root: int, nodes: Nodes) -> bool:
        """Whether ``nodes`` are made from ``root`` by way of a layer."""
        flow = self._flow
        return any(
            flow.depends(j, root) and (i == j or flow.depends(i, j))
            for i in nodes
            if flow.depends(i, root)
            for j in flow.weighted
        )

    def _projects(self, node: int, others: Nodes) -> bool:
        """Whether ``node`` is one layer, its norm and bias away from what ``others`` come from."""
        flow, used, place = self._flow, False, self._flow.source(node)
        while True:
            here = flow.nodes[place]
            if place in self._normed:
                place = flow.source(self._normed[place])
            elif place in flow.weighted and not used:
                used, place = True, flow.source(flow.weighted[place].inputs[0])
            elif here.op == "add" and len(signals := flow.signals(here.inputs)) == 1:
                place = flow.source(signals[0])
            else:
                break
        deeper = self._depth[others[0]] > self._depth[node]
        return used and deeper and any(flow.depends(i, place) for i in others)

    def _is_score(self, node: Node) -> bool:
        """Whether a sum goes into a softmax of attention: a bias of positions is no residual."""
        flow, todo, seen = self._flow, [node.index], set[int]()
        while todo and len(seen) < NEAR:
            i = todo.pop()
            seen.add(i)
            for user in self._users.get(i, ()):
                op, after = flow.nodes[user].op, self._users.get(user, ())
                if op in aten.SOFTMAX and flow.nodes[user].shape[-1:] == node.shape[-1:]:
                    if after and not any(j in flow.weighted for j in after):
                        return True
                elif op in _SCORES and user not in seen:
                    todo.append(user)
        return False
