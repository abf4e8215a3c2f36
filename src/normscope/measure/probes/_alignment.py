"""Whether the terms of a weight's gradient agree, without ever forming all of them.

The gradient of a weight is a sum over samples b and positions p of the terms

    d(b, p) = dL/dOUT(b, out, p) * IN(b, in, window position of p).

How far this sum cancels is seen from where the absolute value is taken. Terms are never stored:
their signs factorize, so that the sum of |d| is the weight gradient of |IN| and |dL/dOUT|; sums
within a sample, or within a position, are batched matrix products over unfolded windows, made in
pieces of bounded size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from normscope.measure.probes.sites import Geometry, Site

Offset = tuple[int, ...]
PIECE = 2**19  # numbers in one unfolded piece: stays in the cache
_WEIGHT_GRADIENTS: tuple[Any, ...] = (conv1d_weight, conv2d_weight, conv3d_weight)


@dataclass(frozen=True, eq=False)
class Terms:
    """Sums of the terms of every weight, each (out, in / groups, *kernel).

    Attributes:
        absolute: sum over samples and positions of |d|.
        by_sample: sum over samples of |sum over positions of d|.
        by_position: sum over positions of |sum over samples of d|.
        total: sum over both, with its sign: the gradient of the weight.
        count: samples times positions.
    """

    absolute: Tensor
    by_sample: Tensor
    by_position: Tensor
    total: Tensor
    count: int


def alignment_terms(site: Site, x: Tensor, g: Tensor) -> Terms:
    """The four sums for an operation that took ``x``, with gradient ``g`` of what it gave."""
    layer = _windowed(site, x, g)
    absolute = layer.gradient(layer.x.abs(), layer.g.abs())
    samples, positions = layer.samples, layer.positions
    if positions == 1:  # one term for each sample: nothing to sum before the absolute value
        total = layer.gradient(layer.x, layer.g)
        return Terms(absolute, absolute, total.abs(), total, samples)
    by_sample, total = _within_samples(layer)
    by_position = absolute if samples == 1 else _within_positions(layer)
    return Terms(absolute, by_sample, by_position, total, samples * positions)


def weight_gradient(site: Site, x: Tensor, g: Tensor) -> tuple[Tensor, int]:
    """The gradient of the weight in this one use, and the number of its terms."""
    layer = _windowed(site, x, g)
    return layer.gradient(layer.x, layer.g), layer.samples * layer.positions


def single_terms(site: Site, x: Tensor, g: Tensor, index: tuple[int, ...]) -> Tensor:
    """All terms of one weight, ``index`` = (out, in, *kernel), as (samples, positions)."""
    return _windowed(site, x, g).terms(index)


def _windowed(site: Site, x: Tensor, g: Tensor) -> _Linear | _Convolution:
    if site.geometry is None:
        return _Linear(site.rows(x), site.rows(g))
    if x.ndim == len(site.geometry.kernel) + 1:  # one sample without a batch axis
        x, g = x[None], g[None]
    return _Convolution(site.geometry, x, g)


class _Linear:
    """x (samples, positions, in) and g (samples, positions, out)."""

    groups = 1

    def __init__(self, x: Tensor, g: Tensor) -> None:
        self.x, self.g = x, g
        self.samples, self.positions = x.shape[:2]
        self.shape = (g.shape[-1], x.shape[-1])

    def gradient(self, x: Tensor, g: Tensor) -> Tensor:
        return g.flatten(0, 1).T @ x.flatten(0, 1)

    def terms(self, index: tuple[int, ...]) -> Tensor:
        return self.g[..., index[0]] * self.x[..., index[1]]

    def sample_pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (n, out, positions), (n, positions, in)."""
        for part in _parts(self.samples, max(self.x[0].numel(), math.prod(self.shape))):
            yield self.g[part].transpose(1, 2), self.x[part]

    def position_pieces(self) -> Iterator[tuple[Offset, Tensor, Tensor]]:
        """No offset, and pairs (n, out, samples), (n, samples, in)."""
        for part in _parts(self.positions, max(self.x[:, 0].numel(), math.prod(self.shape))):
            yield (), self.g[:, part].permute(1, 2, 0), self.x[:, part].transpose(0, 1)

    def arranged(self, sums: Tensor) -> Tensor:
        """Sums (1, out, in) as (out, in)."""
        return sums[0]

    def gathered(self, sums: dict[Offset, Tensor]) -> Tensor:
        """Sums of ``position_pieces`` as (out, in)."""
        return self.arranged(sums[()])


class _Convolution:
    """x (samples, in, *space), padded, and g (samples, out, *space)."""

    def __init__(self, geometry: Geometry, x: Tensor, g: Tensor) -> None:
        self.geometry, self.groups = geometry, geometry.groups
        self.x = functional.pad(x, geometry.pads).contiguous()
        self.g = g
        self.samples, self.out = g.shape[:2]
        self.space = tuple(g.shape[2:])
        self.positions = g[0, 0].numel()
        self.shape = (self.out, x.shape[1] // geometry.groups, *geometry.kernel)

    def gradient(self, x: Tensor, g: Tensor) -> Tensor:
        way = self.geometry
        make = _WEIGHT_GRADIENTS[len(way.kernel) - 1]
        made: Tensor = make(x, self.shape, g, way.stride, 0, way.dilation, way.groups)
        return made

    def terms(self, index: tuple[int, ...]) -> Tensor:
        out, within, *offset = index
        channel = out // (self.out // self.groups) * self.shape[1] + within
        window = self._windows(self.x[:, channel, None])[:, 0]
        place: tuple[Any, ...] = (slice(None), *offset)
        return (window[place] * self.g[:, out]).flatten(1)

    def _windows(self, x: Tensor) -> Tensor:
        """View (samples, channels, *kernel, *space) of every window; no copy."""
        strides = x.stride()[2:]
        inner = [s * d for s, d in zip(strides, self.geometry.dilation, strict=True)]
        outer = [s * d for s, d in zip(strides, self.geometry.stride, strict=True)]
        size = (*x.shape[:2], *self.geometry.kernel, *self.space)
        return x.as_strided(size, (*x.stride()[:2], *inner, *outer), x.storage_offset())

    def sample_pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (n x groups, out / groups, positions), (n x groups, positions, in x kernel)."""
        per_group = math.prod(self.shape[1:])
        largest = max(per_group * self.groups * self.positions, self.out * per_group)
        for part in _parts(self.samples, largest):
            windows = self._windows(self.x[part])
            unfolded = windows.reshape(-1, per_group, self.positions)
            g = self.g[part].reshape(len(unfolded), self.out // self.groups, self.positions)
            yield g, unfolded.transpose(1, 2)

    def position_pieces(self) -> Iterator[tuple[Offset, Tensor, Tensor]]:
        """Kernel offsets but the last, (n x groups, out / groups, samples), (.., samples, window).

        A window is (kernel's last axis, in / groups). In the order (*space but the last, samples,
        last axis, channels) it is one run of numbers, so that no window is copied.
        """
        axes, way = len(self.space), self.geometry
        x = self.x.permute(*range(2, axes + 1), 0, axes + 1, 1).contiguous()
        g = self.g.reshape(self.samples * self.out, -1).T.contiguous()
        g = g.reshape(*self.space, self.samples, self.groups, -1)
        per_position = x.shape[-1] * way.kernel[-1] * max(self.samples, self.out // self.groups)
        for place in itertools.product(*map(range, self.space[:-1])):
            for offset in itertools.product(*map(range, way.kernel[:-1])):
                at = map(_reached, place, offset, way.stride[:-1], way.dilation[:-1])
                windows = self._row_windows(x[tuple(at)])
                for part in _parts(self.space[-1], per_position):
                    left = g[place][part].permute(0, 2, 3, 1).flatten(0, 1)
                    yield offset, left, windows[part].movedim(3, 1).flatten(3).flatten(0, 1)

    def _row_windows(self, row: Tensor) -> Tensor:
        """View (positions, samples, kernel, groups, in / groups) of (samples, positions, in)."""
        by_sample, by_place, by_channel = row.stride()
        size = (self.space[-1], self.samples, self.geometry.kernel[-1], self.groups, self.shape[1])
        steps = (
            by_place * self.geometry.stride[-1],
            by_sample,
            by_place * self.geometry.dilation[-1],
            by_channel * self.shape[1],
            by_channel,
        )
        return row.as_strided(size, steps, row.storage_offset())

    def arranged(self, sums: Tensor) -> Tensor:
        """Sums (groups, out / groups, in x kernel) as (out, in / groups, *kernel)."""
        return sums.reshape(self.shape)

    def gathered(self, sums: dict[Offset, Tensor]) -> Tensor:
        """Sums of ``position_pieces`` as (out, in / groups, *kernel)."""
        rows = torch.stack(list(sums.values()), dim=2)  # (groups, out / groups, offset, window)
        rows = rows.reshape(self.out, -1, self.geometry.kernel[-1], self.shape[1])
        return rows.movedim(-1, 1).reshape(self.shape)


def _within_samples(layer: _Linear | _Convolution) -> tuple[Tensor, Tensor]:
    """Sum over samples of |sum over positions of d|, and the sum of all d."""
    magnitude = total = layer.x.new_zeros(())
    for left, right in layer.sample_pieces():
        product = torch.bmm(left, right)
        product = product.reshape(-1, layer.groups, *product.shape[1:])
        total = total + product.sum(0)
        magnitude = magnitude + product.abs_().sum(0)
    return layer.arranged(magnitude), layer.arranged(total)


def _within_positions(layer: _Linear | _Convolution) -> Tensor:
    """Sum over positions of |sum over samples of d|."""
    sums: dict[Offset, Any] = {}
    for offset, left, right in layer.position_pieces():
        product = torch.bmm(left, right)
        product = product.reshape(-1, layer.groups, *product.shape[1:])
        sums[offset] = sums.get(offset, 0.0) + product.abs_().sum(0)
    return layer.gathered(sums)


def _reached(place: int, offset: int, stride: int, dilation: int) -> int:
    """Where in the padded input a kernel entry lies."""
    return place * stride + offset * dilation


def _parts(length: int, each: int) -> Iterator[slice]:
    """Slices of ``length`` things of ``each`` numbers, in pieces of at most PIECE numbers."""
    step = max(1, PIECE // max(each, 1))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
