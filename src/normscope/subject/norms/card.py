"""What a normalization layer does, and how to call it as a function."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class NormCard:
    """One normalization layer.

    Attributes:
        kind: ``batch``, ``layer``, ``rms``, ``group``, ``instance``, ``population``,
            ``frn``, ``response`` or the name that was registered.
        channels: length of the channel axis; 0 if it is not known, or if there are several.
        channel_axis: 1 or -1, where the channels are.
        kept: what has statistics of its own: each ``sample``, ``channel``, ``position``.
        parts: those of mean, variance, scale and shift that it has.
        centred: whether its variance is about the mean.
        groups: groups of channels, where each has statistics of its own.
        scale: name of the parameter of gamma; None without one.
        shift: name of the parameter of beta; None without one.
        offset: gamma is the parameter plus this; 1 for layers that multiply by 1 + weight.
        gain: a constant factor beside gamma.
        eps: added to the variance; None if it is not known, or the machine epsilon of the input.
        stored: names of the buffers of mean and variance that evaluation mode uses, if any.
        over_batch: whether samples are coupled in train mode.
        always: whether they are in evaluation mode too.
        statistics_batch: samples that share statistics over the batch; None: all of a batch.
        formula: whether in train mode the output is
            ``gain gamma (x - mean) / sqrt(variance + eps) + beta``, as far as its parts go, with
            statistics of this very batch.
        plain: whether the layer does nothing else, such as an activation.
    """

    kind: str
    channels: int = 0
    channel_axis: int = 1
    kept: tuple[str, ...] = ("sample",)
    parts: tuple[str, ...] = ("mean", "variance")
    centred: bool = True
    groups: int = 1
    scale: str | None = None
    shift: str | None = None
    offset: float = 0.0
    gain: float = 1.0
    eps: float | None = None
    stored: tuple[str, str] | None = None
    over_batch: bool = False
    always: bool = False
    statistics_batch: int | None = None
    formula: bool = False
    plain: bool = True

    def gamma(self, layer: nn.Module) -> Tensor | None:
        """The scale, without the gain: the parameter itself if it is a vector."""
        found = self._vector(layer, self.scale)
        return found + self.offset if found is not None and self.offset else found

    def beta(self, layer: nn.Module) -> Tensor | None:
        """The shift added after normalizing, beta."""
        return self._vector(layer, self.shift)

    def _vector(self, layer: nn.Module, name: str | None) -> Tensor | None:
        found: Tensor | None = None if name is None else attrgetter(name)(layer)
        flat = found is None or found.ndim < 2 or found.numel() != self.channels
        return found if flat or found is None else found.flatten()

    def stored_statistics(self, layer: nn.Module) -> tuple[Tensor, Tensor] | None:
        """Mean and variance that the layer keeps for evaluation, or None."""
        if self.stored is None:
            return None
        mean, variance = (attrgetter(name)(layer) for name in self.stored)
        return mean, variance

    def batch_statistics(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        """What a norm over the batch computes from ``x``; the layer's own method comes first."""
        own = getattr(layer, "batch_statistics", None)
        if own is not None:
            return tuple(own(x))
        x = x.movedim(self.channel_axis, 1)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        if not self.centred:
            return (x.new_zeros(x.shape[1]), x.square().mean(axes))
        return x.mean(axes), x.var(axes, unbiased=False)

    def normalize(self, layer: nn.Module, x: Tensor, *statistics: Tensor) -> Tensor:
        """The output of a norm over the batch, given its statistics."""
        own = getattr(layer, "normalize", None)
        if own is not None:
            out: Tensor = own(x, *statistics)
            return out
        mean, variance = statistics
        gamma, beta = self.gamma(layer), self.beta(layer)
        x = x.movedim(self.channel_axis, 1)
        y = functional.batch_norm(x, mean, variance, gamma, beta, False, 0.0, self.eps or 0.0)
        return y.movedim(1, self.channel_axis)
