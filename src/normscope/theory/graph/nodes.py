"""A network as the theory reads it: a list of nodes, plain data.

Each kind of node is one frozen class below. A node has a name, the names of the nodes it reads, and
what the theory must know of it. ``Graph`` is the list in the order of the forward pass: the first
node is the ``Input``, the last one gives the outputs. Weights are random: independent, centred, of
variance ``weight_variance`` / fan-in.

``parameters`` of a node says which of its parameters F is taken over ("weight", "bias", "gamma",
"beta"); an empty tuple holds them all constant.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from normscope.checks import as_float, checked_count
from normscope.errors import InputError, TheoryError
from normscope.record import Record
from normscope.registry import check_choice
from normscope.spec import activation

Shape = tuple[int, ...]  # channels, then the sides of the image; (features,) without positions
Pairs = tuple[tuple[int, int], ...]

WAY_OUT = "Measure the network instead (fisher, top_eigenvalues)"


@dataclass(frozen=True, eq=False)
class Node(Record):
    """What all nodes share.

    Attributes:
        name: its name in messages and in the terms of the answer, such as ``layer1.0.conv1``.
        inputs: names of the nodes it reads.
    """

    name: str
    inputs: tuple[str, ...] = ()

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Channels and sides of the output, from those of the inputs; a misfit is an error."""
        return self._only(shapes)

    def counts(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """How many numbers each kind of its parameters has."""
        return {}

    def _only(self, shapes: Sequence[Shape]) -> Shape:
        if len(shapes) != 1:
            raise InputError(f"{self.label} reads one node. Got {len(shapes)}: {self.inputs}.")
        return shapes[0]

    @property
    def label(self) -> str:
        """Kind and name, for messages."""
        return f"{type(self).__name__} {self.name!r}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Input(Node):
    """The data: ``size`` is (features,) or (channels, side, ...)."""

    size: Shape

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The size of one sample."""
        if shapes:
            raise InputError(f"{self.label} is the data and reads no node. Got {self.inputs}.")
        return tuple(checked_count(side, "size") for side in self.size)


@dataclass(frozen=True, eq=False, kw_only=True)
class Affine(Node, ABC):
    """A layer with random weights.

    Attributes:
        outputs: units or channels.
        weight_variance: sigma_w^2; each weight has variance sigma_w^2 / fan-in.
        bias_variance: variance of the biases (0 if they start at 0); None without biases.
        parameters: which parameters F is taken over.
    """

    outputs: int
    weight_variance: float
    bias_variance: float | None = None
    parameters: tuple[str, ...] = ("weight", "bias")

    def __post_init__(self) -> None:
        _check_variance(self, "weight_variance", self.weight_variance)
        if self.bias_variance is not None:
            _check_variance(self, "bias_variance", self.bias_variance)
        _check_parameters(self, ("weight", "bias"))
        checked_count(self.outputs, f"outputs of {self.label}")

    @abstractmethod
    def fan_in(self, shapes: Sequence[Shape]) -> int:
        """Inputs of one unit."""

    def counts(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Weights and biases that F is taken over."""
        sizes = {"weight": self.fan_in(shapes) * self.outputs}
        if self.bias_variance is not None:
            sizes["bias"] = self.outputs
        return {kind: size for kind, size in sizes.items() if kind in self.parameters}


@dataclass(frozen=True, eq=False, kw_only=True)
class Dense(Affine):
    """A fully connected layer, over the channels; with positions left, the same at each."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The channels become ``outputs``."""
        return (self.outputs, *self._only(shapes)[1:])

    def fan_in(self, shapes: Sequence[Shape]) -> int:
        """The channels it reads."""
        return self._only(shapes)[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class Conv(Affine):
    """A convolution without groups, in any number of dimensions, padded with zeros.

    ``kernel``, ``stride``, ``padding`` and ``dilation`` are one number, or one a side; ``padding``
    may also be a pair (before, after) a side.
    """

    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[Any, ...] = 0
    dilation: int | tuple[int, ...] = 1

    def window(self, sides: Shape) -> Window:
        """The kernel on an image of these sides."""
        return window_of(self, sides, self.kernel, self.stride, self.padding, self.dilation)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The channels become ``outputs``, the sides those of the windows."""
        sides = self._only(shapes)[1:]
        return (self.outputs, *self.window(sides).after(sides))

    def fan_in(self, shapes: Sequence[Shape]) -> int:
        """Channels times sites of the kernel."""
        size = self._only(shapes)
        return size[0] * math.prod(self.window(size[1:]).kernel)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Norm(Node):
    """A normalization with the same gain everywhere.

    Attributes:
        gamma: the gain.
        eps: added to the variance.
        parameters: which parameters F is taken over; ``()`` for a norm without gamma and beta.
    """

    gamma: float = 1.0
    eps: float = 0.0
    parameters: tuple[str, ...] = ("gamma", "beta")

    def __post_init__(self) -> None:
        _check_variance(self, "eps", self.eps)
        if not math.isfinite(as_float(self.gamma)):
            raise InputError(f"gamma of {self.label} must be a finite number. Got {self.gamma!r}.")
        _check_parameters(self, ("gamma", "beta"))

    def counts(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Gains and shifts that F is taken over, one a channel."""
        return dict.fromkeys(self.parameters, self._only(shapes)[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchNorm(_Norm):
    """Statistics over samples and positions, a channel at a time.

    Attributes:
        statistics: ``"batch"``, ``"frozen"`` (held constant in the backward pass) or ``"running"``;
            None takes what the prediction is asked for.
        running_mean: the stored mean, and its variance below; fresh buffers are 0 and 1.
        running_variance: the stored variance.
    """

    statistics: str | None = None
    running_mean: float = 0.0
    running_variance: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics is not None:
            check_choice(f"statistics of {self.label}", self.statistics, STATISTICS)
        _check_variance(self, "running_variance", self.running_variance)


STATISTICS = ("batch", "frozen", "running")


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerNorm(_Norm):
    """Statistics of each sample: layer norm, or group norm with many channels a group.

    Attributes:
        over: ``"sample"``, channels and positions together (group norm, layer norm over C, H, W),
            or ``"position"``, the channels of one position (layer norm over C, channels last).
        centred: the mean is subtracted; False is RMS norm.
    """

    over: str = "sample"
    centred: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(f"over of {self.label}", self.over, ("sample", "position"))


@dataclass(frozen=True, eq=False, kw_only=True)
class RMSNorm(LayerNorm):
    """Layer norm without the subtraction of the mean."""

    parameters: tuple[str, ...] = ("gamma",)
    centred: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Activate(Node):
    """An activation at every unit, by the name a spec gives it (``register_activation``)."""

    activation: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", activation(self.activation).name)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scale(Node):
    """A fixed number times its input, such as the scale of a residual branch."""

    factor: float

    def __post_init__(self) -> None:
        if not math.isfinite(as_float(self.factor)):
            raise InputError(f"factor of {self.label} must be finite. Got {self.factor!r}.")


@dataclass(frozen=True, eq=False)
class Identity(Node):
    """Passes its input on; dropout in evaluation mode is one."""


@dataclass(frozen=True, eq=False)
class Add(Node):
    """The sum of two or more inputs."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """That of the inputs, which must be equal."""
        if len(shapes) < 2:
            raise InputError(f"{self.label} adds two nodes or more. Got {self.inputs}.")
        if len(set(shapes)) > 1:
            raise InputError(
                f"{self.label} adds inputs of one shape. Got "
                f"{dict(zip(self.inputs, shapes, strict=True))}."
            )
        return shapes[0]


@dataclass(frozen=True, eq=False)
class Concat(Node):
    """Channels side by side."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The channels add up."""
        if not shapes or len({s[1:] for s in shapes}) > 1:
            raise InputError(
                f"{self.label} needs images of the same sides. Got "
                f"{dict(zip(self.inputs, shapes, strict=True))}."
            )
        return (sum(s[0] for s in shapes), *shapes[0][1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Shortcut(Node):
    """The parameter-free shortcut of type A: every ``stride``-th position, then channels of zeros.

    Attributes:
        stride: one number, or one a side.
        before: zero channels in front of those kept.
        after: zero channels behind them.
    """

    stride: int | tuple[int, ...] = 1
    before: int = 0
    after: int = 0

    def window(self, sides: Shape) -> Window:
        """The positions kept, as a kernel of one site."""
        return window_of(self, sides, 1, self.stride, 0, 1)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Fewer positions, more channels."""
        size = self._only(shapes)
        for name in ("before", "after"):
            checked_count(getattr(self, name), f"{name} of {self.label}", least=0)
        return (size[0] + self.before + self.after, *self.window(size[1:]).after(size[1:]))


@dataclass(frozen=True, eq=False, kw_only=True)
class AveragePool(Node):
    """Means over windows; zeros of the padding count as values, as in torch by default."""

    kernel: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None  # None: that of the kernel
    padding: int | tuple[Any, ...] = 0

    def window(self, sides: Shape) -> Window:
        """The windows on an image of these sides."""
        stride = self.kernel if self.stride is None else self.stride
        return window_of(self, sides, self.kernel, stride, self.padding, 1)

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The same channels, a position a window."""
        size = self._only(shapes)
        return (size[0], *self.window(size[1:]).after(size[1:]))


@dataclass(frozen=True, eq=False)
class GlobalPool(Node):
    """The mean over all positions."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """The channels alone."""
        return self._only(shapes)[:1]


@dataclass(frozen=True, eq=False)
class Flatten(Node):
    """Channels and positions become channels."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """One number: channels times positions."""
        return (math.prod(self._only(shapes)),)


@dataclass(frozen=True, eq=False, kw_only=True)
class Unsupported(Node):
    """What the theory has no rule for; the prediction refuses it by name.

    Attributes:
        what: what it is, such as ``"max pooling"``.
        way_out: what the user can do.
    """

    what: str
    way_out: str = WAY_OUT

    def shape(self, shapes: Sequence[Shape]) -> NoReturn:
        """None: the node is refused here."""
        raise TheoryError(
            f"Mean-field theory has no rule for {self.what}, node {self.name!r}. {self.way_out}."
        )


@dataclass(frozen=True)
class Window:
    """A kernel on an image: one entry a side."""

    kernel: Shape
    stride: Shape
    padding: Pairs
    dilation: Shape

    def after(self, sides: Shape) -> Shape:
        """Sides of the image behind it."""
        parts = zip(sides, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + sum(p) - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in parts)


def window_of(
    node: Node, sides: Shape, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Window:
    """The window of a node on an image of these sides; what does not fit is an error."""
    count = len(sides)
    if not count:
        raise InputError(
            f"{node.label} needs positions, but its input has none: it comes behind a flatten, a "
            "global pool or a dense input. Use a Dense node there."
        )

    def counted(name: str, values: Any) -> Shape:
        label = f"{name} of {node.label}"
        return tuple(checked_count(value, label) for value in _each(node, name, values, count))

    made = Window(
        counted("kernel", kernel),
        counted("stride", stride),
        tuple(_pair(node, value) for value in _each(node, "padding", padding, count)),
        counted("dilation", dilation),
    )
    if min(made.after(sides)) < 1:
        raise InputError(
            f"{node.label} leaves no positions: a kernel of {made.kernel} with stride "
            f"{made.stride}, padding {made.padding} and dilation {made.dilation} does not fit an "
            f"image of {sides}. Use a smaller kernel or more padding."
        )
    return made


def _each(node: Node, name: str, value: Any, count: int) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if len(values) != count:
        raise InputError(
            f"{name} of {node.label} has {len(values)} entries, but the image has {count} sides. "
            "Give one number, or one a side."
        )
    return values


def _pair(node: Node, value: Any) -> tuple[int, int]:
    both = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(both) != 2:
        raise InputError(
            f"padding of {node.label} is one number a side, or (before, after). Got {value!r}."
        )
    name = f"padding of {node.label}"
    return checked_count(both[0], name, least=0), checked_count(both[1], name, least=0)


def _check_variance(node: Node, name: str, value: Any) -> None:
    if not 0 <= as_float(value) < math.inf:
        raise InputError(
            f"{name} of {node.label} must be a finite number, not negative. Got {value!r}."
        )


def _check_parameters(node: Any, known: tuple[str, ...]) -> None:
    for kind in node.parameters:
        check_choice(f"parameter of {node.label}", kind, known)


@dataclass(frozen=True, eq=False)
class Graph(Record):
    """The nodes in the order of the forward pass, checked: names, inputs and shapes fit.

    Attributes:
        nodes: the first is the ``Input``, the last gives the outputs.

    Example:
        >>> net = Graph((
        ...     Input("data", size=(784,)),
        ...     Dense("hidden", ("data",), outputs=1000, weight_variance=2.0),
        ...     BatchNorm("norm", ("hidden",)),
        ...     Activate("relu", ("norm",), activation="relu"),
        ...     Dense("head", ("relu",), outputs=10, weight_variance=1.0, bias_variance=0.0),
        ... ))
        >>> net.outputs, net.num_parameters()
        (10, 796010)
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(self.nodes))
        if not self.nodes or not isinstance(self.nodes[0], Input):
            raise InputError("A graph begins with its Input node, the data.")
        if sum(isinstance(node, Input) for node in self.nodes) > 1:
            raise InputError("A graph has one Input node. Got several.")
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise InputError(
                    f"Two nodes are called {node.name!r}. Terms are told apart by name: rename one."
                )
            missing = [name for name in node.inputs if name not in seen]
            if missing:
                raise InputError(
                    f"{node.label} reads {missing[0]!r}, which is no node before it. Nodes stand "
                    "in the order of the forward pass."
                )
            seen.add(node.name)
        shapes = self.shapes
        if len(shapes[self.nodes[-1].name]) > 1:
            raise TheoryError(
                f"The last node, {self.nodes[-1].label}, has positions left: "
                f"{shapes[self.nodes[-1].name]}. The theory needs one vector of outputs a sample; "
                "pool or flatten before the read-out."
            )

    @property
    def shapes(self) -> dict[str, Shape]:
        """Channels and sides behind each node."""
        made: dict[str, Shape] = {}
        for node in self.nodes:
            made[node.name] = node.shape([made[name] for name in node.inputs])
        return made

    @property
    def outputs(self) -> int:
        """C, the number of outputs."""
        return self.shapes[self.nodes[-1].name][0]

    def counts(self) -> dict[tuple[str, str], int]:
        """Numbers of parameters by (node, kind), in order: what F is taken over."""
        shapes = self.shapes
        return {
            (node.name, kind): size
            for node in self.nodes
            for kind, size in node.counts([shapes[name] for name in node.inputs]).items()
        }

    def num_parameters(self) -> int:
        """All of them."""
        return sum(self.counts().values())
