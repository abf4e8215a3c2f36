"""What can be read off one layer: sizes, variances, norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.record import Record
from normscope.spec import NormSpec
from normscope.subject.norms import norm_card


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
    """Sizes and variances of a linear or convolutional layer, or ``UnreadableError``."""
    if parametrize.is_parametrized(layer, "weight"):  # a look at such a weight may change it
        kinds = ", ".join(type(p).__name__ for p in layer.parametrizations.weight)  # type: ignore[union-attr]
        raise UnreadableError(f"its weights are computed from others ({kinds})")
    weight, bias = layer.weight, layer._parameters["bias"]
    assert isinstance(weight, Tensor)
    kind = "dense" if weight.ndim == 2 else "conv"
    return read_weights(number, name, kind, weight, bias, outputs=weight.shape[0])


def read_weights(
    number: int, name: str, kind: str, weight: Tensor, bias: Tensor | None, *, outputs: int
) -> LayerReading:
    """Sizes and variances of a layer with these weights, stored in whatever order."""
    fan_in = weight.numel() // outputs
    weight_variance = fan_in * _mean_square(weight)
    bias_variance = 0.0 if bias is None else _mean_square(bias)
    return LayerReading(
        number,
        name,
        kind,
        parameters=weight.numel() + (0 if bias is None else bias.numel()),
        outputs=outputs,
        fan_in=fan_in,
        weight_variance=weight_variance,
        weight_error=weight_variance * math.sqrt(2 / weight.numel()),
        bias_variance=bias_variance,
        bias_error=bias_variance * math.sqrt(2 / outputs),
        notes=() if bias is not None else ("no bias",),
    )


def read_convolution(arguments: tuple[Any, ...], weight: Tensor) -> dict[str, int]:
    """Kernel, stride and padding from the arguments of the operation, or ``UnreadableError``."""
    stride, padding, dilation, transposed, _, groups = arguments[-6:]
    if weight.ndim != 4 or transposed:
        kind = "transposed" if transposed else f"{weight.ndim - 2}-d"
        raise UnreadableError(f"specs have dense layers and 2-d convolutions, not {kind} ones")
    pairs = {"kernel": list(weight.shape[2:]), "stride": stride, "padding": padding}
    for what, pair in pairs.items():
        if len(set(pair)) > 1:
            raise UnreadableError(f"specs have square convolutions; its {what} is {pair}")
    if groups != 1 or set(dilation) != {1}:
        raise UnreadableError(f"it has groups = {groups}, dilation = {dilation}; specs: 1")
    return {what: int(pair[0]) for what, pair in pairs.items()}


def read_norm(layer: nn.Module) -> tuple[NormSpec, tuple[str, ...]]:
    """The norm as a spec has it, with notes on what that leaves out, or ``UnreadableError``."""
    card = norm_card(layer)
    if card is None or card.kind not in ("batch", "layer"):
        raise UnreadableError(f"specs have batch and layer norm, not {_kind(layer)}")
    if card.kind == "batch" and not card.formula:
        raise UnreadableError("it does not normalize each batch by its own statistics; specs do")
    if not card.centred and "variance" in card.parts:
        raise UnreadableError("it divides by the root mean square; specs: by the deviation")
    scale, shift, parts = card.gamma(layer), card.beta(layer), card.parts
    gamma, notes = card.gain, []
    if scale is not None:
        gamma *= math.sqrt(_mean_square(scale))
        low, high = float(scale.detach().min()), float(scale.detach().max())
        if high - low > 1e-6 * max(abs(high), abs(low)):
            notes.append(f"gamma varies from {low:.3g} to {high:.3g}; its rms is used")
    elif gamma < 0:
        gamma = -gamma
        notes.append("gamma is negative; its size is used")
    if shift is not None and _mean_square(shift) > 0:
        notes.append(f"beta has rms {math.sqrt(_mean_square(shift)):.3g}; specs take 0")
    if gamma != 1 and "scale" not in parts:
        parts = (*parts, "scale")
        notes.append(f"gamma = {gamma:.3g} is a constant; specs have it as a scale")
    return NormSpec(card.kind, gamma, parts, card.eps or 0.0), tuple(notes)


def _kind(layer: nn.Module) -> str:
    return type(layer).__name__


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.detach().to(torch.float64).square().mean())
