"""A forward pass in the steps in which one would write it down: layers, norms, functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from normscope.nn.activations import activation_name
from normscope.subject.graph.flow import SIGNAL
from normscope.subject.graph.graph import Graph, Layer
from normscope.subject.graph.operations import MOVES, POOLS
from normscope.subject.graph.record import Frame, Node

DROPS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
_RESHAPES = {"view", "_unsafe_view", "squeeze", "unsqueeze", "alias", "detach", "clone", "_to_copy",
             "_reshape_alias", "_reshape_copy", "reshape", "lift_fresh"}  # fmt: skip
_ACTIVATIONS = {name: name for name in ("relu", "tanh", "sigmoid", "silu", "softplus", "gelu")}
_ACTIVATIONS["erf"] = "erf(1.0)"


def called_activation(node: Node) -> str | None:
    """The spec's name of the activation that one operation is; None if it is none."""
    if node.op == "leaky_relu":
        return f"leaky_relu({float(node.scalars[0] if node.scalars else 0.01)!r})"
    return _ACTIVATIONS.get(node.op) if all(s == "none" for s in node.scalars) else None


@dataclass(eq=False)
class Step:
    """One layer, norm or call of a function.

    Attributes:
        kind: ``input``, ``layer``, ``norm``, ``activation``, ``reshape``, ``pool`` (average over
            all positions), ``other pool``, ``dropout``, ``add``, ``scale`` (times a number),
            ``output`` or ``other``.
        name: name of the layer, norm or module, or what the function is called.
        node: the last of its operations.
        frame: the call of the module that does this and nothing else, if there is one.
        layer: with weights.
        detail: the activation's name, or the number of a ``scale``.
        sources: the steps whose results it takes.
        users: the steps that take its result.
    """

    kind: str
    name: str
    node: int = -1
    frame: Frame | None = None
    layer: Layer | None = None
    detail: Any = None
    sources: list[Step] = field(default_factory=list)
    users: list[Step] = field(default_factory=list)

    @property
    def module(self) -> nn.Module | None:
        """What does this and nothing else."""
        return None if self.frame is None else self.frame.module


def steps_of(graph: Graph) -> list[Step]:
    """The steps from the inputs to the outputs, in order; what leads nowhere is left out."""
    groups, of_node = _Groups(graph), dict[int, Step]()
    steps = []
    for nodes in groups.found.values():
        steps.append(step := groups.step(nodes))
        of_node |= dict.fromkeys((node.index for node in nodes), step)
    steps.append(end := Step("output", "output"))
    taken = [
        (of_node[n.index], i) for nodes in groups.found.values() for n in nodes for i in n.inputs
    ]
    for step, i in [*taken, *((end, i) for i in groups.ends)]:
        source = of_node.get(i, step)
        if source is not step and source not in step.sources:
            step.sources.append(source)
            source.users.append(step)
    return steps


class _Groups:
    """Operations that belong together: those of a norm, an activation, or one function."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._flow, self._record = graph, graph.flow, graph.record
        frames, nodes = self._record.frames, self._flow.nodes
        names = [activation_name(frame.module) for frame in frames]
        self._activations = {i: name for i, name in enumerate(names) if name is not None}
        self._norms = {i: norm for norm in graph.norms for i in norm.places}
        self._norm_frames: dict[int, int] = {}  # frame -> node that gives the normalized signal
        for i, norm in self._norms.items():
            if norm.card is not None:
                within = self._record.within(nodes[i].frame)
                self._norm_frames |= {f: i for f in within if frames[f].path == norm.name}
        self._inside: list[list[Node]] = [[] for _ in frames]
        self.ends = [i for _, ends in self._record.outputs for i in ends]
        live = set(self.ends)
        for node in reversed(nodes):
            live.update(node.inputs if node.index in live else ())
        self.found: dict[tuple[str, int], list[Node]] = {}
        for node in nodes:
            if node.index in live and self._flow.kinds[node.index] == SIGNAL:
                self.found.setdefault(self._key(node), []).append(node)
                for place in self._record.within(node.frame):
                    self._inside[place].append(node)

    def _key(self, node: Node) -> tuple[str, int]:
        for place in self._record.within(node.frame):
            norm = self._norm_frames.get(place)
            if place in self._activations or (norm is not None and (
                node.index <= norm or self._flow.source(node.index, MOVES) == norm
            )):  # fmt: skip
                return "frame", place
        return ("call", node.call) if node.call >= 0 else ("node", node.index)

    def step(self, nodes: list[Node]) -> Step:
        """The step that one group of operations makes."""
        last, frames = nodes[-1], self._record.frames
        norm = next((self._norms[n.index] for n in nodes if n.index in self._norms), None)
        layers = [n.index for n in nodes if n.index in self._graph.of_node]
        (by, place), frame = self._key(last), self._frame(nodes)
        whole = frames[place] if by == "frame" else None
        if norm is not None:
            return Step("norm", norm.name, last.index, whole)
        if whole is not None:
            return Step("activation", whole.path, last.index, whole, None, self._activations[place])
        if len(layers) == 1:
            layer = self._graph.of_node[layers[0]]
            return Step("layer", layer.name, last.index, frame, layer)
        rest = [n for n in nodes if n.op not in _RESHAPES]
        name = (frame and frame.path) or (rest or nodes)[-1].op.strip("_")
        if self._record.function(last) in DROPS:
            return Step("dropout", name, last.index, frame)
        kind, detail = self._kind(rest[0]) if len(rest) == 1 else ("other", None)
        return Step(kind if rest else "reshape", name, last.index, frame, None, detail)

    def _frame(self, nodes: list[Node]) -> Frame | None:
        """The innermost call, if all else it does is to reshape and to add a bias."""
        place = nodes[-1].frame
        if place < 0:
            return None
        own = all(n in nodes or n.op in _RESHAPES or self._is_bias(n) for n in self._inside[place])
        return self._record.frames[place] if own else None

    def _is_bias(self, node: Node) -> bool:
        """Whether a vector is added that belongs to the layer before."""
        signals, names = self._flow.signals(node.inputs), self._flow.names(node.inputs)
        if node.op != "add" or len(signals) != 1 or not names:
            return False
        layer = self._graph.of_node.get(self._flow.source(signals[0], MOVES))
        return layer is not None and names <= layer.parameters

    def _kind(self, node: Node) -> tuple[str, Any]:
        """Kind and detail of a single operation."""
        op, scalars, signals = node.op, node.scalars, self._flow.signals(node.inputs)
        if (activation := called_activation(node)) is not None:
            return "activation", activation
        if self._is_bias(node):
            return "reshape", None
        if op == "mul" and len(scalars) == 1 and isinstance(scalars[0], int | float):
            return "scale", float(scalars[0])
        axes = scalars[0] if op == "mean" and scalars and isinstance(scalars[0], list) else ()
        if sorted(axis % len(node.operands[0].shape) for axis in axes) == [2, 3]:
            return "pool", None
        known = {"input": "input", **dict.fromkeys(POOLS - {"mean", "amax"}, "other pool")}
        summed = op == "add" and not scalars and len(signals) == len(node.operands) == 2
        return "add" if summed else known.get(op, "other"), None
