"""Numbers of one layer's gradient, averaged over batches."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normscope.measure.probes import _gradient_numbers as figures
from normscope.measure.probes._alignment import alignment_terms, single_terms, weight_gradient
from normscope.measure.probes._histograms import StreamedHistograms
from normscope.measure.probes.moments import ChannelMoments
from normscope.measure.probes.probe import SkipLayer
from normscope.measure.probes.sites import Site
from normscope.results.gradients import LayerGradients

BINS = 64
ROUNDING = 8.0  # machine epsilons of the size of a signal, within which its means are equal
KEPT = 2**18  # entries of the largest channel matrix that is kept


class ChannelMean(NamedTuple):
    """Means of the channels of a signal, and what rounding makes of equal ones."""

    values: Tensor
    rounding: float

    @classmethod
    def of(cls, site: Site, x: Tensor) -> ChannelMean:
        """Of a signal that ``site`` takes or gives."""
        rows = site.rows(x)
        size = float(torch.linalg.vector_norm(rows.detach(), dtype=torch.float64))
        noise = ROUNDING * torch.finfo(x.dtype).eps * size / math.sqrt(max(rows.numel(), 1))
        return cls(rows.mean(1).double().mean(0), noise)


class LayerSums:
    """What is kept of one site.

    Attributes:
        site: where; as it was in the latest pass.
        seen: batches in which a gradient came.
    """

    def __init__(self, site: Site, summand: str | tuple[int, ...] = "largest") -> None:
        self.site = site
        self._choice = summand
        self._signs: Any = np.zeros(2)  # terms above and below zero
        self._term_moments = ChannelMoments()
        self.seen = 0
        self._sums: dict[str, Any] = {}
        self._shape: tuple[int, ...] = ()
        self._source = ""
        self._terms: Any = None
        self._entries = StreamedHistograms(BINS)
        self._summand: tuple[int, ...] = ()
        self._summands = StreamedHistograms(BINS)
        self._norm: str | None = None
        self._channels: Any = 0.0

    def add(
        self, x: Tensor, g: Tensor, mean: ChannelMean, source: str, *, samples: int,
        with_terms: bool,
    ) -> None:  # fmt: skip
        """One batch of ``samples``: input, gradient of the output, means of the in-channels."""
        absolute = None
        if with_terms:
            terms = alignment_terms(self.site, x, g)
            total, absolute = terms.total, terms.absolute
            numbers = figures.term_numbers(terms)
            if len(self.site.rows(g)) != samples:  # samples and positions on one axis
                numbers |= {"t2": math.nan, "t3": math.nan}
            self._collect(numbers)
            self._terms = figures.sampled_terms(terms) if self._terms is None else self._terms
        else:
            total, _ = weight_gradient(self.site, x, g)
        self.seen += 1
        self._shape, self._source = tuple(total.shape), source
        self._collect(figures.entry_numbers(total))
        self._add_channels(total, mean)
        _add_values(self._entries, total)
        self._summand = self._summand or self._chosen(total, absolute)
        self._add_summands(single_terms(self.site, x, g, self._summand))
        if self._norm is None:
            self._channels = self._channels + _channel_sums(self.site, g)

    def add_contributions(self, x: Tensor, weight: Tensor) -> None:
        """How much each in-channel of input ``x`` adds to the output, of one batch."""
        weight = (weight.T if self.site.transposed else weight).detach()
        if tuple(weight.shape) == self._shape:
            found = figures.in_channel_contribution(self.site, x, weight)
            self._collect({"in_contribution": found.cpu().numpy()})

    def add_whole(self, total: Tensor) -> None:
        """One batch, of which only the gradient of the weight is known."""
        self.seen += 1
        self._shape = tuple(total.shape)
        self._collect(figures.entry_numbers(total))
        if total.ndim == 2:
            self._collect(figures.channel_matrix_numbers(total, total.abs().double(), 1))
        _add_values(self._entries, total)

    def add_channels(self, g: Tensor, norm: Site) -> None:
        """The gradient behind the norm that follows: that of its shift."""
        if self._norm is None:
            self._norm, self._channels = norm.name, 0.0
        self._channels = self._channels + _channel_sums(norm, g)

    def _chosen(self, total: Tensor, absolute: Tensor | None) -> tuple[int, ...]:
        """The weight whose terms are kept; one without any term says nothing."""
        if not isinstance(self._choice, str):
            fits = len(self._choice) == total.ndim
            if not fits or any(not 0 <= i < n for i, n in zip(self._choice, total.shape)):  # noqa: B905
                raise SkipLayer(
                    f"summand={self._choice} is no place in its weight, of shape "
                    f"{tuple(total.shape)}"
                )
            return self._choice
        size = total.abs().double()
        dead = (size if absolute is None else absolute) == 0
        if self._choice == "smallest":
            rank = -size.masked_fill(dead, math.inf)
        elif self._choice == "aligned" and absolute is not None:
            rank = (size / absolute).masked_fill(dead, 0.0)
        else:
            rank = size
        place = np.unravel_index(int(rank.argmax()), tuple(total.shape))
        return tuple(int(i) for i in place)

    def _add_summands(self, terms: Tensor) -> None:
        _add_values(self._summands, terms)
        self._term_moments.add(terms.reshape(-1, 1).double())
        self._signs += np.array([int((terms > 0).sum()), int((terms < 0).sum())])

    def _add_channels(self, total: Tensor, channel_mean: ChannelMean) -> None:
        mean = channel_mean.values
        groups = self.site.geometry.groups if self.site.geometry else 1
        magnitude = total.abs().double()
        matrix = magnitude.flatten(2).sum(2) if total.ndim > 2 else magnitude
        window = int(np.prod(total.shape[2:]))
        into = figures.in_channel_gradient(matrix, groups) / window
        numbers = figures.channel_matrix_numbers(total, matrix, groups)
        apart = float(mean.std(correction=0)) > channel_mean.rounding
        numbers["mean_correlation"] = figures.pearson(mean, into) if apart else math.nan
        numbers["channel_ratio"] = figures.ratio(float(into.max()), float(into.min()))
        self._collect(numbers)
        self._collect({"in_mean": mean.cpu().numpy(), "in_gradient": into.cpu().numpy()})
        if matrix.numel() <= KEPT:
            self._collect({"matrix": matrix.cpu().numpy()})

    def _collect(self, numbers: dict[str, Any]) -> None:
        for name, value in numbers.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def result(self, weights: dict[str, Tensor]) -> LayerGradients:
        """Means over the batches; ``weights`` by name."""
        means = {name: value / self.seen for name, value in self._sums.items()}
        norm, sigma = means.pop("norm"), means.pop("sigma")
        weight = weights.get(self.site.weight or "")
        if weight is not None and self.site.transposed:
            weight = weight.T
        if weight is not None and tuple(weight.shape) == self._shape:
            means["weight_ratio"] = figures.ratio(norm, float(weight.detach().double().norm()))
            largest = figures.largest_singular_value(weight.detach().flatten(1))
            means["domination"] = figures.ratio(sigma, largest)
        if self._summand:
            moments = self._term_moments
            means["summand_mean"] = float(moments.mean)
            means["summand_std"] = math.sqrt(float(moments.variance))
            means["summand_positive"], means["summand_negative"] = self._signs / moments.count
        return LayerGradients(
            name=self.site.name,
            number=self.site.layer,
            kind=self.site.kind,
            operation=self.site.operation,
            shape=self._shape,
            mean_of=self._source,
            channel_gradient_at=self._norm or self.site.name,
            channel_gradient=(self._channels / self.seen).cpu().numpy() if self._source else None,
            terms=self._terms,
            histogram=self._entries.result(),
            summand=self._summand,
            summands=self._summands.result() if self._summand else None,
            **means,
        )


def _channel_sums(site: Site, g: Tensor) -> Tensor:
    return site.rows(g).sum(1).double().sum(0)


def _add_values(histogram: StreamedHistograms, values: Tensor) -> None:
    flat = values.reshape(1, 1, -1)
    histogram.add(flat, flat.amin((0, 2)), flat.amax((0, 2)))
