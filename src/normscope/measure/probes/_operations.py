"""Which functions and modules are watched, and where their channels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from normscope.measure.probes.sites import Geometry

Function = Callable[..., Any]

CONVOLUTIONS: dict[Any, str] = {
    functional.conv1d: "conv1d",
    functional.conv2d: "conv2d",
    functional.conv3d: "conv3d",
    functional.conv_transpose1d: "conv_transpose1d",
    functional.conv_transpose2d: "conv_transpose2d",
    functional.conv_transpose3d: "conv_transpose3d",
}

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


def is_rectifying_clamp(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this is a ReLU in other words: ``x.clamp(min=0)``."""
    if func not in _CLAMPS:
        return False
    low = args[1] if len(args) > 1 else kwargs.get("min")
    high = args[2] if len(args) > 2 else kwargs.get("max")
    return high is None and isinstance(low, int | float) and low == 0


def is_norm(module: nn.Module) -> bool:
    """Torch's normalization layers, ours, and others that are called so and hold no modules."""
    known = _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm | nn.LocalResponseNorm
    if isinstance(module, known) or hasattr(module, "batch_statistics"):
        return True
    name = type(module).__name__
    # Names with an underscore are torch's norms of weights, not of signals.
    called = name.rstrip("123d").endswith("Norm") and not name.startswith("_")
    return called and not any(True for _ in module.children())


def norm_axis(module: nn.Module) -> int:
    """Where a normalization layer has its channels."""
    last = isinstance(module, nn.LayerNorm | nn.RMSNorm) or any(
        word in type(module).__name__ for word in ("LayerNorm", "RMSNorm")
    )
    return -1 if last else 1


def conv_geometry(
    func: Function, weight: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Geometry:
    """Stride, padding, dilation and groups of a call of a convolution."""
    spatial = weight.ndim - 2
    transposed = "transpose" in CONVOLUTIONS[func]
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
