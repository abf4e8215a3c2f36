"""The structure of a network, read from the record of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.subject.graph.connections import Residuals, attention_nodes
from normscope.subject.graph.flow import PARAMETER, SIGNAL, Flow, Weighted
from normscope.subject.graph.operations import MOVES, NORMS
from normscope.subject.graph.placing import STATES, depths, gates, placed_norms, states
from normscope.subject.graph.record import Key, Node, Record

_ENDINGS = (".weight_orig", ".weight_v", ".weight", "_weight")


@dataclass(eq=False)
class Layer:
    """A layer with weights.

    Attributes:
        name: name of the module, or of the weight itself.
        kind: ``"linear"``, ``"conv"``, ``"embedding"``, ``"experts"`` or ``"recurrent"``.
        weight: name of its largest parameter.
        parameters: names of all.
        depth: layers on the longest path from the inputs to its output, at its first use.
        state: what its input is: ``"norm"``, ``"act"``, ``"sum"``, ``"raw"``, or ``"none"`` for
            indices.
        norm: the norm behind that.
        side: whether it only makes gates or indices, which are no steps of depth.
        nodes: its uses.
    """

    name: str
    kind: str
    weight: str
    parameters: set[str]
    depth: int
    state: str
    norm: str | None
    nodes: list[int]
    side: bool = False

    @property
    def uses(self) -> int:
        """How often it is used in a pass."""
        return len(self.nodes)


class Graph:
    """Layers, norms, sums and attention of a network, and how they are joined.

    Attributes:
        record: the pass.
        flow: what its nodes carry.
        norms: in order of their first use.
        depth: depth of every node.
        states: state of every node: an index of ``STATES``, and the norm.
        layers: those with weights, in order of their first use.
        of_node: node -> its layer.
        residuals: sums of a signal with what was made from it: kind and path.
        attention: paths of modules in which attention is computed.
        heads: layers behind which no other stands.
        last: the deepest of them; None if there is none.
        last_norm: the norm whose result, as it is or behind an activation, goes into it.
        output_norm: the norm behind it.
        coverage: shares of the parameters that are in ``layers``, ``norms``, ``other`` places, or
            ``unused``.
        other: names of parameters in other places.
        unused: names of parameters that the pass does not use.
        reached: names of the modules that have run.
        dropped: names of norms whose results reach no output.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.flow = flow = Flow(record)
        self.norms, self._norm_frames = placed_norms(flow)
        self._gates = gates(flow)
        self.depth = depths(flow, self._gates)
        self.states = states(flow, self.norms, self._gates)
        self.of_node: dict[int, Layer] = {}
        self.layers = self._layers()
        self.attention = tuple(record.path(flow.nodes[i]) for i in attention_nodes(flow))
        live = self._live()
        self._find_heads(live)
        sums = [i for i in live if flow.nodes[i].frame not in self._norm_frames]
        found = Residuals(flow, self.norms, self.depth).among(sums)
        self.residuals = tuple((kind, record.path(flow.nodes[i])) for kind, i in found)
        self._cover()
        self.reached = {frame.path for frame in record.frames}
        ends = [i for _, nodes in record.outputs for i in nodes]
        self.dropped = {
            norm.name for norm in self.norms
            if not any(i == end or flow.depends(end, i) for i in norm.places for end in ends)
        }  # fmt: skip

    def calls(self) -> dict[Key, int]:
        """The depth of what each call of a torch function gives."""
        last = {n.call: n.index for n in self.flow.nodes if n.call >= 0}
        return {self.record.calls[c].key: self.depth[i] for c, i in last.items()}

    # ---- layers

    def _layers(self) -> tuple[Layer, ...]:
        layers: dict[str, Layer] = {}
        tied = {n.names[0]: n.names for n in self.flow.nodes if n.op == "parameter"}
        for i, found in self.flow.weighted.items():
            names = self.flow.names(found.weight)
            if not names:
                continue
            weight = min(names, key=lambda name: (-self.record.sizes[name], name))
            owners = [owner_of(name) for name in tied[weight]]
            path = self.record.path(self.flow.nodes[i])
            # a tied weight is called by the module that runs
            name = path if path in owners or found.kind == "recurrent" else owners[0]
            if name in layers and (layers[name].kind == "embedding") != (found.kind == "embedding"):
                name = f"{name} ({found.kind})"
            if name not in layers:
                place = self.depth[i], *self._input(found)
                layers[name] = Layer(name, found.kind, weight, set(), *place, [])
            biases = [j for j in self.flow.nodes[i].inputs if self.flow.kinds[j] == PARAMETER]
            layers[name].nodes.append(i)
            layers[name].parameters |= names | self.flow.names(biases)
            self.of_node[i] = layers[name]
        for node in self.flow.nodes:
            self._add_bias(node)
        return tuple(layers.values())

    def _input(self, found: Weighted) -> tuple[str, str | None]:
        signals = self.flow.signals(found.inputs)
        if not signals:
            return "none", None
        level, norm = min((self.states[i] for i in signals), key=lambda state: state[0])
        return STATES[level], norm or None

    def _add_bias(self, node: Node) -> None:
        """A vector that is added to what a layer gives belongs to it."""
        if node.op != "add" or len(node.operands) != 2:
            return
        for signal, vector in (node.operands, node.operands[::-1]):
            thin = sum(n > 1 for n in vector.shape) <= 1
            if thin and self.flow.kind(vector.nodes) == PARAMETER and self.flow.is_signal(signal):
                layer = self.of_node.get(self.flow.source(signal.nodes[0], MOVES))
                if layer is not None:
                    layer.parameters |= self.flow.names(vector.nodes)

    # ---- the end

    def _live(self) -> set[int]:
        """What the main output is made of, gates and indices apart."""
        flow = self.flow
        floats = [(key, nodes) for key, nodes in self.record.outputs if flow.signals(nodes[:1])]
        named = [nodes for key, nodes in floats if key == "logits"]
        ends = named[:1] or [
            nodes for _, nodes in floats
            if not any(flow.depends(other[0], nodes[0]) for _, other in floats)
        ]  # fmt: skip
        live, todo = set[int](), [i for nodes in ends for i in nodes]
        while todo:
            i = todo.pop()
            if i in live:
                continue
            live.add(i)
            used = [o for o in flow.nodes[i].operands if o.position != self._gates.get(i)]
            sources = [j for o in used for j in o.nodes if flow.kinds[j] == SIGNAL]
            todo += [j for j in sources if flow.nodes[j].floating or i in flow.weighted]
        return live

    def _find_heads(self, live: set[int]) -> None:
        flow = self.flow
        for layer in self.layers:
            layer.side = not live.intersection(layer.nodes)
        alive = [i for i in self.of_node if i in live]
        ending = [i for i in alive if not any(flow.depends(j, i) for j in alive)]
        self.heads = tuple(dict.fromkeys(self.of_node[i] for i in ending))
        self.last = self.last_norm = self.output_norm = None
        if ending:
            deepest = max(ending, key=lambda i: self.depth[i])
            self.last = self.of_node[deepest]
            state, norm = self._input(flow.weighted[deepest])
            self.last_norm = norm if state in ("norm", "act") else None
            behind = [n.name for n in self.norms if flow.depends(max(n.places), deepest)]
            self.output_norm = behind[-1] if behind else None

    # ---- coverage

    def _cover(self) -> None:
        flow, sizes = self.flow, self.record.sizes
        layers = {name for layer in self.layers for name in layer.parameters}
        used, norms = set[str](), set[str]()
        for node in flow.nodes:
            names = flow.names(node.inputs)
            if flow.kinds[node.index] == SIGNAL:
                used |= names
            if node.frame in self._norm_frames or node.op in NORMS:
                norms |= names
        known = layers | norms
        parts = {
            "layers": layers,
            "norms": norms - layers,
            "other": used - known,
            "unused": sizes.keys() - used - known,
        }
        total = max(sum(sizes.values()), 1)
        self.coverage = {k: sum(sizes[n] for n in v) / total for k, v in parts.items()}
        self.other, self.unused = (tuple(sorted(parts[k])) for k in ("other", "unused"))

    def add_used(self, names: set[str]) -> None:
        """Parameters that another pass uses, in places that this one does not reach."""
        share = sum(self.record.sizes[name] for name in names) / sum(self.record.sizes.values())
        self.coverage["other"] += share
        self.coverage["unused"] -= share
        self.other = tuple(sorted({*self.other, *names}))
        self.unused = tuple(name for name in self.unused if name not in names)


def owner_of(parameter: str) -> str:
    """The module a parameter belongs to, as a user would say it; or the parameter's own name."""
    if ".parametrizations." in f".{parameter}":
        return f".{parameter}".partition(".parametrizations.")[0][1:]
    for ending in _ENDINGS:
        if parameter.endswith(ending):
            return parameter.removesuffix(ending)
    return "" if parameter == "weight" else parameter
