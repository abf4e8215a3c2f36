"""From the record of a pass to nodes of the theory, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import nn

from normscope.nn.activations import activation_name
from normscope.subject.graph import DROPS, Graph, Layer, called_activation
from normscope.subject.graph.operations import POINTWISE, PRODUCTS, SOFTMAX
from normscope.subject.graph.record import Frame, Node, Nodes, Operand
from normscope.subject.nodes.layout import (
    CHANNEL,
    COPIES,
    SAMPLE,
    TURNS,
    VIEWS,
    Atom,
    Axes,
    kinds,
    standard,
    turned,
    viewed,
    without,
)
from normscope.subject.nodes.norms import norm_node
from normscope.subject.nodes.weights import LayerWeights, read_layer_weights
from normscope.subject.norms import NormCard
from normscope.theory.graph import nodes as theory

_MAX_POOLS = ("max_pool", "adaptive_max_pool", "fractional_max_pool", "amax")
_ZEROS = {"zeros", "zeros_like", "new_zeros"}
AVERAGE = "Replace it by average pooling for the prediction, or measure"
REGISTER = "Register it (register_activation and register_activation_module), or measure"


@dataclass(frozen=True)
class _Moved:
    """Slices and zeros that are not a node yet: a shortcut of type A, or the padding of a layer."""

    name: str
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    before: int = 0
    after: int = 0

    @property
    def is_padding(self) -> bool:
        return set(self.strides) == {1} and not self.before and not self.after


@dataclass(frozen=True)
class _Value:
    """What one operation gives.

    Attributes:
        node: the node of the theory.
        axes: where samples, channels and positions stand in the tensor.
        moved: what was done to it since.
    """

    node: str
    axes: Axes
    moved: _Moved | None = None


class Walk:
    """Reads the nodes that lead to the output.

    Attributes:
        made: nodes by name, in order.
        weights: what was read of each layer's weights.
        flags: what the theory leaves out.
        changed: names of norms whose ``gamma``, ``beta`` or ``stored`` statistics are not as at
            the start.
    """

    def __init__(
        self, model: nn.Module, graph: Graph, parameters: frozenset[str], frozen: frozenset[str]
    ) -> None:
        self.made: dict[str, theory.Node] = {}
        self.weights: list[LayerWeights] = []
        self.flags: list[str] = []
        self.changed: dict[str, list[str]] = {}
        self._graph, self._flow, self._record = graph, graph.flow, graph.record
        self._tensors = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = dict(model.named_buffers(remove_duplicate=False))
        self._selected, self._frozen = parameters, frozen
        self._shapes: dict[str, theory.Shape] = {}
        self._values: dict[int, _Value] = {}
        self._first_use: dict[str, str] = {}
        self._flat: dict[str, str] = {}
        self._whole = self._modules()

    def run(self, *, channels_last: bool) -> theory.Graph:
        """The nodes, where the channels of the data are its second axis or its last."""
        end = self._end()
        needed, todo = set[int](), [end]
        while todo:
            i = todo.pop()
            if i not in needed:
                needed.add(i)
                todo += self._sources(i)
        data = [i for i in needed if self._flow.nodes[i].op == "input"]
        if len(data) != 1:
            self._refuse("input", f"a network of {len(data)} inputs")
        for i in sorted(needed):
            node = self._flow.nodes[i]
            value = self._input(node, channels_last) if i == data[0] else self._read(node)
            self._values[i] = value
        last = self._settled(self._values[end])
        return self._finished(last.node)

    # ---- what is read

    def _modules(self) -> dict[int, tuple[Frame, str | NormCard]]:
        """Nodes that are the output of an activation or of a norm, which are read as a whole."""
        found: dict[int, tuple[Frame, str | NormCard]] = {}
        frames, nodes = self._record.frames, self._flow.nodes
        for frame in frames:
            if frame.outputs and frame.outputs != frame.inputs:
                name = activation_name(frame.module)
                if name is not None and name != "linear":
                    found[frame.outputs[0]] = frame, name
        for norm in self._graph.norms:
            for i in norm.places:
                within = [frames[f] for f in self._record.within(nodes[i].frame)]
                whole = next((f for f in within if f.path == norm.name), None)
                if norm.card is not None and whole is not None:
                    found[whole.outputs[0]] = whole, norm.card
        return found

    def _end(self) -> int:
        """The output: the one called logits, or the only one that no other is made from."""
        flow = self._flow
        ends = [(key, n[0]) for key, n in self._record.outputs if flow.signals(n[:1])]
        ends = [e for e in ends if e[0] == "logits"][:1] or [
            e for e in ends if not any(flow.depends(other, e[1]) for _, other in ends)
        ]
        if len({i for _, i in ends}) != 1:
            self._refuse("output", f"a network of {len(ends)} outputs")
        return ends[0][1]

    def _sources(self, i: int) -> Sequence[int]:
        whole = self._whole.get(i)
        found = self._flow.nodes[i].inputs if whole is None else whole[0].inputs
        return [j for j in found if self._flow.kinds[j] == "signal"]

    def _input(self, node: Node, channels_last: bool) -> _Value:
        if not node.floating:
            self._refuse("input", "inputs that are indices")
        samples, *size = node.shape
        if not size:
            self._refuse("input", "samples of a single number")
        first, *sides = [size[-1], *size[:-1]] if channels_last else size
        axes = standard(samples, first, sides)
        if channels_last:
            axes = (axes[0], *axes[2:], axes[1])
        return _Value(self._emit(theory.Input("input", size=(first, *sides))), axes)

    def _read(self, node: Node) -> _Value:
        if node.index in self._whole:
            frame, what = self._whole[node.index]
            if isinstance(what, str):
                value = self._settled(self._of(node, frame.inputs))
                return self._act(frame.path, value, what)
            return self._norm(frame, what, self._settled(self._of(node, frame.inputs)))
        if (layer := self._graph.of_node.get(node.index)) is not None:
            return self._layer(node, layer)
        if node.index in self._flow.norms:
            self._refuse(
                self._name(node), "a norm that is no module of its own",
                "Use a module such as nn.LayerNorm, or measure",
            )  # fmt: skip
        if self._record.function(node) in DROPS or node.op == "native_dropout":
            return self._only(node)
        if (activation := called_activation(node)) is not None:
            return self._act(self._name(node), self._settled(self._only(node)), activation)
        return self._operation(node)

    def _operation(self, node: Node) -> _Value:
        if node.op in COPIES or (node.op == "expand" and node.shape == node.operands[0].shape):
            return self._only(node)
        if node.op in VIEWS:
            value = self._only(node)
            axes = viewed(value.axes, node.shape)
            if axes is None:
                self._refuse(self._name(node), "a reshape that cuts channels or sides in pieces")
            return replace(value, axes=axes)
        if node.op in TURNS:
            value = self._only(node)
            return replace(value, axes=turned(value.axes, node.op, node.scalars))
        read = _READERS.get(node.op)
        found = None if read is None else read(self, node)
        if found is None:
            self._refuse(self._name(node), *self._unknown(node))
        return found

    def _unknown(self, node: Node) -> tuple[str, ...]:
        """What an operation without a rule is called, and a way out."""
        if any(word in node.op for word in _MAX_POOLS):
            return "max pooling", AVERAGE
        if "scaled_dot_product" in node.op or node.op in PRODUCTS:
            return ("attention, or another product of two signals",)
        signals = [o for o in node.operands if self._flow.is_signal(o)]
        names = sorted(self._flow.names(node.inputs))
        if node.op in ("mul", "div") and len(signals) > 1:
            return ("a product of two signals (a gate)",)
        if names:
            return (f"a parameter outside layers and norms ({names[0]})",)
        if node.op in SOFTMAX:
            return ("softmax",)
        if node.op in ("slice", "select", "split", "split_with_sizes", "unbind"):
            return ("a part of the channels or of the image",)
        if node.op in POINTWISE:
            return f"the activation {node.op}", REGISTER
        within = self._record.frames[node.frame].module if node.frame >= 0 else None
        of = f" in {type(within).__name__}" if within is not None else ""
        return (f"the operation {node.op}{of}",)

    # ---- layers, norms, activations

    def _layer(self, node: Node, layer: Layer) -> _Value:
        if layer.kind not in ("linear", "conv") or node.op not in PRODUCTS:
            what = {"recurrent": "a recurrent layer", "embedding": "an embedding",
                    "experts": "a mixture of experts"}  # fmt: skip
            self._refuse(layer.name, what.get(layer.kind, f"weights used by {node.op}"))
        found = self._flow.weighted[node.index]
        if not self._flow.is_stored(found.weight):
            others = ", ".join(sorted(self._flow.names(found.weight)))
            self._refuse(layer.name, f"weights that are computed from others ({others})")
        value = self._of(node, found.inputs)
        conv = layer.kind == "conv"
        outputs = node.shape[1 if conv else -1]
        named = self._affine(layer, outputs, self._named_layer(layer))
        if conv:
            return self._conv(node, self._tensors[layer.weight].shape, value, named)
        first = next(o for o in node.operands if o.position == PRODUCTS[node.op][0])
        if set(first.nodes) != set(found.inputs):
            self._refuse(layer.name, "a product with the weight on the left")
        value = self._joined(self._settled(value), layer.name)
        made = theory.Dense(inputs=(value.node,), **named)
        self._check_fan_in(made, self._weights_of(made.name))
        return _Value(self._emit(made), (*value.axes[:-1], (Atom(CHANNEL, outputs),)))

    def _named_layer(self, layer: Layer) -> str:
        name = self._unique(layer.name or layer.weight)
        first = self._first_use.setdefault(layer.weight, name)
        if first != name:
            self.flags.append(
                f"{name} uses the weights of {first}; the theory counts them as independent."
            )
        return name

    def _affine(self, layer: Layer, outputs: int, name: str) -> dict[str, Any]:
        others = sorted(layer.parameters - {layer.weight})
        if len(others) > 1:
            self._refuse(name, f"a layer with several biases ({', '.join(others)})")
        weight = self._tensors[layer.weight]
        self.weights.append(read := read_layer_weights(name, weight, outputs))
        held = [
            kind
            for kind, name in zip(("weight", "bias"), (layer.weight, *others), strict=False)
            if name in self._selected
        ]
        bias = self._tensors[others[0]].detach().double() if others else None
        return {
            "name": read.name,
            "outputs": outputs,
            "weight_variance": read.weight_variance,
            "bias_variance": None if bias is None else float(bias.square().mean()),
            "parameters": tuple(held),
        }

    def _conv(
        self, node: Node, weight: Sequence[int], value: _Value, named: dict[str, Any]
    ) -> _Value:
        name = named["name"]
        stride, padding, dilation, transposed, _, groups = node.scalars[-6:]
        if transposed:
            self._refuse(name, "a transposed convolution")
        if groups != 1:
            self._refuse(
                name, f"a grouped convolution (groups = {groups})",
                "Use groups = 1 for the prediction, or measure",
            )  # fmt: skip
        places = value.axes[2:]
        if kinds(value.axes[0]) != (SAMPLE,) or kinds(value.axes[1]) != (CHANNEL,):
            self._refuse(name, "a convolution whose channels are not the second axis")
        outputs = (Atom(CHANNEL, named["outputs"]),)
        if not any(places):  # behind a pool over all positions
            if math.prod(weight[2:]) > 1:
                self._refuse(name, "a convolution of a single position")
            made = theory.Dense(inputs=(self._settled(value).node,), **named)
            return _Value(self._emit(made), (value.axes[0], outputs, *places))
        order = self._places(value, places, name)
        if any(weight[2 + k] > 1 for k in range(len(places)) if k not in order):
            self._refuse(name, "a convolution along an axis without positions")
        value, extra = self._without_padding(value)
        conv = theory.Conv(
            inputs=(value.node,),
            kernel=_one([weight[2 + k] for k in order]),
            stride=_one([stride[k] for k in order]),
            padding=_padding([padding[k] for k in order], extra),
            dilation=_one([dilation[k] for k in order]),
            **named,
        )
        self._check_fan_in(conv, self._weights_of(name))
        return self._placed(conv, value, node)

    def _check_fan_in(self, made: theory.Dense | theory.Conv, read: LayerWeights) -> None:
        found = made.fan_in([self._shapes[name] for name in made.inputs])
        if found != read.fan_in:
            self._refuse(made.name, f"{read.fan_in} weights a unit for {found} inputs")

    def _weights_of(self, name: str) -> LayerWeights:
        return next(read for read in self.weights if read.name == name)

    def _norm(self, frame: Frame, card: NormCard, value: _Value) -> _Value:
        name = self._unique(frame.path)
        if card.kind != "batch" and card.channel_axis == -1 and value.axes:
            value = self._joined(value, name)
        axis = value.axes[card.channel_axis]
        if not value.axes or (card.channels and kinds(axis) != (CHANNEL,)):
            self._refuse(name, "a norm whose channels are not those of the layer before")
        made, changed = norm_node(
            card, frame.module, name, value.node, self._shapes[value.node],
            running=frame.path in self._frozen,
            selected={n for n in self._selected if n.startswith(f"{frame.path}.")},
            prefix=f"{frame.path}.",
        )  # fmt: skip
        for what in changed:
            self.changed.setdefault(what, []).append(name)
        return replace(value, node=self._emit(made))

    def _act(self, name: str, value: _Value, activation: str) -> _Value:
        made = theory.Activate(self._unique(name), (value.node,), activation=activation)
        return replace(value, node=self._emit(made))

    # ---- operations

    def _add(self, node: Node) -> _Value | None:
        signals = [o for o in node.operands if self._flow.is_signal(o)]
        if len(signals) == 1:
            return self._added(node, signals[0])
        values = [self._settled(self._of(node, o.nodes)) for o in signals]
        if values[0].axes != values[1].axes:
            self._refuse(self._name(node), "a sum of tensors of different shapes")
        factor = float(node.scalars[0]) if node.scalars else 1.0
        factor = -factor if node.op == "sub" else factor
        if factor != 1:
            values[1] = self._scaled(node, values[1], factor)
        made = theory.Add(self._unique(self._name(node)), tuple(v.node for v in values))
        return replace(values[0], node=self._emit(made))

    def _added(self, node: Node, signal: Operand) -> _Value | None:
        """A sum with something that is no signal: the bias of a layer, or zero."""
        names, layer = self._flow.names(node.inputs), None
        if names and node.op == "add":
            layer = self._graph.of_node.get(self._flow.source(signal.nodes[0]))
        bias = layer is not None and names <= layer.parameters
        zero = len(node.operands) == 1 and node.scalars[:1] in ((0,), (0.0,))
        return self._of(node, signal.nodes) if bias or zero else None

    def _times(self, node: Node) -> _Value | None:
        numbers = [s for s in node.scalars if isinstance(s, int | float)]
        if len(node.operands) > 1 or len(numbers) != len(node.scalars):
            return None
        value = self._settled(self._only(node))
        if node.op == "neg":
            return self._scaled(node, value, -1.0)
        if len(numbers) != 1 or (node.op == "div" and numbers[0] == 0):
            return None
        return self._scaled(node, value, numbers[0] if node.op == "mul" else 1 / numbers[0])

    def _scaled(self, node: Node, value: _Value, factor: float) -> _Value:
        name = self._unique(f"{self._record.path(node)}.scale".lstrip("."))
        made = theory.Scale(name, (value.node,), factor=float(factor))
        return replace(value, node=self._emit(made))

    def _cat(self, node: Node) -> _Value | None:
        axis = int(node.scalars[0]) if node.scalars else 0
        parts = [o for o in node.operands if math.prod(o.shape)]
        signals = [o for o in parts if self._flow.is_signal(o) and not self._is_zero(o)]
        values = [self._of(node, o.nodes) for o in signals]
        if not values or any(kinds(v.axes[axis]) != (CHANNEL,) for v in values):
            return None
        if len(signals) == len(parts) > 1:
            settled = [self._settled(value) for value in values]
            name = self._unique(self._name(node))
            made = theory.Concat(name, tuple(value.node for value in settled))
            return self._with_channels(settled[0], self._emit(made))
        if len(signals) > 1 or not all(o in signals or self._is_zero(o) for o in parts):
            return None
        place = parts.index(signals[0])
        before = sum(o.shape[axis] for o in parts[:place])
        return self._more(node, values[0], before, sum(o.shape[axis] for o in parts[place + 1 :]))

    def _is_zero(self, operand: Operand) -> bool:
        """Whether a tensor is known to hold zeros only."""
        if len(operand.nodes) != 1:
            return False
        node = self._flow.nodes[self._flow.source(operand.nodes[0])]
        if operand.nodes[0] in self._values:
            made = self.made[self._values[operand.nodes[0]].node]
            return isinstance(made, theory.Scale) and made.factor == 0
        if node.op == "buffer":
            return not bool(self._buffers[node.names[0]].any())
        while node.op in COPIES | {"expand"} and len(node.inputs) == 1:
            node = self._flow.nodes[node.inputs[0]]
        return node.op in _ZEROS

    def _more(self, node: Node, value: _Value, before: int, after: int) -> _Value:
        moved = self._moved(node, value)
        new = replace(moved, before=moved.before + before, after=moved.after + after)
        axes = [
            (Atom(CHANNEL, axis[0].size + before + after),) if kinds(axis) == (CHANNEL,) else axis
            for axis in value.axes
        ]
        return replace(value, axes=tuple(axes), moved=new)

    def _pad(self, node: Node) -> _Value | None:
        value, pads = self._only(node), [int(n) for n in node.scalars[0]]
        if len(node.scalars) > 1 and node.scalars[1] != 0:
            return None
        for back, pair in enumerate(zip(pads[::2], pads[1::2], strict=True), start=1):
            axis = value.axes[-back]
            if not any(pair):
                continue
            if min(pair) < 0 or len(axis) != 1 or axis[0].kind == SAMPLE:
                return None
            if axis[0].kind == CHANNEL:
                value = self._more(node, value, *pair)
                continue
            moved, k = self._moved(node, value), axis[0].kind
            if set(moved.strides) != {1}:
                return None
            new = [list(p) for p in moved.pads]
            new[k] = [new[k][0] + pair[0], new[k][1] + pair[1]]
            both = tuple((low, high) for low, high in new)
            value = self._resized(value, k, axis[0].size + sum(pair), replace(moved, pads=both))
        return value

    def _slice(self, node: Node) -> _Value | None:
        value, before = self._only(node), node.operands[0].shape
        if node.shape == before:
            return value
        given: list[Any] = list(node.scalars)
        axis, start, _, step = given + [0, 0, None, 1][len(given) :]
        here, length = value.axes[axis], before[axis]
        if len(here) != 1 or here[0].kind < 0 or start or node.shape[axis] != -(-length // step):
            return None
        count = len(self._shapes[value.node]) - 1
        return self._strided(node, value, [step if k == here[0].kind else 1 for k in range(count)])

    def _strided(self, node: Node, value: _Value, strides: Sequence[int]) -> _Value | None:
        """Every n-th position of each side, n the stride."""
        for k, step in enumerate(strides):
            moved = self._moved(node, value)
            size = next(axis[0].size for axis in value.axes if kinds(axis) == (k,))
            if step > 1 and any(map(any, moved.pads)):
                return None
            every = [s * step if j == k else s for j, s in enumerate(moved.strides)]
            value = self._resized(value, k, -(-size // step), replace(moved, strides=tuple(every)))
        return value

    def _resized(self, value: _Value, side: int, size: int, moved: _Moved) -> _Value:
        axes = [(Atom(side, size),) if kinds(axis) == (side,) else axis for axis in value.axes]
        return replace(value, axes=tuple(axes), moved=moved)

    def _moved(self, node: Node, value: _Value) -> _Moved:
        if value.moved is not None:
            return value.moved
        count = len(self._shapes[value.node]) - 1
        name = self._record.path(node) or "shortcut"
        return _Moved(name, (1,) * count, ((0, 0),) * count)

    def _pool(self, node: Node) -> _Value | None:
        given: list[Any] = list(node.scalars)
        usual = [None, None, 0, False, True, None]
        kernel, stride, padding, ceil, counted, divisor = given + usual[len(given) :]
        value, name = self._only(node), self._name(node)
        places = value.axes[2:]
        number = len(places)
        sizes = _several(kernel, number)
        strides = _several(stride or kernel, number)
        pads = _several(padding, number)
        if (any(pads) and not counted) or divisor or kinds(value.axes[1]) != (CHANNEL,):
            return None
        order = self._places(value, places, name)
        if any(sizes[k] > 1 for k in range(number) if k not in order):
            return None
        if not any(pads) and all(sizes[k] == 1 for k in order):
            return self._strided(node, value, [strides[k] for k in order])
        value, extra = self._without_padding(value)
        made = theory.AveragePool(
            self._unique(name),
            (value.node,),
            kernel=_one([sizes[k] for k in order]),
            stride=_one([strides[k] for k in order]),
            padding=_padding([pads[k] for k in order], extra),
        )
        sides = self._shapes[value.node][1:]
        window = made.window(sides)
        if ceil and window.after(sides) != tuple(node.shape[2 + k] for k in order):
            self._refuse(name, "average pooling with ceil_mode, which has windows of two sizes")
        if window.kernel == sides and not any(map(any, window.padding)):
            return self._pooled(made.name, value, range(2, 2 + number), keep=True)
        return self._placed(made, value, node)

    def _adaptive_pool(self, node: Node) -> _Value | None:
        value, name = self._settled(self._only(node)), self._name(node)
        sizes, number = node.scalars[0], len(value.axes) - 2
        order = self._places(value, value.axes[2:], name)
        sides = self._shapes[value.node][1:]
        outs = [int(_several(sizes, number)[k]) for k in order]
        if set(outs) == {1}:
            return self._pooled(self._unique(name), value, range(2, 2 + number), keep=True)
        if any(side % out for side, out in zip(sides, outs, strict=True)):
            self._refuse(name, f"adaptive pooling of {sides} positions to {tuple(outs)}")
        kernel = _one([side // out for side, out in zip(sides, outs, strict=True)])
        made = theory.AveragePool(self._unique(name), (value.node,), kernel=kernel)
        return self._placed(made, value, node)

    def _mean(self, node: Node) -> _Value | None:
        if not node.scalars or not isinstance(node.scalars[0], list | tuple):
            return None
        value = self._settled(self._only(node))
        gone = [int(k) % len(value.axes) for k in node.scalars[0]]
        keep = len(node.scalars) > 1 and bool(node.scalars[1])
        return self._pooled(self._unique(self._name(node)), value, gone, keep=keep)

    def _pooled(self, name: str, value: _Value, gone: Sequence[int], *, keep: bool) -> _Value:
        """The mean over axes, which must be all positions."""
        found = sorted(atom.kind for k in gone for atom in value.axes[k])
        if found != list(range(len(self._shapes[value.node]) - 1)):
            self._refuse(name, "a mean over something else than all positions")
        axes = without(value.axes, gone, keep=keep)
        if not found:
            return replace(value, axes=axes)
        return _Value(self._emit(theory.GlobalPool(name, (value.node,))), axes)

    # ---- shapes

    def _places(self, value: _Value, places: Axes, name: str) -> list[int]:
        """Which of these axes is which side of the image; those of length 1 may be none."""
        count = len(self._shapes[value.node]) - 1
        found = [kinds(axis) for axis in places]
        if sorted(filter(None, found)) != [(k,) for k in range(count)]:
            self._refuse(name, "an image whose sides were merged or cut")
        return [found.index((k,)) for k in range(count)]

    def _placed(self, made: theory.Conv | theory.AveragePool, value: _Value, node: Node) -> _Value:
        """The result of a window: channels and sides are new, their order stays."""
        name = self._emit(made)
        channels, *sides = self._shapes[name]
        places = [tuple(Atom(atom.kind, sides[atom.kind]) for atom in a) for a in value.axes[2:]]
        axes = (value.axes[0], (Atom(CHANNEL, channels),), *places)
        if tuple(math.prod(atom.size for atom in axis) for axis in axes) != node.shape:
            self._refuse(name, f"windows that give {node.shape[1:]}, not {(channels, *sides)}")
        return _Value(name, axes)

    def _with_channels(self, value: _Value, name: str) -> _Value:
        channels = (Atom(CHANNEL, self._shapes[name][0]),)
        axes = [channels if kinds(axis) == (CHANNEL,) else axis for axis in value.axes]
        return _Value(name, tuple(axes))

    def _joined(self, value: _Value, name: str) -> _Value:
        """A value whose last axis is the channels: positions beside them become channels."""
        found = kinds(value.axes[-1])
        if found == (CHANNEL,):
            return value
        count = len(self._shapes[value.node]) - 1
        if sorted(found) != [CHANNEL, *range(count)]:
            self._refuse(name, "a layer over positions, or over a part of the channels")
        if value.node not in self._flat:
            made = theory.Flatten(self._unique("flatten"), (value.node,))
            self._flat[value.node] = self._emit(made)
        flat = self._flat[value.node]
        return _Value(flat, (*value.axes[:-1], (Atom(CHANNEL, self._shapes[flat][0]),)))

    def _without_padding(self, value: _Value) -> tuple[_Value, list[tuple[int, int]]]:
        """The value before zeros were put around it, and how many."""
        count = len(self._shapes[value.node]) - 1
        if value.moved is None or not value.moved.is_padding:
            return self._settled(value), [(0, 0)] * count
        return replace(value, moved=None), list(value.moved.pads)

    def _settled(self, value: _Value) -> _Value:
        """The value after what was done to it has become a node."""
        moved = value.moved
        if moved is None:
            return value
        if any(map(any, moved.pads)):
            self._refuse(
                moved.name, "zeros around an image in front of something else than a layer"
            )
        stride = _one(moved.strides) if moved.strides else 1
        made = theory.Shortcut(
            self._unique(moved.name), (value.node,), stride=stride, before=moved.before,
            after=moved.after,
        )  # fmt: skip
        return replace(value, node=self._emit(made), moved=None)

    # ---- names and ends

    def _of(self, node: Node, nodes: Nodes) -> _Value:
        signals = [i for i in nodes if self._flow.kinds[i] == "signal"]
        if len(signals) != 1:
            self._refuse(self._name(node), "a tensor that is written in several parts")
        return self._values[signals[0]]

    def _only(self, node: Node) -> _Value:
        return self._of(node, tuple(dict.fromkeys(self._sources(node.index))))

    def _emit(self, node: theory.Node) -> str:
        self._shapes[node.name] = node.shape([self._shapes[name] for name in node.inputs])
        self.made[node.name] = node
        return node.name

    def _name(self, node: Node) -> str:
        """The module that runs, if it has no others in it; with the operation, if it has."""
        path, op = self._record.path(node), node.op.strip("_")
        if node.frame >= 0 and path and not [*self._record.frames[node.frame].module.children()]:
            return path
        return f"{path}.{op}".lstrip(".")

    def _unique(self, name: str) -> str:
        made, number = name, 1
        while made in self.made:
            number += 1
            made = f"{name}#{number}"
        return made

    def _refuse(self, name: str, what: str, way_out: str = "Measure") -> NoReturn:
        way = f"{way_out} the network instead (fisher, top_eigenvalues)"
        name = name or type(self._record.frames[0].module).__name__
        theory.Unsupported(name, what=what, way_out=way).shape([])

    def _finished(self, last: str) -> theory.Graph:
        """The nodes that lead to the last one, which is linear."""
        here = self.made[last]
        linear = theory.Add | theory.Scale | theory.AveragePool | theory.GlobalPool | theory.Flatten
        while isinstance(here, linear):
            here = self.made[here.inputs[0]]
        if not isinstance(here, theory.Dense | theory.Conv):
            self._refuse(
                here.name,
                f"a network that ends with {type(here).__name__}, not with a linear layer",
                "Predict the network without it, or measure",
            )  # fmt: skip
        needed = {last}
        for node in reversed(self.made.values()):
            needed.update(node.inputs if node.name in needed else ())
        kept = [node for node in self.made.values() if node.name in needed]
        self.weights = [read for read in self.weights if read.name in needed]
        readers = [node for node in kept if "input" in node.inputs]
        if len(readers) == 1 and isinstance(readers[0], theory.Flatten):
            flat = theory.Input("input", size=self._shapes[readers[0].name])
            kept = [flat, *(_reading(n, readers[0].name) for n in kept[1:] if n is not readers[0])]
        return theory.Graph(tuple(kept))


_READERS: dict[str, Callable[[Walk, Node], _Value | None]] = {
    **dict.fromkeys(("add", "sub"), Walk._add),
    **dict.fromkeys(("mul", "div", "neg"), Walk._times),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), Walk._pool),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), Walk._adaptive_pool),
    "mean": Walk._mean,
    "cat": Walk._cat,
    "slice": Walk._slice,
    "constant_pad_nd": Walk._pad,
}


def _reading(node: theory.Node, flat: str) -> theory.Node:
    inputs = tuple("input" if name == flat else name for name in node.inputs)
    return replace(node, inputs=inputs)


def _one(values: Sequence[Any]) -> Any:
    """A single value if all are equal."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _padding(pads: Sequence[int], extra: Sequence[tuple[int, int]]) -> Any:
    """Of each side: one number, or (before, after) where zeros were put around the image."""
    both = [(p + low, p + high) for p, (low, high) in zip(pads, extra, strict=True)]
    even = all(low == high for low, high in both)
    return _one([low for low, _ in both]) if even else tuple(both)


def _several(value: Any, count: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    return values * count if len(values) == 1 else values
