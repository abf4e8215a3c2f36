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

    def bimodality(self) -> Array:
        """Sarle's coefficient (skewness^2 + 1) / kurtosis of each channel, (channels,).

        1/3 for a Gaussian, 5/9 for a uniform distribution, 1 for two points; above 5/9 is the usual
        sign of two modes. A value counts as the middle of its bin; NaN for a constant channel.
        """
        bins = np.arange(self.counts.shape[1])
        share = self.counts / np.maximum(self.counts.sum(1, keepdims=True), 1)
        away = bins - (share * bins).sum(1, keepdims=True)
        second, third, fourth = ((share * away**k).sum(1) for k in (2, 3, 4))
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = (third**2 / second**3 + 1) / (fourth / second**2)
        return found

    def __repr__(self) -> str:
        return "Histograms({} channels, {} bins)".format(*self.counts.shape)
