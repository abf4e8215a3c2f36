"""Counts of values in bins, one histogram for each channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.record import Record


@dataclass(frozen=True, eq=False, repr=False)
class Histograms(Record):
    """How often values fell into each of equally wide bins; every channel has its own bins."""

    lowest: Array  # (channels,) left edge of the first bin
    width: Array  # (channels,) of each bin
    counts: NDArray[np.int64]  # (channels, bins)

    def edges(self, channel: int = 0) -> Array:
        """The edges of one channel's bins, (bins + 1,)."""
        steps = np.arange(self.counts.shape[1] + 1)
        return self.lowest[channel] + self.width[channel] * steps

    def density(self, channel: int = 0) -> Array:
        """Of one channel: its integral over the bins is 1, (bins,)."""
        counts = self.counts[channel]
        return counts / (counts.sum() * self.width[channel])

    def __repr__(self) -> str:
        return "Histograms({} channels, {} bins)".format(*self.counts.shape)
