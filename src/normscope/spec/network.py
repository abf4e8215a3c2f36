"""A network as plain data: what both the theory and the builder read."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from normscope.checks import LARGEST
from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import check_choice
from normscope.spec.activations import activation
from normscope.spec.norms import LAST_NORMS, NormSpec, finite_number, listed, norm_spec

HEADS = ("flatten", "pool")
_COUNTS = {
    "outputs": "it is the width of a layer, its units or channels, and signals must pass it",
    "input_shape": "it is the size of the network's input",
    "kernel": "it is the side of a square kernel",
    "stride": "it is the step of a convolution",
    "padding": "it is the border of zeros around a feature map",
}


@dataclass(frozen=True, eq=False)
class LayerSpec(Record):
    """One affine layer with what follows it: norm, then activation.

    Weights are N(0, weight_variance / fan_in), biases N(0, bias_variance).

    Attributes:
        outputs: units of a dense layer, channels of a convolution.
        weight_variance: sigma_w^2.
        bias_variance: sigma_b^2.
        activation: its name, or None for the linear read-out.
        norm: the norm between the affine map and the activation.
        kernel: side of a square kernel; None for a dense layer.
        stride: stride of a convolution.
        padding: zeros added on every side of a convolution's input.
    """

    outputs: int
    weight_variance: float
    bias_variance: float
    activation: str | None = None
    norm: NormSpec | None = None
    kernel: int | None = None
    stride: int = 1
    padding: int = 0

    def __post_init__(self) -> None:
        for name in ("outputs", "stride") + (("kernel",) if self.kernel is not None else ()):
            object.__setattr__(self, name, _count(name, getattr(self, name), least=1))
        object.__setattr__(self, "padding", _count("padding", self.padding, least=0))
        for name in ("weight_variance", "bias_variance"):
            object.__setattr__(self, name, _variance(name, getattr(self, name)))
        if self.activation is not None:
            object.__setattr__(self, "activation", activation(self.activation).name)
        object.__setattr__(self, "norm", norm_spec(self.norm, None))

    @property
    def is_conv(self) -> bool:
        """True for a convolution."""
        return self.kernel is not None


@dataclass(frozen=True, eq=False)
class NetworkSpec(Record):
    """A feed-forward network whose last layer is a linear read-out.

    Attributes:
        input_shape: ``(features,)`` or ``(channels, height, width)``.
        layers: hidden layers, convolutions first, then the read-out.
        last_norm: what is applied to the outputs: None, ``"mean"`` (batch mean subtracted),
            ``"variance"`` (divided by the batch standard deviation), ``"batch"`` (both) or
            ``"layer"``.
        head: how feature maps meet the first dense layer: ``"flatten"`` or ``"pool"`` (average).
        branch_scale: beta of the residual form x_l = x_(l-1) + beta (W phi(x_(l-1)) + b);
            None for a plain network.
    """

    input_shape: tuple[int, ...]
    layers: tuple[LayerSpec, ...]
    last_norm: str | None = None
    head: str = "flatten"
    branch_scale: float | None = None

    def __post_init__(self) -> None:
        shape = listed("input_shape", self.input_shape)
        sides = tuple(_count("input_shape", side, least=1) for side in shape)
        object.__setattr__(self, "input_shape", sides)
        object.__setattr__(self, "layers", tuple(listed("layers", self.layers)))
        strangers = [layer for layer in self.layers if not isinstance(layer, LayerSpec)]
        if strangers:
            raise InputError(f"layers must be LayerSpecs. Got {strangers[0]!r}. Use mlp or cnn.")
        if len(self.input_shape) not in (1, 3):
            raise InputError(
                "input_shape must be (features,) or (channels, height, width). "
                f"Got {self.input_shape}."
            )
        if not self.layers:
            raise InputError("A network needs at least one layer: its read-out.")
        if self.last_norm is not None:
            check_choice("last_norm", self.last_norm, LAST_NORMS)
        check_choice("head", self.head, HEADS)
        self._check_order()
        self._check_residual()
        self.positions  # noqa: B018  a stride that leaves no positions is found here

    def _check_order(self) -> None:
        last = self.layers[-1]
        if last.is_conv or last.activation is not None or last.norm is not None:
            raise InputError(
                "The last layer must be a dense linear read-out, without activation and norm: the "
                "theory's backward recursion starts there. Use last_norm= to normalize outputs."
            )
        if any(layer.activation is None for layer in self.layers[:-1]):
            raise InputError("Every hidden layer needs an activation; 'linear' is the identity.")
        kinds = [layer.is_conv for layer in self.layers]
        if kinds != sorted(kinds, reverse=True):
            raise InputError("Convolutions must come before dense layers.")
        if kinds[0] and len(self.input_shape) != 3:
            raise InputError(
                "A convolution needs an input of (channels, height, width). "
                f"Got {self.input_shape}."
            )

    def _check_residual(self) -> None:
        if self.branch_scale is None:
            return
        scale = finite_number(self.branch_scale)
        if scale is None:
            raise InputError(
                f"branch_scale must be a finite number. Got {self.branch_scale!r}. It multiplies "
                "every residual branch; 1 is the plain residual network."
            )
        object.__setattr__(self, "branch_scale", scale)
        widths = {layer.outputs for layer in self.layers[:-1]}
        if any(layer.is_conv for layer in self.layers) or len(widths) > 1:
            raise InputError(
                "A residual network here is dense with one hidden width, so that the skip "
                f"connection is the identity. Got hidden widths {sorted(widths)}."
            )

    @property
    def depth(self) -> int:
        """L, the number of affine layers."""
        return len(self.layers)

    @property
    def outputs(self) -> int:
        """C, the number of outputs."""
        return self.layers[-1].outputs

    @property
    def widths(self) -> tuple[int, ...]:
        """Units or channels: input first, outputs last."""
        first = self.input_shape[0] if len(self.input_shape) == 3 else math.prod(self.input_shape)
        return (first, *(layer.outputs for layer in self.layers))

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions of the feature map of each layer, input first; 1 for dense layers."""
        sides = self.input_shape[1:] or (1,)
        counts = [math.prod(sides)]
        for number, layer in enumerate(self.layers, start=1):
            if layer.kernel is None:
                sides = (1,)
            else:
                sides = tuple(_conv_side(side, layer, number) for side in sides)
            counts.append(math.prod(sides))
        return tuple(counts)

    @property
    def fan_ins(self) -> tuple[int, ...]:
        """N_(l-1), the inputs of one unit of each layer l = 1..L."""
        sizes = []
        widths, positions = self.widths, self.positions
        for number, layer in enumerate(self.layers):
            size = widths[number]
            if layer.kernel is not None:
                size *= layer.kernel**2
            elif self.head == "flatten" or number == 0 or not self.layers[number - 1].is_conv:
                size *= positions[number]
            sizes.append(size)
        return tuple(sizes)

    @property
    def norm(self) -> NormSpec | None:
        """The norm of the first hidden layer (all hidden layers share it in the constructors)."""
        return self.layers[0].norm if self.depth > 1 else None

    def num_parameters(self, parameters: str = "weights") -> int:
        """Parameters in all: weights only, or with biases, gamma and beta (``"all"``)."""
        weights = sum(n * layer.outputs for n, layer in zip(self.fan_ins, self.layers, strict=True))
        if parameters == "weights":
            return weights
        biases = sum(layer.outputs for layer in self.layers)
        affine = 0
        for layer in self.layers[:-1]:
            if layer.norm is not None:
                affine += layer.outputs * sum(p in layer.norm.parts for p in ("scale", "shift"))
        return weights + biases + affine


def _conv_side(side: int, layer: LayerSpec, number: int) -> int:
    kernel = layer.kernel or 1
    after = (side + 2 * layer.padding - kernel) // layer.stride + 1
    if after < 1 or side + 2 * layer.padding < kernel:
        raise InputError(
            f"Layer {number} leaves no positions: a {kernel} x {kernel} kernel with stride "
            f"{layer.stride} and padding {layer.padding} does not fit a feature map of side "
            f"{side}. "
            "Use a smaller kernel or stride, more padding, or fewer layers."
        )
    return after


def _count(name: str, value: int, *, least: int) -> int:
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or not least <= operator.index(value) <= LARGEST:
        raise InputError(
            f"{name} must be an integer of at least {least}. Got {value!r}: {_COUNTS[name]}. Give "
            f"a whole number, {least} or more."
        )
    return operator.index(value)


def _variance(name: str, value: float) -> float:
    number = finite_number(value)
    if number is None or number < 0:
        raise InputError(
            f"{name} is a variance: a finite number, not negative. Got {value!r}. Parameters are "
            "drawn from a normal distribution of that spread; give 0 or a positive number."
        )
    return number
