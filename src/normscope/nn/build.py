"""From a spec to the module that the theory describes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.activations import activation_module
from normscope.nn.init import gaussian, undrawn
from normscope.nn.norm import BatchNorm, GroupNorm, LayerNorm
from normscope.seeds import child_seed
from normscope.spec import LayerSpec, NetworkSpec, NormSpec


class ResidualBranch(nn.Module):
    """x + beta (W phi(norm(x)) + b): one layer of the residual form.

    Attributes:
        branch_scale: beta.
    """

    def __init__(
        self, norm: nn.Module | None, act: nn.Module, layer: nn.Module, *, branch_scale: float
    ) -> None:
        super().__init__()
        if norm is not None:
            self.norm = norm
        self.act = act
        self.layer = layer
        self.branch_scale = branch_scale

    def forward(self, x: Tensor) -> Tensor:
        """The stream after this layer."""
        branch = self.norm(x) if hasattr(self, "norm") else x
        return x + self.branch_scale * self.layer(self.act(branch))


def build(
    spec: NetworkSpec, seed: int = 0, *, dtype: torch.dtype | None = None, device: Any = None
) -> nn.Module:
    """The module that ``spec`` describes, in train mode.

    Affine layer, norm, activation; weights N(0, weight_variance / fan_in), biases
    N(0, bias_variance), norms with constant gamma and beta 0 in elementary operations (right in
    every derivative, eps = 0 allowed). Each layer draws from a stream of its own, in float64.

    Args:
        spec: the network; made by ``mlp``, ``cnn`` or ``residual_mlp``.
        seed: seed for the weights.
        dtype: data type of parameters and buffers; None is torch's default.
        device: device of parameters and buffers.

    Example:
        >>> import normscope as ns
        >>> net = build(ns.mlp([8, 16, 2], norm="batch"), seed=0)
        >>> [name for name, _ in net.named_children()]
        ['flatten', 'layer1', 'norm1', 'act1', 'layer2']
    """
    if not isinstance(spec, NetworkSpec):
        raise InputError(
            f"build takes a NetworkSpec, made by mlp, cnn or residual_mlp. Got {spec!r}. For a "
            "network by name, use network('resnet20')."
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise InputError(f"dtype must be a torch.dtype such as torch.float32. Got {dtype!r}.")
    try:
        place = None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"The device {device!r} cannot be used: {reason}.") from None
    made = {"dtype": dtype or torch.get_default_dtype(), "device": place}
    affine = [_affine(spec, number, seed, made) for number in range(1, spec.depth + 1)]
    parts = (
        _plain(spec, affine, made) if spec.branch_scale is None else _residual(spec, affine, made)
    )
    if spec.last_norm is not None:
        parts.append(("last_norm", _last_norm(spec, made)))
    return nn.Sequential(OrderedDict(parts))


Parts = list[tuple[str, nn.Module]]


def _plain(spec: NetworkSpec, affine: list[nn.Module], made: dict[str, Any]) -> Parts:
    parts: Parts = [] if spec.layers[0].is_conv else [("flatten", nn.Flatten())]
    for number, layer in enumerate(spec.layers, start=1):
        if number > 1 and spec.layers[number - 2].is_conv and not layer.is_conv:
            if spec.head == "pool":
                parts.append(("pool", nn.AdaptiveAvgPool2d(1)))
            parts.append(("flatten", nn.Flatten()))
        parts.append((f"layer{number}", affine[number - 1]))
        parts += _norm_and_activation(layer, number, made)
    return parts


def _residual(spec: NetworkSpec, affine: list[nn.Module], made: dict[str, Any]) -> Parts:
    """Norm and activation of layer l are those at the entrance of branch l + 1."""
    assert spec.branch_scale is not None
    parts: Parts = [("flatten", nn.Flatten()), ("layer1", affine[0])]
    for number in range(2, spec.depth):
        before = dict(_norm_and_activation(spec.layers[number - 2], number - 1, made))
        norm, act = before.get(f"norm{number - 1}"), before[f"act{number - 1}"]
        branch = ResidualBranch(norm, act, affine[number - 1], branch_scale=spec.branch_scale)
        parts.append((f"branch{number}", branch))
    if spec.depth > 1:
        parts += _norm_and_activation(spec.layers[-2], spec.depth - 1, made)
        parts.append((f"layer{spec.depth}", affine[-1]))
    return parts


def _norm_and_activation(layer: LayerSpec, number: int, made: dict[str, Any]) -> Parts:
    parts: Parts = []
    if layer.norm is not None:
        parts.append((f"norm{number}", _norm(layer.norm, layer, made)))
    if layer.activation is not None:
        parts.append((f"act{number}", activation_module(layer.activation)))
    return parts


def _affine(spec: NetworkSpec, number: int, seed: int, made: dict[str, Any]) -> nn.Module:
    layer, inputs = spec.layers[number - 1], spec.fan_ins[number - 1]
    affine: nn.Linear | nn.Conv2d
    if layer.kernel is None:
        affine = undrawn(nn.Linear, inputs, layer.outputs, **made)
    else:
        sizes = (spec.widths[number - 1], layer.outputs, layer.kernel)
        affine = undrawn(nn.Conv2d, *sizes, stride=layer.stride, padding=layer.padding, **made)
    weight = torch.empty(affine.weight.shape, dtype=torch.float64)
    bias = torch.empty(layer.outputs, dtype=torch.float64)
    generator = torch.Generator().manual_seed(child_seed(seed, "build", number))
    gaussian(layer.weight_variance, layer.bias_variance)(weight, bias, generator)
    assert affine.bias is not None
    with torch.no_grad():
        affine.weight.copy_(weight)
        affine.bias.copy_(bias)
    return affine


def _norm(norm: NormSpec, layer: LayerSpec, made: dict[str, Any]) -> nn.Module:
    options = {"parts": norm.parts, "gamma": norm.gamma, "eps": norm.eps, **made}
    if norm.kind == "batch":
        return BatchNorm(layer.outputs, **options)
    if layer.is_conv:
        return GroupNorm(1, layer.outputs, **options)
    return LayerNorm(layer.outputs, **options)


def _last_norm(spec: NetworkSpec, made: dict[str, Any]) -> nn.Module:
    kind = LayerNorm if spec.last_norm == "layer" else BatchNorm
    parts = (spec.last_norm,) if spec.last_norm in ("mean", "variance") else ("mean", "variance")
    return kind(spec.outputs, parts=parts, eps=0.0, **made)
