"""Histograms of values that come in batches, with bins that fit themselves to the data.

The bins of a channel first span what the first batch holds. When a later value lies outside,
pairs of neighbouring bins are joined, which doubles the span, until it is inside: no value is ever
left out, none is counted in a wrong bin, and at least half of the bins span the data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.results.histograms import Histograms

NARROWEST = 2.0**-18  # span over magnitude of a channel that is constant
MOST_BINS = 100_000


def checked_bins(bins: int) -> int:
    """``bins`` if it is 0 (no histograms) or an even number."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 0 or bins % 2:
        raise InputError(
            f"histogram is the number of bins of each channel: even, since bins are joined in "
            f"pairs, or 0 for none. Got {bins!r}."
        )
    return checked_count(bins, "histogram", least=0, most=MOST_BINS)


class StreamedHistograms:
    """Counts of each channel.

    Args:
        bins: number of bins for each channel, even.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._lowest = self._width = torch.zeros(0, dtype=torch.float64)
        self._counts = torch.zeros(0, 0, dtype=torch.int64)

    def add(self, maps: Tensor, low: Tensor, high: Tensor) -> None:
        """Take in maps (samples, channels, positions), which span ``low`` to ``high``."""
        low, high = low.double().cpu(), high.double().cpu()
        if not len(self._lowest):
            self._begin(low, high)
        while bool((outside := (low < self._lowest) | (high > self._end)).any()):
            self._join(outside, low < self._lowest)
        self._counts += self._counted(maps)

    @property
    def _end(self) -> Tensor:
        return self._lowest + self._bins * self._width

    def _begin(self, low: Tensor, high: Tensor) -> None:
        magnitude = torch.maximum(low.abs(), high.abs())
        least = torch.where(magnitude > 0, magnitude * NARROWEST, torch.ones_like(magnitude))
        span = torch.maximum(high - low, least)
        # An end that rounding puts a hair beyond a value would join all bins at once.
        self._lowest = (low + high - span) / 2 - span * 1e-6
        self._width = span * (1 + 2e-6) / self._bins
        self._counts = torch.zeros(len(low), self._bins, dtype=torch.int64)

    def _join(self, channels: Tensor, downwards: Tensor) -> None:
        """Double the bins of some channels, and make room below or above."""
        half = self._bins // 2
        joined = self._counts.reshape(-1, half, 2).sum(2)
        room = torch.zeros_like(joined)
        above, below = torch.cat([joined, room], 1), torch.cat([room, joined], 1)
        grown = torch.where(downwards[:, None], below, above)
        self._counts = torch.where(channels[:, None], grown, self._counts)
        step = torch.where(channels & downwards, self._bins * self._width, 0.0)
        self._lowest = self._lowest - step
        self._width = torch.where(channels, 2 * self._width, self._width)

    def _counted(self, maps: Tensor) -> Tensor:
        channels = maps.shape[1]
        lowest, width = (v.to(maps)[:, None] for v in (self._lowest, self._width))
        places = maps.sub(lowest).div_(width).clamp_(0, self._bins - 1).long()
        places += torch.arange(channels, device=maps.device)[:, None] * self._bins
        found = torch.bincount(places.flatten(), minlength=channels * self._bins)
        return found.cpu().reshape(channels, self._bins)

    def result(self) -> Histograms:
        """The counts so far."""
        return Histograms(
            self._lowest.numpy().copy(), self._width.numpy().copy(), self._counts.numpy().copy()
        )
