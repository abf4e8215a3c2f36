"""Squares and overlaps of signals: one sample with itself, and with the others of its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace

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
        singles: h(s).h(t) of single pairs of samples, (0, 1), (2, 3), ...
        across: the same of h_a.h_b at different positions a, b of a feature map, averaged over
            them; None with one position.
    """

    own: Tensor
    pair: Tensor
    unit_own: Tensor
    unit_pair: Tensor
    singles: Tensor
    across: Overlaps | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, rows: Tensor, num_pairs: int = 0) -> Overlaps:
        """Of a signal as (samples, positions, channels)."""
        rows, places = rows.double(), rows.shape[1]
        found = cls._plain(rows, num_pairs)
        if places == 1:
            return found
        # sum_ab h_a.h_b is of the sum over positions; without a = b, the different ones are left
        whole = cls._plain(rows.sum(1, keepdim=True), num_pairs)
        pairs = zip(whole._numbers(), found._numbers(), strict=True)
        return replace(
            found, across=cls(*((w - places * f) / (places * (places - 1)) for w, f in pairs))
        )

    def _numbers(self) -> list[Tensor]:
        return [getattr(self, f.name) for f in fields(self) if f.name != "across"]

    @classmethod
    def _plain(cls, rows: Tensor, num_pairs: int) -> Overlaps:
        others = max(len(rows) - 1, 1)
        flat = rows.flatten(1)
        own = flat.square().mean(1)
        pair = (flat @ flat.sum(0) / flat.shape[1] - own) / others
        unit_own = rows.square().mean((0, 1))
        summed = rows.sum(0).square().mean(0) / len(rows)
        singles = (flat[0 : 2 * num_pairs : 2] * flat[1 : 2 * num_pairs : 2]).mean(1)
        return cls(own, pair, unit_own, (summed - unit_own) / others, singles)

    @classmethod
    def coupled(cls, equal: Overlaps, signed: Overlaps) -> Overlaps:
        """Where every sample's output depends on all samples of the batch.

        ``signed`` is of sum_t r_t d f(t)/du with random signs r, so that its mean square is that
        of one output; ``equal`` has all r = 1 and adds the pairs of different outputs. Single
        pairs would take a pass each: NaN.
        """
        others = max(len(equal.own) - 1, 1)
        pair = (equal.own - signed.own) / others
        unit_pair = (equal.unit_own - signed.unit_own) / others
        across = None
        if equal.across is not None and signed.across is not None:
            across = cls.coupled(equal.across, signed.across)
        singles = torch.full_like(equal.singles, math.nan)
        return cls(signed.own, pair, signed.unit_own, unit_pair, singles, across=across)

    @classmethod
    def mean(cls, several: list[Overlaps]) -> Overlaps:
        """Entry by entry, over directions of the output."""
        parts = zip(*(o._numbers() for o in several), strict=True)
        found = cls(*(torch.stack(part).mean(0) for part in parts))
        across = [o.across for o in several if o.across is not None]
        return replace(found, across=cls.mean(across)) if across else found


class OverlapMoments:
    """Overlaps merged over batches, with standard errors over samples and units."""

    def __init__(self) -> None:
        self._own, self._pair = ChannelMoments(), ChannelMoments()
        self._units = torch.zeros(0, 2, dtype=torch.float64)
        self._count = 0
        self.singles = torch.zeros(0)  # of the first batch
        self._across: OverlapMoments | None = None

    @property
    def across(self) -> OverlapMoments:
        """Of different positions; without entries if there is one position."""
        return self._across or OverlapMoments()

    def add(self, overlaps: Overlaps) -> None:
        """Take in a batch; a single sample has no pairs."""
        units = torch.stack([overlaps.unit_own, overlaps.unit_pair], 1).cpu()
        size = len(overlaps.own)
        if self._count == 0:
            self.singles = overlaps.singles.cpu()
        if overlaps.across is not None:
            self._across = self._across or OverlapMoments()
            self._across.add(overlaps.across)
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
