"""What the norms over a channel's values share: parts, scale and shift, the arithmetic.

Every formula is written in elementary operations, so that every order and every composition of
derivatives is right; torch's fused kernels are not (``jvp`` of ``jacrev``, ``grad`` of ``jvp``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from normscope.checks import checked_count, checked_list
from normscope.errors import InputError
from normscope.registry import check_choice
from normscope.spec.norms import PARTS

__all__ = [
    "PARTS",
    "ChannelNorm",
    "Deviation",
    "checked_parts",
    "inside_transform",
    "inverse_deviation",
    "wide",
]

Deviation = Literal["centred", "rms"]
DEVIATIONS = ("centred", "rms")


class ChannelNorm(nn.Module):
    r"""Abstract: standardize each channel with a mean and a variance that a subclass provides.

    .. math:: y = \gamma\,\frac{x - [\mu]}{[\sqrt{\sigma^2 + \epsilon}]} + [\beta]

    Inputs are ``(batch, channel, *space)``, or ``(batch, *space, channel)`` with
    ``channel_axis=-1``. Each bracket is present if its part is on. The
    variance is about the mean, also where the mean is not subtracted; ``deviation="rms"`` then
    divides by the root mean square instead. With no part on the layer is the identity.

    Attributes:
        num_features: number of channels.
        parts: those of mean, variance, scale and shift that are on.
        deviation: what the variance is about.
        eps: added to the variance; 0 is allowed: a channel that is constant (to rounding) over
            its batch then comes out as zero before the shift.
        channel_axis: 1 or -1.
        gain: the constant gamma where there is no learnable scale.
        weight: gamma, or None.
        bias: beta, or None.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        parts: Sequence[str],
        deviation: str,
        eps: float,
        gamma: float,
        channel_axis: int,
        device: Any,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.num_features = checked_count(num_features, "num_features")
        self.parts = checked_parts(parts)
        check_choice("deviation", deviation, DEVIATIONS)
        self.deviation = deviation
        self.eps = checked_eps(eps)
        self.gain = checked_gamma(gamma)
        if channel_axis not in (1, -1):
            raise InputError(f"channel_axis is 1 or -1 (the last). Got {channel_axis!r}.")
        self.channel_axis = channel_axis
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise InputError(f"dtype must be a torch.dtype such as torch.float32. Got {dtype!r}.")
        for name, part, value in (("weight", "scale", self.gain), ("bias", "shift", 0.0)):
            made = torch.full((num_features,), value, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(made) if part in self.parts else None)

    @property
    def needs_statistics(self) -> bool:
        """False for the identity and for scale and shift alone."""
        return "mean" in self.parts or "variance" in self.parts

    @property
    def centred(self) -> bool:
        """True if the variance is about the mean; without subtraction rms is about zero."""
        return self.deviation == "centred" or "mean" in self.parts

    def moments(self, x: Tensor, piece: int | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (or mean square) of each channel of ``x``, biased: (channels,) each.

        With ``piece``, of every so many consecutive samples: (pieces, channels) each.
        """
        x = wide(x)

        def averaged(values: Tensor) -> Tensor:
            channel = self.channel_axis % values.ndim
            if piece is None:
                return values.mean([axis for axis in range(values.ndim) if axis != channel])
            values = values.movedim(channel, 1)
            values = values.reshape(-1, piece, *values.shape[1:])
            return values.mean([axis for axis in range(values.ndim) if axis not in (0, 2)])

        mean = averaged(x)
        if not self.centred:
            return mean, averaged(x.square())
        return mean, averaged((x - self._along_channels(mean, x)).square())

    def normalize(self, x: Tensor, *statistics: Tensor) -> Tensor:
        """The layer's output, given the mean and the variance of each channel."""
        y = wide(x)
        factor: Tensor | None = None
        if self.needs_statistics:
            mean, variance = statistics
            if "mean" in self.parts:
                y = y - self._along_channels(mean, x)
            if "variance" in self.parts:
                factor = inverse_deviation(variance, mean if self.centred else None, eps=self.eps)
        if self.weight is not None:
            factor = self.weight if factor is None else factor * self.weight
        elif self.gain != 1.0:
            y = y * self.gain
        if factor is not None:
            y = y * self._along_channels(factor, x)
        if self.bias is not None:
            y = y + self._along_channels(self.bias, x)
        return y.to(x.dtype)

    def _along_channels(self, values: Tensor, x: Tensor) -> Tensor:
        several = values.ndim > 1  # a row per piece of the batch
        values = values.repeat_interleave(len(x) // len(values), 0) if several else values[None]
        space = [1] * (x.ndim - 2)
        shape = (*space, -1) if self.channel_axis == -1 else (-1, *space)
        return values.view(len(values), *shape)

    def check_input(self, x: Tensor) -> None:
        """Refuse what has no channel axis of the right size."""
        if x.ndim < 2 or x.shape[self.channel_axis] != self.num_features:
            raise InputError(
                f"{type(self).__name__} normalizes {self.num_features} channels on axis "
                f"{self.channel_axis} of its input. Got an input of shape {tuple(x.shape)}. Build "
                "it for the size of that axis, or flatten the input first."
            )

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        parts = "" if self.parts == PARTS else f", parts={self.parts}"
        deviation = "" if self.deviation == "centred" else f", deviation={self.deviation!r}"
        axis = "" if self.channel_axis == 1 else ", channel_axis=-1"
        return f"{self.num_features}, eps={self.eps}{parts}{deviation}{axis}"


def inverse_deviation(variance: Tensor, mean: Tensor | None, *, eps: float) -> Tensor:
    """1 / sqrt(variance + eps); for eps = 0, zero where a channel is constant to rounding.

    The limit eps to 0 of a standardized constant is 0. Rounding leaves a constant c a variance
    of some (machine epsilon x c)^2, so the bar is there and not at zero.
    """
    if eps > 0:
        return torch.rsqrt(variance + eps)
    bar = torch.zeros_like(variance)
    if mean is not None:
        bar = (8 * torch.finfo(variance.dtype).eps * mean.detach()).square()
    constant = variance.detach() <= bar
    return torch.rsqrt(torch.where(constant, 1.0, variance)) * (~constant)


def wide(x: Tensor) -> Tensor:
    """Half precision in float32, in which statistics have to be computed; others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def inside_transform() -> bool:
    """True inside grad, jvp, vmap and so on, where writing to a buffer is refused by torch."""
    return torch._C._are_functorch_transforms_active()


def checked_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """The parts in their fixed order; an unknown one is an error."""
    named = (parts,) if isinstance(parts, str) else checked_list(parts, "parts")
    for part in named:
        check_choice("norm part", part, PARTS)
    return tuple(part for part in PARTS if part in named)


def checked_eps(eps: float) -> float:
    """A finite eps >= 0."""
    if not (isinstance(eps, int | float) and math.isfinite(eps) and eps >= 0):
        raise InputError(
            f"eps must be a finite number, not negative. Got {eps!r}. It is added to the variance."
        )
    return float(eps)


def checked_gamma(gamma: float) -> float:
    """Check that gamma is finite and return it."""
    if not (isinstance(gamma, int | float) and math.isfinite(gamma)):
        raise InputError(f"gamma must be a finite number. Got {gamma!r}.")
    return float(gamma)
