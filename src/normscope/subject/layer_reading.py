"""What can be read off one layer: sizes, variances, norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.nn.init import fans
from normscope.nn.norm import BatchNorm, GroupNorm, LayerNorm
from normscope.record import Record
from normscope.spec import NormSpec


class UnreadableError(Exception):
    """A layer is outside what a spec can say; the message is the reason."""


@dataclass(frozen=True, eq=False)
class LayerReading(Record):
    """One layer of a described network.

    Attributes:
        number: which affine layer it is, counted from 1; 0 for other layers.
        name: as in ``named_modules()``, or the function's name.
        kind: ``dense``, ``conv``, ``norm`` or what else it is.
        ok: whether it was read.
        reason: why not.
        parameters: numbers in it, its norm included.
        outputs: units or channels.
        fan_in: inputs of one unit.
        weight_variance: fan_in times the mean square of the weights.
        weight_error: standard error of that, for Gaussian weights.
        bias_variance: mean square of the biases.
        bias_error: standard error of that.
        norm: the kind of norm behind it.
        gamma: root mean square of the norm's scale.
        activation: name of the activation behind it.
        notes: what the numbers leave out.
    """

    number: int
    name: str
    kind: str
    ok: bool = True
    reason: str | None = None
    parameters: int = 0
    outputs: int | None = None
    fan_in: int | None = None
    weight_variance: float | None = None
    weight_error: float | None = None
    bias_variance: float | None = None
    bias_error: float | None = None
    norm: str | None = None
    gamma: float | None = None
    activation: str | None = None
    notes: tuple[str, ...] = ()


def read_affine(number: int, name: str, layer: nn.Module) -> LayerReading:
    """Sizes and variances of a linear or 2-d convolutional layer, or ``UnreadableError``."""
    if parametrize.is_parametrized(layer, "weight"):  # a look at such a weight may change it
        kinds = ", ".join(type(p).__name__ for p in layer.parametrizations.weight)  # type: ignore[union-attr]
        raise UnreadableError(f"its weights are computed from others ({kinds})")
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Conv2d):
        _check_conv(layer)
    elif not isinstance(layer, nn.Linear):
        raise UnreadableError(f"specs have dense layers and 2-d convolutions, not {_kind(layer)}")
    fan_in = fans(weight)[0]
    weight_variance = fan_in * _mean_square(weight)
    bias_variance = 0.0 if not isinstance(bias, Tensor) else _mean_square(bias)
    return LayerReading(
        number,
        name,
        "conv" if isinstance(layer, nn.Conv2d) else "dense",
        parameters=sum(p.numel() for p in layer.parameters()),
        outputs=weight.shape[0],
        fan_in=fan_in,
        weight_variance=weight_variance,
        weight_error=weight_variance * math.sqrt(2 / weight.numel()),
        bias_variance=bias_variance,
        bias_error=bias_variance * math.sqrt(2 / weight.shape[0]),
        notes=() if isinstance(bias, Tensor) else ("no bias",),
    )


def _check_conv(layer: nn.Conv2d) -> None:
    pairs = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    for what, pair in pairs.items():
        if isinstance(pair, str) or len(set(pair)) > 1:
            raise UnreadableError(f"specs have square convolutions; its {what} is {pair}")
    if layer.groups != 1 or set(layer.dilation) != {1}:
        raise UnreadableError(
            f"it has groups = {layer.groups}, dilation = {layer.dilation}; specs: 1"
        )
    if layer.padding_mode != "zeros":
        raise UnreadableError(f"it is padded by {layer.padding_mode!r}; specs pad with zeros")


def read_norm(layer: nn.Module) -> tuple[NormSpec, tuple[str, ...]]:
    """The norm as a spec has it, with notes on what that leaves out, or ``UnreadableError``."""
    kind = _norm_kind(layer)
    scale, shift = layer.weight, layer.bias
    gamma, notes = float(getattr(layer, "gain", 1.0)), []
    if isinstance(scale, Tensor):
        gamma = math.sqrt(_mean_square(scale))
        low, high = float(scale.detach().min()), float(scale.detach().max())
        if high - low > 1e-6 * max(abs(high), abs(low)):
            notes.append(f"gamma varies from {low:.3g} to {high:.3g}; its rms is used")
    elif gamma < 0:
        gamma = -gamma
        notes.append("gamma is negative; its size is used")
    if isinstance(shift, Tensor) and _mean_square(shift) > 0:
        notes.append(f"beta has rms {math.sqrt(_mean_square(shift)):.3g}; specs take 0")
    parts = getattr(layer, "parts", None)
    if parts is None:
        affine = zip(("scale", "shift"), (scale, shift), strict=True)
        parts = ("mean", "variance", *(part for part, p in affine if p is not None))
    if gamma != 1 and "scale" not in parts:
        parts = (*parts, "scale")
        notes.append(f"gamma = {gamma:.3g} is a constant; specs have it as a scale")
    eps = getattr(layer, "eps", 0.0)
    return NormSpec(kind, gamma, parts, float(eps)), tuple(notes)


def _norm_kind(layer: nn.Module) -> str:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        return "batch"
    if isinstance(layer, BatchNorm):
        if layer.every != 1:
            raise UnreadableError(
                f"its statistics are fresh every {layer.every} batches; specs: each"
            )
        if not layer.centred and "variance" in layer.parts:
            raise UnreadableError("it divides by the root mean square; specs: by the deviation")
        return "batch"
    if isinstance(layer, nn.LayerNorm | LayerNorm):
        return "layer"
    if isinstance(layer, nn.GroupNorm | GroupNorm) and layer.num_groups == 1:
        return "layer"
    raise UnreadableError(f"specs have batch and layer norm, not {_kind(layer)}")


def _kind(layer: nn.Module) -> str:
    return type(layer).__name__


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.detach().to(torch.float64).square().mean())
