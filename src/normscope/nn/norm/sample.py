"""Norms over the features of one sample: layer, group and RMS norm, in elementary operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.nn.norm.channel import (
    PARTS,
    checked_eps,
    checked_gamma,
    checked_parts,
    inverse_deviation,
    wide,
)


class _SampleNorm(nn.Module):
    """What norms over a sample share: their parts, their gain and their parameters."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def _prepare(
        self, shape: tuple[int, ...], parts: Sequence[str], gamma: float, **made: Any
    ) -> None:
        self.parts = checked_parts(parts)
        self.gain = checked_gamma(gamma)
        for name, part, value in (("weight", "scale", self.gain), ("bias", "shift", 0.0)):
            full = torch.full(shape, value, **made)
            self.register_parameter(name, nn.Parameter(full) if part in self.parts else None)

    def _affine(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if weight is not None:
            y = y * weight
        elif self.gain != 1.0:
            y = y * self.gain
        return y if bias is None else y + bias

    def _standardized(self, y: Tensor, axes: int | list[int], *, eps: float) -> Tensor:
        """``y`` less its mean over ``axes``, divided by its deviation, as far as the parts go."""
        mean = y.mean(axes, keepdim=True)
        centred = y - mean
        if "mean" in self.parts:
            y = centred
        if "variance" in self.parts:
            variance = centred.square().mean(axes, keepdim=True)
            y = y * inverse_deviation(variance, mean, eps=eps)
        return y


class LayerNorm(_SampleNorm):
    r"""Layer norm over the last axes of the input, with each part on or off.

    .. math:: y = \gamma\,\frac{x - [\mu]}{[\sqrt{\sigma^2 + \epsilon}]} + [\beta]

    With all four parts this is ``torch.nn.LayerNorm``, derivatives of every order included.

    Args:
        normalized_shape: sizes of the last axes, or one size.
        parts: which of mean, variance, scale and shift are on; the variance is about the mean.
        eps: added to the variance; 0 is allowed.
        gamma: initial value of the scale, a constant gain where there is no scale.
        device: device of the parameters.
        dtype: data type of the parameters.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        parts: Sequence[str] = PARTS,
        eps: float = 1e-5,
        gamma: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = checked_eps(eps)
        self._prepare(self.normalized_shape, parts, gamma, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        _check_last_axes(self, x)
        axes = list(range(x.ndim - len(self.normalized_shape), x.ndim))
        y = self._standardized(wide(x), axes, eps=self.eps)
        return self._affine(y, self.weight, self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        parts = "" if self.parts == PARTS else f", parts={self.parts}"
        return f"{self.normalized_shape}, eps={self.eps}{parts}"


class GroupNorm(_SampleNorm):
    """Group norm of ``(batch, channel, *space)``: statistics of one sample's group of channels.

    One group is layer norm of a feature map, with scale and shift per channel; on
    ``(batch, channel)`` it is ``LayerNorm``. With all four parts this is ``torch.nn.GroupNorm``.

    Args:
        num_groups: number of groups; divides the number of channels.
        num_channels: number of channels.
        parts: which of mean, variance, scale and shift are on; the variance is about the mean.
        eps: added to the variance; 0 is allowed.
        gamma: initial value of the scale, a constant gain where there is no scale.
        device: device of the parameters.
        dtype: data type of the parameters.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        *,
        parts: Sequence[str] = PARTS,
        eps: float = 1e-5,
        gamma: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_groups = checked_count(num_groups, "num_groups")
        self.num_channels = checked_count(num_channels, "num_channels")
        if num_channels % num_groups:
            raise InputError(
                f"{num_channels} channels cannot be split into {num_groups} equal groups. Choose a "
                "divisor of the number of channels."
            )
        self.eps = checked_eps(eps)
        self._prepare((num_channels,), parts, gamma, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise InputError(
                f"GroupNorm normalizes {self.num_channels} channels of inputs of shape (batch, "
                f"channel, *space). Got an input of shape {tuple(x.shape)}."
            )
        y = wide(x).reshape(x.shape[0], self.num_groups, -1)
        y = self._standardized(y, 2, eps=self.eps).reshape(x.shape)
        shape = (1, -1, *[1] * (x.ndim - 2))
        weight, bias = (None if p is None else p.view(shape) for p in (self.weight, self.bias))
        return self._affine(y, weight, bias).to(x.dtype)

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        parts = "" if self.parts == PARTS else f", parts={self.parts}"
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}{parts}"


class RMSNorm(_SampleNorm):
    r"""Division by the root mean square over the last axes: y = gamma x / sqrt(mean x^2 + eps).

    This is ``torch.nn.RMSNorm`` in elementary operations.

    Args:
        normalized_shape: sizes of the last axes, or one size.
        eps: added to the mean square; None is the machine epsilon of the input, as in torch.
        scale: whether there is a learnable gamma.
        gamma: initial value of the scale, a constant gain where there is no scale.
        channels_first: normalize axis 1 of ``(batch, channel, *space)``, position by position,
            in place of the last axes.
        device: device of the parameters.
        dtype: data type of the parameters.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        *,
        eps: float | None = None,
        scale: bool = True,
        gamma: float = 1.0,
        channels_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        if channels_first and len(self.normalized_shape) != 1:
            raise InputError(
                "channels_first normalizes one axis, the channels. Got normalized_shape = "
                f"{self.normalized_shape}."
            )
        self.channels_first = channels_first
        self.eps = None if eps is None else checked_eps(eps)
        parts = ("scale",) if scale else ()
        self._prepare(self.normalized_shape, parts, gamma, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        y = wide(x.movedim(1, -1)) if self.channels_first and x.ndim > 1 else wide(x)
        _check_last_axes(self, y)
        axes = list(range(y.ndim - len(self.normalized_shape), y.ndim))
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        square = y.square().mean(axes, keepdim=True)
        y = self._affine(y * inverse_deviation(square, None, eps=eps), self.weight, None)
        return (y.movedim(-1, 1) if self.channels_first else y).to(x.dtype)

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        return f"{self.normalized_shape}, eps={self.eps}"


class FilterResponseNorm(_SampleNorm):
    r"""Each channel of a sample divided by its root mean square over the positions.

    .. math:: y = \gamma\,\frac{x}{\sqrt{\overline{x^2} + \epsilon}} + \beta

    Singh and Krishnan (2020), without their thresholded unit.

    Args:
        num_features: number of channels.
        eps: added to the mean square; 0 is allowed.
        gamma: initial value of the scale.
        channel_axis: 1, or -1 for channels on the last axis.
        device: device of the parameters.
        dtype: data type of the parameters.
    """

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-6,
        gamma: float = 1.0,
        channel_axis: int = 1,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = checked_count(num_features, "num_features")
        self.eps = checked_eps(eps)
        self.channel_axis = channel_axis
        self._prepare((num_features,), ("scale", "shift"), gamma, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        if x.ndim < 3 or x.shape[self.channel_axis] != self.num_features:
            raise InputError(
                f"FilterResponseNorm normalizes {self.num_features} channels on axis "
                f"{self.channel_axis} over the positions. Got an input of shape {tuple(x.shape)}."
            )
        y = wide(x.movedim(self.channel_axis, -1))
        square = y.square().mean(list(range(1, y.ndim - 1)), keepdim=True)
        y = self._affine(y * inverse_deviation(square, None, eps=self.eps), self.weight, self.bias)
        return y.movedim(-1, self.channel_axis).to(x.dtype)

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        return f"{self.num_features}, eps={self.eps}"


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not sizes:
        raise InputError("normalized_shape needs at least one axis. Got an empty shape.")
    return tuple(checked_count(size, "normalized_shape") for size in sizes)


def _check_last_axes(layer: LayerNorm | RMSNorm, x: Tensor) -> None:
    count = len(layer.normalized_shape)
    if x.ndim < count or tuple(x.shape[x.ndim - count :]) != layer.normalized_shape:
        raise InputError(
            f"{type(layer).__name__} normalizes the last axes {layer.normalized_shape}. Got an "
            f"input of shape {tuple(x.shape)}. For feature maps use GroupNorm with one group."
        )
