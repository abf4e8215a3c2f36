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

from normscope.measure.probes.probe import SkipLayer
from normscope.measure.probes.sites import Geometry, Site

__all__ = ["Terms", "alignment_terms", "single_terms", "weight_gradient"]

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
    if site.geometry.transposed:
        raise SkipLayer(
            "transposed convolution: its gradient is no sum over output positions of gradient "
            "times input"
        )
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

    def position_pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (n, out, samples), (n, samples, in)."""
        for part in _parts(
            self.positions, max(self.x[:, 0].numel(), self.shape[0] * self.shape[1])
        ):
            yield self.g[:, part].permute(1, 2, 0), self.x[:, part].transpose(0, 1)

    def arranged(self, sums: Tensor, *, channels_last: bool = False) -> Tensor:
        """Sums (1, out, in) as (out, in)."""
        return sums[0]


class _Convolution:
    """x (samples, in, *space), padded, and g (samples, out, *space)."""

    def __init__(self, geometry: Geometry, x: Tensor, g: Tensor) -> None:
        self.geometry, self.groups = geometry, geometry.groups
        self.x = functional.pad(x, _pads(geometry)).contiguous()
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

    def position_pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs (n x groups, out / groups, samples), (n x groups, samples, kernel x in)."""
        axes = len(self.space)
        spatial = list(range(2, axes + 2))
        x = self.x.permute(*spatial, 0, 1).contiguous()
        # back to (samples, in, *space) order, but with positions slowest in memory
        windows = self._windows(x.permute(axes, axes + 1, *range(axes)))
        order = [*range(axes + 2, 2 * axes + 2), 0, *range(2, axes + 2), 1]
        windows = windows.permute(*order)  # (*space, samples, *kernel, in)
        windows = windows.reshape(*windows.shape[:-1], self.groups, -1)
        g = self.g.permute(*spatial, 1, 0).contiguous()  # (*space, out, samples)
        per_position = windows[(0,) * axes].numel()
        result = self.out * per_position // (self.samples * self.groups)
        for lead in itertools.product(*map(range, self.space[:-1])):
            row, slopes = windows[lead], g[lead]
            for part in _parts(self.space[-1], max(per_position, result)):
                piece = row[part].movedim(-2, 1)  # (n, groups, samples, *kernel, in / groups)
                unfolded = piece.flatten(3).flatten(0, 1)
                yield slopes[part].reshape(len(unfolded), -1, self.samples), unfolded

    def arranged(self, sums: Tensor, *, channels_last: bool = False) -> Tensor:
        """Sums (groups, out / groups, window) as (out, in / groups, *kernel)."""
        inside, kernel = self.shape[1], self.geometry.kernel
        if not channels_last:
            return sums.reshape(self.out, inside, *kernel)
        return sums.reshape(self.out, *kernel, inside).movedim(-1, 1)


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
    magnitude = layer.x.new_zeros(())
    for left, right in layer.position_pieces():
        product = torch.bmm(left, right)
        product = product.reshape(-1, layer.groups, *product.shape[1:])
        magnitude = magnitude + product.abs_().sum(0)
    return layer.arranged(magnitude, channels_last=True)


def _parts(length: int, each: int) -> Iterator[slice]:
    """Slices of ``length`` things of ``each`` numbers, in pieces of at most PIECE numbers."""
    step = max(1, PIECE // max(each, 1))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _pads(geometry: Geometry) -> list[int]:
    """Padding in the order of ``functional.pad``: last axis first, before and behind."""
    pairs = []
    for axis, kernel in enumerate(geometry.kernel):
        if isinstance(geometry.padding, str):
            whole = geometry.dilation[axis] * (kernel - 1) if geometry.padding == "same" else 0
            pairs.append((whole // 2, whole - whole // 2))
        else:
            pairs.append((geometry.padding[axis],) * 2)
    return [pad for pair in reversed(pairs) for pad in pair]
