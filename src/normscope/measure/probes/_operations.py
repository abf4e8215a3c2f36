"""Which functions are watched, which of their operands is the weight, where channels are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from normscope.measure.probes.sites import Geometry

NORMS: dict[Any, tuple[str, int]] = {
    functional.batch_norm: ("batch_norm", 1),
    functional.instance_norm: ("instance_norm", 1),
    functional.group_norm: ("group_norm", 1),
    functional.local_response_norm: ("local_response_norm", 1),
    functional.layer_norm: ("layer_norm", -1),
    functional.rms_norm: ("rms_norm", -1),
}

_ACTIVATION_NAMES = (
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rrelu_", "elu",
    "elu_", "selu", "selu_", "celu", "celu_", "gelu", "silu", "mish", "softplus", "softsign",
    "tanh", "tanh_", "sigmoid", "sigmoid_", "hardtanh", "hardtanh_", "hardswish", "hardsigmoid",
    "logsigmoid", "tanhshrink", "softshrink", "hardshrink", "threshold", "threshold_", "erf",
)  # fmt: skip

ACTIVATIONS: dict[Any, str] = {
    function: name.rstrip("_")
    for name in _ACTIVATION_NAMES
    for home in (functional, torch, torch.Tensor, torch._C._nn)
    if (function := getattr(home, name, None)) is not None
}

_CLAMPS = (torch.clamp, torch.clamp_min, torch.Tensor.clamp, torch.Tensor.clamp_,
           torch.Tensor.clamp_min, torch.Tensor.clamp_min_)  # fmt: skip

CONVOLUTIONS = tuple(f"conv{way}{axes}d" for way in ("", "_transpose") for axes in (1, 2, 3))
LOOKUPS = ("embedding", "embedding_bag")
TOLD = ("linear", *CONVOLUTIONS, *LOOKUPS)  # these say themselves which operand is the weight
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell",
             "rnn_relu_cell")  # fmt: skip
_ADDING = ("addmm", "baddbmm", "addbmm")
# function -> positions of the two factors
PRODUCTS: dict[str, tuple[int, int]] = {
    **dict.fromkeys((*TOLD, "einsum", "matmul", "__matmul__", "mm", "bmm", "_grouped_mm"), (0, 1)),
    **dict.fromkeys(_ADDING, (1, 2)),
    "__rmatmul__": (1, 0),
}
_NAMES = ("input", "mat1", "batch1", "weight", "mat2", "batch2", "other", "bias")


def activation_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The name of an activation; ``x.clamp(min=0)`` is relu, ``hardtanh(x, 0, 6)`` is relu6."""
    name = ACTIVATIONS.get(func)
    if name != "hardtanh" and func not in _CLAMPS:
        return name
    low = args[1] if len(args) > 1 else kwargs.get("min", kwargs.get("min_val"))
    high = args[2] if len(args) > 2 else kwargs.get("max", kwargs.get("max_val"))
    if name:
        return "relu6" if (low, high) == (0, 6) else name
    return "relu" if high is None and isinstance(low, int | float) and low == 0 else None


def factors(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The two factors of a product, in their order, and what is added to it."""
    if name == "einsum":
        given = [*args[1]] if isinstance(args[1], list | tuple) else [*args[1:]]
        return (*given, None) if len(given) == 2 else (None, None, None)
    given = [*args, *(kwargs[key] for key in _NAMES if key in kwargs)]
    first, second = PRODUCTS[name]
    third = 0 if name in _ADDING else 2 if name in TOLD and name not in LOOKUPS else len(given)
    return given[first], given[second], given[third] if len(given) > third else None


class Form(NamedTuple):
    """How a weight is applied to a signal.

    Attributes:
        matrix: the same matrix, or kernel, at every position.
        columns: the weight is (in, out) as it is used.
        axis: axis of the channels.
    """

    matrix: bool
    columns: bool = False
    axis: int = -1


def form_of(name: str, args: tuple[Any, ...], x: Tensor, weight: Tensor, *, first: bool) -> Form:
    """Of a product; ``first`` if the weight is the first factor."""
    if name in CONVOLUTIONS:
        return Form(matrix=True, axis=1)
    if weight.ndim != 2 or name in LOOKUPS:
        return Form(matrix=False)
    if name == "linear":
        return Form(matrix=True)
    if name == "einsum":
        return _einsum_form(args[0].replace(" ", ""), first=first)
    if not first:
        return Form(matrix=True, columns=True)
    return Form(matrix=x.ndim == 3, axis=1 if x.ndim == 3 else -1)  # W x, positions behind


def _einsum_form(equation: str, *, first: bool) -> Form:
    ins, _, out = equation.partition("->")
    left, right = ins.split(",")
    signal, weight = (right, left) if first else (left, right)
    rest, made = signal[-1:], out[-1:]
    fits = {rest, made} == {*weight} and rest != made and signal[:-1] == out[:-1]
    return Form(matrix=fits, columns=weight.startswith(rest))


def conv_geometry(
    name: str, weight: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Geometry:
    """Stride, padding, dilation and groups of a call of a convolution."""
    spatial = weight.ndim - 2
    transposed = "transpose" in name
    names = ["input", "weight", "bias", "stride", "padding"]
    names += ["output_padding", "groups", "dilation"] if transposed else ["dilation", "groups"]
    given = {**dict(zip(names, args, strict=False)), **kwargs}

    def entries(value: Any) -> tuple[int, ...]:
        many = tuple(value) if isinstance(value, tuple | list) else (value,)
        return many * spatial if len(many) == 1 else many

    padding = given.get("padding", 0)
    return Geometry(
        kernel=tuple(weight.shape[2:]),
        stride=entries(given.get("stride", 1)),
        padding=padding if isinstance(padding, str) else entries(padding),
        dilation=entries(given.get("dilation", 1)),
        groups=given.get("groups", 1),
        transposed=transposed,
    )
