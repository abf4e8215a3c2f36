"""Batch norm with each part on or off, fresh, alternating or frozen statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.checks import as_float, checked_count
from normscope.errors import InputError
from normscope.nn.norm.channel import PARTS, ChannelNorm, inside_transform


class BatchNorm(ChannelNorm):
    r"""Batch norm over all axes but the channel's, for inputs of any dimension.

    .. math:: y = \gamma\,\frac{x - [\mu_B]}{[\sqrt{\sigma_B^2 + \epsilon}]} + [\beta]

    With all four parts this is ``torch.nn.BatchNorm1d``/``2d``/``3d``: outputs, derivatives,
    running statistics and the names in the state dict. Running statistics and evaluation mode
    follow the parts: what is not used in training is not used in evaluation.

    Under ``torch.func`` transforms a layer writes nothing: running statistics and the batch
    counter stay as they are, because a transform may run a function any number of times.

    Args:
        num_features: number of channels.
        parts: which of mean, variance, scale and shift are on.
        deviation: ``"centred"``, or ``"rms"``: where the mean is not subtracted, divide by the
            root mean square; the running variance then holds the mean square.
        eps: added to the variance; 0 is allowed.
        momentum: momentum of the running statistics; None averages all batches equally.
        every: fresh statistics every so many training batches; in between, the latest are
            used again as constants (2 is Bjorck's alternating normalization). None: never; the
            running statistics are constants in training too.
        statistics_batch: samples that share statistics: each batch is cut into pieces of so many
            consecutive samples, each normalized by its own statistics, while gradient and update
            are those of the whole batch (ghost batch norm). The running statistics move once a
            batch, by the mean over its pieces; the size of a batch must be a multiple. None: the
            whole batch.
        gamma: initial value of the scale, a constant gain where there is no scale.
        channel_axis: 1, or -1 for channels on the last axis.
        track_running_stats: False keeps none and normalizes by the batch in evaluation too.
        device: device of parameters and buffers.
        dtype: data type of parameters and buffers.

    Example:
        >>> import torch
        >>> y = BatchNorm(3, parts=["mean"])(torch.arange(12.0).view(4, 3))
        >>> y.mean(0).tolist()
        [0.0, 0.0, 0.0]
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    held_mean: Tensor
    held_var: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        parts: Sequence[str] = PARTS,
        deviation: str = "centred",
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        every: int | None = 1,
        statistics_batch: int | None = None,
        gamma: float = 1.0,
        channel_axis: int = 1,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, parts, deviation, eps, gamma, channel_axis, device, dtype)
        self.momentum = _checked_momentum(momentum)
        self.every = None if every is None else checked_count(every, "every")
        self.statistics_batch = statistics_batch
        if statistics_batch is not None:
            self.statistics_batch = checked_count(statistics_batch, "statistics_batch")
            if self.every is not None and self.every > 1:
                raise InputError(
                    f"every={every} keeps the statistics of one batch for the next, but "
                    f"statistics_batch={statistics_batch} has several in one batch. Leave one of "
                    "the two at its default."
                )
        self.track_running_stats = track_running_stats
        if not track_running_stats and self.every != 1:
            raise InputError(
                f"every={every} reuses stored statistics, but track_running_stats=False keeps "
                "none. Leave one of the two at its default."
            )
        self._register_statistics(device, dtype)

    def _register_statistics(self, device: Any, dtype: torch.dtype | None) -> None:
        made = {"device": device, "dtype": dtype}
        names: list[tuple[str, float]] = [("running_mean", 0.0), ("running_var", 1.0)]
        if self.every is not None and self.every > 1:
            names += [("held_mean", 0.0), ("held_var", 1.0)]
        for name, value in names:
            full = torch.full((self.num_features,), value, **made)
            self.register_buffer(name, full if self.track_running_stats else None)
        count = torch.tensor(0, dtype=torch.long, device=device)
        self.register_buffer("num_batches_tracked", count if self.track_running_stats else None)

    def freeze(self) -> BatchNorm:
        """From now on the running statistics are constants in training too; returns the layer."""
        if not self.track_running_stats:
            raise InputError(
                "freeze() needs running statistics to hold, but this layer keeps none "
                "(track_running_stats=False). Train it with running statistics first."
            )
        self.every = None
        return self

    def forget_statistics(self) -> BatchNorm:
        """Keep no running statistics (``track_running_stats=False``); returns the layer."""
        if self.every != 1:
            raise InputError(
                f"This layer reuses stored statistics (every={self.every}), so that it cannot do "
                "without them. Exchange it for a norm that is fresh on every batch."
            )
        self.track_running_stats = False
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, None)
        return self

    def batch_statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance that a training pass over ``x`` uses; () if it needs none.

        One row per piece of the batch if there is a ``statistics_batch``.
        """
        if not self.needs_statistics:
            return ()
        if self.every is None:
            return self._running()
        self._check_batch(x)
        mean, variance = self.moments(x, self.statistics_batch)
        if self.every == 1:
            return mean, variance
        fresh = self._is_fresh()
        return torch.where(fresh, mean, self.held_mean), torch.where(fresh, variance, self.held_var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``x`` and return the result."""
        self.check_input(x)
        if not self.needs_statistics:
            return self.normalize(x)
        if not (self.training or not self.track_running_stats):
            return self.normalize(x, *self._running())
        statistics = self.batch_statistics(x)
        if self.training and self.track_running_stats and not inside_transform():
            self._update(x, *statistics)
        return self.normalize(x, *statistics)

    def extra_repr(self) -> str:
        """The part of the representation that differs from layer to layer."""
        every = "" if self.every == 1 else f", every={self.every}"
        pieces = f", statistics_batch={self.statistics_batch}" if self.statistics_batch else ""
        return f"{super().extra_repr()}, momentum={self.momentum}{every}{pieces}"

    def _running(self) -> tuple[Tensor, Tensor]:
        assert self.running_mean is not None
        assert self.running_var is not None
        return self.running_mean, self.running_var

    def _is_fresh(self) -> Tensor:
        assert self.num_batches_tracked is not None
        assert self.every is not None
        return self.num_batches_tracked % self.every == 0

    @torch.no_grad()
    def _update(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, by fresh statistics only; they never enter a graph."""
        assert self.num_batches_tracked is not None
        if self.every is None:
            return
        mean, variance = mean.detach(), variance.detach()
        count = x.numel() / mean.numel()
        unbiased = variance * (count / (count - 1)) if self.centred else variance
        if mean.ndim > 1:
            mean, unbiased = mean.mean(0), unbiased.mean(0)
        rate: float | Tensor
        if self.momentum is None:
            rate = 1.0 / (self.num_batches_tracked // self.every + 1).to(mean.dtype)
        else:
            rate = self.momentum
        if self.every > 1:
            rate = torch.where(self._is_fresh(), rate, 0.0)
            self.held_mean.copy_(mean)
            self.held_var.copy_(variance)
        for running, value in zip(self._running(), (mean, unbiased), strict=True):
            running.mul_(1 - rate).add_(rate * value)
        self.num_batches_tracked.add_(1)

    def _check_batch(self, x: Tensor) -> None:
        pieces, rest = divmod(len(x), self.statistics_batch or max(len(x), 1))
        if rest:
            raise InputError(
                f"A batch of {len(x)} samples cannot be cut into pieces of statistics_batch="
                f"{self.statistics_batch}, each with statistics of its own. Use a batch size that "
                "is a multiple of it, and drop the last batch of an epoch if that is shorter (fit "
                "takes drop_last=True)."
            )
        if x.numel() // self.num_features < 2 * max(pieces, 1):
            raise InputError(
                "Batch statistics need at least two values per channel. Got an input of shape "
                f"{tuple(x.shape)}: the variance of one value is zero and its mean is the value "
                "itself. Use a larger batch, evaluation mode, or frozen statistics."
            )


def _checked_momentum(momentum: float | None) -> float | None:
    if momentum is not None and not 0 <= as_float(momentum) <= 1:
        raise InputError(
            f"momentum is the weight of the newest batch, from 0 to 1, or None. Got {momentum!r}."
        )
    return momentum
