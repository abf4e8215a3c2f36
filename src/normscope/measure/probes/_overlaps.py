"""Squares and overlaps of signals: one sample with itself, and with the others of its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from normscope.measure.probes.moments import ChannelMoments


@dataclass(frozen=True)
class Overlaps:
    """Of one batch, per entry of the signal (mean over positions and channels).

    Attributes:
        own: h(t).h(t) of each sample, (samples,).
        pair: h(s).h(t) of each sample t, averaged over the others s, (samples,).
        unit_own: the share of each channel in the mean of ``own``, (channels,).
        unit_pair: the same of ``pair``, (channels,).
    """

    own: Tensor
    pair: Tensor
    unit_own: Tensor
    unit_pair: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Overlaps:
        """Of a signal as (samples, positions, channels)."""
        rows = rows.double()
        others = max(len(rows) - 1, 1)
        flat = rows.flatten(1)
        own = flat.square().mean(1)
        pair = (flat @ flat.sum(0) / flat.shape[1] - own) / others
        unit_own = rows.square().mean((0, 1))
        summed = rows.sum(0).square().mean(0) / len(rows)
        return cls(own, pair, unit_own, (summed - unit_own) / others)

    @classmethod
    def coupled(cls, equal: Overlaps, signed: Overlaps) -> Overlaps:
        """Where every sample's output depends on all samples of the batch.

        ``signed`` is of sum_t r_t d f(t)/du with random signs r, so that its mean square is that
        of one output; ``equal`` has all r = 1 and adds the pairs of different outputs.
        """
        others = max(len(equal.own) - 1, 1)
        pair = (equal.own - signed.own) / others
        unit_pair = (equal.unit_own - signed.unit_own) / others
        return cls(signed.own, pair, signed.unit_own, unit_pair)

    @classmethod
    def mean(cls, several: list[Overlaps]) -> Overlaps:
        """Entry by entry, over directions of the output."""
        parts = ([getattr(o, f.name) for o in several] for f in fields(cls))
        return cls(*(torch.stack(part).mean(0) for part in parts))


class OverlapMoments:
    """Overlaps merged over batches, with standard errors over samples and units."""

    def __init__(self) -> None:
        self._own, self._pair = ChannelMoments(), ChannelMoments()
        self._units = torch.zeros(0, 2, dtype=torch.float64)
        self._count = 0

    def add(self, overlaps: Overlaps) -> None:
        """Take in a batch; a single sample has no pairs."""
        units = torch.stack([overlaps.unit_own, overlaps.unit_pair], 1).cpu()
        size = len(overlaps.own)
        self._own.add(overlaps.own[:, None])
        if size > 1:
            self._pair.add(overlaps.pair[:, None])
        self._count += size
        if not len(self._units):
            self._units = torch.zeros_like(units)
        self._units += (units - self._units) * (size / self._count)

    def own(self, *, units: bool = True) -> tuple[float, float]:
        """Mean square and its standard error; ``units`` counts the scatter over units too."""
        return _estimate(self._own, 1.0, self._units[:, 0] if units else None)

    def pair(self, *, units: bool = True) -> tuple[float, float]:
        """Overlap of two samples and its standard error; NaN without pairs."""
        # each sample is in two of the pairs' indices: twice the error of a plain mean
        return _estimate(self._pair, 2.0, self._units[:, 1] if units else None)


def _estimate(samples: ChannelMoments, weight: float, units: Tensor | None) -> tuple[float, float]:
    if samples.count == 0:
        return math.nan, math.nan
    error2 = 0.0
    if samples.count > 1:
        error2 += weight**2 * float(samples.variance) / (samples.count - 1)
    if units is not None and len(units) > 1:
        error2 += float(units.var()) / len(units)
    return float(samples.mean), math.sqrt(error2)
