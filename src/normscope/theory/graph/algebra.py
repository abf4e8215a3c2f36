"""Kernels over sites (sample, position) at three levels of detail, with one set of operations.

A kernel is an array whose last axes belong to the level; axes before them are a stack. A profile is
a number for each site, as the level tells them apart.

- ``Homogeneous``: four numbers, same or other sample times same or other position. These matrices
  commute; every operation costs nothing.
- ``Positions``: ``[2, P, P]``, same sample and other sample: samples alike, positions resolved.
- ``Gram``: ``[N, N]``, the samples themselves.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.theory.graph.nodes import Shape, Window

LEVELS = ("homogeneous", "positions", "gram")  # from coarse to fine


class Algebra(ABC):
    """Operations on kernels of T samples on an image of these sides."""

    level: str
    axes: int  # of a kernel

    def __init__(self, samples: float, sides: Shape) -> None:
        self.samples, self.sides = samples, sides
        self.positions = math.prod(sides)
        self.sites = samples * self.positions

    def on(self, sides: Shape) -> Any:
        """The same level on another image."""
        return type(self)(self.samples, sides)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Shape of one kernel."""

    def ones(self) -> Array:
        """The kernel of a constant."""
        return np.ones(self.shape)

    def zeros(self, *stack: int) -> Array:
        """A stack of zero kernels."""
        return np.zeros((*stack, *self.shape))

    def eye(self) -> Array:
        """The kernel of independent sites."""
        return self.with_diagonal(self.zeros(), self.diagonal(self.ones()))

    @abstractmethod
    def diagonal(self, kernel: Array) -> Array:
        """Each site with itself, a profile."""

    @abstractmethod
    def rows(self, profile: Array) -> Array:
        """A profile that varies with the first site of each pair."""

    @abstractmethod
    def columns(self, profile: Array) -> Array:
        """A profile that varies with the second site of each pair."""

    @abstractmethod
    def with_diagonal(self, kernel: Array, profile: Array) -> Array:
        """A kernel with this diagonal."""

    def outer(self, first: Array, second: Array) -> Array:
        """Product of two profiles."""
        return self.rows(first) * self.columns(second) * self.ones()

    def mean(self, profile: Array) -> Array:
        """Mean of a profile over sites."""
        return np.asarray(profile.mean(-1))

    @abstractmethod
    def sample_mean(self, profile: Array) -> Array:
        """Mean over the positions of each sample, again a profile."""

    def mean_diagonal(self, kernel: Array) -> Array:
        """Trace over the number of sites."""
        return self.mean(self.diagonal(kernel))

    def trace(self, kernel: Array) -> Array:
        """Trace, with axes to multiply kernels with."""
        total = np.asarray(self.sites * self.mean_diagonal(kernel))
        return total.reshape(total.shape + (1,) * self.axes)

    @abstractmethod
    def blocks(self, kernel: Array) -> Array:
        """The kernel as matrices (or numbers) that multiply block by block."""

    @abstractmethod
    def from_blocks(self, blocks: Array) -> Array:
        """The kernel of these blocks."""

    @abstractmethod
    def center(self, kernel: Array) -> Array:
        """G A G with G = I - 11^T / N."""

    def product(self, first: Array, second: Array) -> Array:
        """The matrix product A B."""
        return self.from_blocks(self.blocks(first) @ self.blocks(second))

    @abstractmethod
    def transpose(self, kernel: Array) -> Array:
        """The kernel with the two sites exchanged."""

    @abstractmethod
    def eigen(self, kernel: Array) -> tuple[Array, Array, Any]:
        """Eigenvalues (none negative), their multiplicities, and what ``from_eigen`` needs."""

    @abstractmethod
    def from_eigen(self, values: Array, vectors: Any) -> Array:
        """The kernel of these eigenvalues."""

    @abstractmethod
    def largest(self, kernel: Array) -> Array:
        """The largest eigenvalue."""

    @abstractmethod
    def mean_direction(self, kernel: Array) -> Array:
        """1^T A 1 / N."""

    @abstractmethod
    def slide(self, kernel: Array, window: Window) -> Array:
        """Sum over kernel sites kappa of A[a + kappa, b + kappa]; zero outside the image."""

    @abstractmethod
    def pool(self, kernel: Array, window: Window) -> Array:
        """Mean over both windows of a pair."""

    @abstractmethod
    def pool_profile(self, profile: Array, window: Window) -> Array:
        """Mean of a profile over each window."""

    @abstractmethod
    def keep(self, profile: Array, window: Window) -> Array:
        """A profile at the positions that a kernel of one site keeps."""

    @abstractmethod
    def flatten(self, kernel: Array) -> Array:
        """Mean over positions of the pairs at one position."""

    @abstractmethod
    def mean_other(self, kernel: Array) -> float:
        """Mean over pairs of two samples (at the same position where positions are told apart)."""


class Homogeneous(Algebra):
    """Four numbers: same sample same position, same other, other same, other other."""

    level, axes = "homogeneous", 1

    @property
    def shape(self) -> Shape:
        """One axis of four numbers."""
        return (4,)

    def _settled(self, kernel: Array) -> Array:
        """Without a second position, a pair at other positions repeats the pair at the same."""
        return kernel[..., [0, 0, 2, 2]] if self.positions == 1 else kernel

    def diagonal(self, kernel: Array) -> Array:
        """The first number."""
        return kernel[..., :1]

    def rows(self, profile: Array) -> Array:
        """One number for all sites."""
        return profile

    columns = rows

    def with_diagonal(self, kernel: Array, profile: Array) -> Array:
        """The first number replaced."""
        made = np.array(np.broadcast_to(kernel, np.broadcast_shapes(kernel.shape, (4,))))
        made[..., :1] = profile
        return self._settled(made)

    def sample_mean(self, profile: Array) -> Array:
        """All sites are alike."""
        return profile

    def blocks(self, kernel: Array) -> Array:
        """The four eigenvalues."""
        same, across, other, both = np.moveaxis(kernel, -1, 0)
        p, t = self.positions, self.samples
        x0, x1, x2 = same - across - other + both, across - both, other - both
        return np.stack([x0, x0 + p * x1, x0 + t * x2, x0 + p * x1 + t * x2 + p * t * both], -1)

    def from_blocks(self, blocks: Array) -> Array:
        """The kernel with these eigenvalues."""
        p, t = self.positions, self.samples
        x0 = blocks[..., 0]
        x1, x2 = (blocks[..., 1] - x0) / p, (blocks[..., 2] - x0) / t
        x3 = (blocks[..., 3] - blocks[..., 1] - blocks[..., 2] + x0) / (p * t)
        return np.stack([x0 + x1 + x2 + x3, x1 + x3, x2 + x3, x3], -1)

    def center(self, kernel: Array) -> Array:
        """The constant vector's eigenvalue removed."""
        values = self.blocks(kernel)
        values[..., 3] = 0.0
        return self.from_blocks(values)

    def product(self, first: Array, second: Array) -> Array:
        """These matrices commute: eigenvalues multiply."""
        return self.from_blocks(self.blocks(first) * self.blocks(second))

    def transpose(self, kernel: Array) -> Array:
        """They are symmetric."""
        return kernel

    def eigen(self, kernel: Array) -> tuple[Array, Array, Any]:
        """Its four distinct eigenvalues."""
        p, t = self.positions, self.samples
        counts = np.array([(t - 1) * (p - 1), t - 1, p - 1, 1.0])
        return np.maximum(self.blocks(kernel), 0.0), counts, None

    def from_eigen(self, values: Array, vectors: Any) -> Array:
        """The kernel with these eigenvalues."""
        return self.from_blocks(values)

    def largest(self, kernel: Array) -> Array:
        """Of those that occur."""
        values = self.blocks(kernel)
        counts = self.eigen(kernel)[1]
        return np.asarray(np.where(counts > 0, values, -np.inf).max(-1))

    def mean_direction(self, kernel: Array) -> Array:
        """The constant vector's eigenvalue."""
        return np.asarray(self.blocks(kernel)[..., 3])

    def slide(self, kernel: Array, window: Window) -> Array:
        """Times the mean number of kernel sites that lie inside the image at both positions."""
        parts = [_sites_inside(n, window, i) for i, n in enumerate(self.sides)]
        same, total = _product([part @ part.T for part in parts])
        made = self.on(window.after(self.sides))
        count = made.positions
        other = (total - same) / (count * (count - 1)) if count > 1 else 0.0
        factor = np.array([same / count, other, same / count, other])
        return made._settled(kernel * factor)

    def pool(self, kernel: Array, window: Window) -> Array:
        """Mixes same and other positions by how often windows share a position."""
        weights = [_window_weights(n, window, i) for i, n in enumerate(self.sides)]
        same, total = _product([w @ w.T for w in weights])
        rows = [w.sum(1) for w in weights]
        rows_same, rows_total = _product([np.outer(r, r) for r in rows])
        made = self.on(window.after(self.sides))
        count = made.positions
        pairs = max(count * (count - 1), 1)
        near, far = same / count, rows_same / count
        near_other, far_other = (total - same) / pairs, (rows_total - rows_same) / pairs
        d, e, f, g = np.moveaxis(kernel, -1, 0)
        made_of = [
            near * d + (far - near) * e,
            near_other * d + (far_other - near_other) * e,
            near * f + (far - near) * g,
            near_other * f + (far_other - near_other) * g,
        ]
        return made._settled(np.stack(made_of, -1))

    def pool_profile(self, profile: Array, window: Window) -> Array:
        """Times the mean share of a window that lies inside the image."""
        weights = [_window_weights(n, window, i) for i, n in enumerate(self.sides)]
        return profile * math.prod(float(w.sum(1).mean()) for w in weights)

    def keep(self, profile: Array, window: Window) -> Array:
        """All sites are alike."""
        return profile

    def flatten(self, kernel: Array) -> Array:
        """The pairs at one position."""
        return self.on(())._settled(kernel)

    def mean_other(self, kernel: Array) -> float:
        """Other sample, same position."""
        return float(kernel[..., 2])


class _Resolved(Algebra):
    """What ``Positions`` and ``Gram`` share: matrices over an image, in their last two axes."""

    def transpose(self, kernel: Array) -> Array:
        """Last two axes exchanged."""
        return np.swapaxes(kernel, -1, -2)

    @abstractmethod
    def _image(self) -> Shape:
        """Axes of one side of the matrices."""

    def slide(self, kernel: Array, window: Window) -> Array:
        """One shifted copy a kernel site."""
        made = self.on(window.after(self.sides))
        stack = kernel.shape[: kernel.ndim - 2]
        out = np.empty((*stack, *made.shape[-2:]))
        for index in np.ndindex(*stack):  # one matrix at a time: a stack of copies is large
            out[index] = self._slide_one(kernel[index], window, made)
        return out

    def _slide_one(self, matrix: Array, window: Window, made: Any) -> Array:
        image = self._image()
        before = len(image) - len(self.sides)
        pads = [(0, 0)] * before + list(window.padding)
        wide = np.pad(matrix.reshape(image * 2), pads * 2)
        out = np.zeros(made._image() * 2)
        offsets = [range(0, k * d, d) for k, d in zip(window.kernel, window.dilation, strict=True)]
        for offset in itertools.product(*offsets):
            cut = [slice(None)] * before
            for start, step, side in zip(offset, window.stride, made.sides, strict=True):
                cut.append(slice(start, start + step * (side - 1) + 1, step))
            out += wide[tuple(cut * 2)]
        return out.reshape(made.shape[-2:])

    def pool(self, kernel: Array, window: Window) -> Array:
        """The means over windows as matrices, side by side."""
        made = self.on(window.after(self.sides))
        stack, image = kernel.shape[: kernel.ndim - 2], self._image()
        wide = kernel.reshape(stack + image * 2)
        first = len(stack) + len(image) - len(self.sides)
        for number, side in enumerate(self.sides):
            weights = _window_weights(side, window, number)
            for axis in (first + number, first + number + len(image)):
                wide = np.moveaxis(np.tensordot(wide, weights, (axis, 1)), -1, axis)
        return wide.reshape(stack + made.shape[-2:])

    def pool_profile(self, profile: Array, window: Window) -> Array:
        """Means over windows."""
        image = self._image()
        wide = profile.reshape(image)
        for number, side in enumerate(self.sides):
            axis = len(image) - len(self.sides) + number
            weights = _window_weights(side, window, number)
            wide = np.moveaxis(np.tensordot(wide, weights, (axis, 1)), -1, axis)
        return np.asarray(wide.reshape(-1))

    def keep(self, profile: Array, window: Window) -> Array:
        """Every stride-th position."""
        image = self._image()
        cut = [slice(None)] * (len(image) - len(self.sides))
        cut += [slice(None, None, step) for step in window.stride]
        return np.asarray(profile.reshape(image)[tuple(cut)].reshape(-1))

    def largest(self, kernel: Array) -> Array:
        """Over all blocks."""
        values = np.linalg.eigvalsh(self.blocks(kernel))[..., -1]
        return np.asarray(values if self.axes == 2 else values.max(-1))


class Positions(_Resolved):
    """I_T (x) (A0 - A1) + J_T (x) A1: A0 of one sample with itself, A1 of two samples."""

    level, axes = "positions", 3

    @property
    def shape(self) -> Shape:
        """Two matrices over positions."""
        return (2, self.positions, self.positions)

    def _image(self) -> Shape:
        return self.sides

    def diagonal(self, kernel: Array) -> Array:
        """One number a position."""
        return np.diagonal(kernel[..., 0, :, :], axis1=-2, axis2=-1)

    def rows(self, profile: Array) -> Array:
        """Along the first position."""
        return profile[..., None, :, None]

    def columns(self, profile: Array) -> Array:
        """Along the second position."""
        return profile[..., None, None, :]

    def with_diagonal(self, kernel: Array, profile: Array) -> Array:
        """The diagonal of A0 replaced."""
        made = kernel.copy()
        index = np.arange(self.positions)
        made[..., 0, index, index] = profile
        return made

    def sample_mean(self, profile: Array) -> Array:
        """Samples are alike: the mean over positions."""
        return np.broadcast_to(profile.mean(-1, keepdims=True), profile.shape)

    def blocks(self, kernel: Array) -> Array:
        """A0 - A1 (T - 1 times) and A0 + (T - 1) A1 (once)."""
        same, other = kernel[..., 0, :, :], kernel[..., 1, :, :]
        return np.stack([same - other, same + (self.samples - 1) * other], -3)

    def from_blocks(self, blocks: Array) -> Array:
        """A0 and A1 again."""
        other = (blocks[..., 1, :, :] - blocks[..., 0, :, :]) / self.samples
        return np.stack([blocks[..., 0, :, :] + other, other], -3)

    def center(self, kernel: Array) -> Array:
        """The block of the samples' mean loses the constant."""
        made = self.blocks(kernel)
        once = made[..., 1, :, :]
        once = once - once.mean(-1, keepdims=True)
        made[..., 1, :, :] = once - once.mean(-2, keepdims=True)
        return self.from_blocks(made)

    def eigen(self, kernel: Array) -> tuple[Array, Array, Any]:
        """Of both blocks."""
        values, vectors = np.linalg.eigh(self.blocks(kernel))
        counts = np.repeat([self.samples - 1.0, 1.0], self.positions)
        return np.maximum(values.reshape(-1), 0.0), counts, vectors

    def from_eigen(self, values: Array, vectors: Any) -> Array:
        """Both blocks put together again."""
        scaled = vectors * values.reshape(2, 1, self.positions)
        return self.from_blocks(scaled @ np.swapaxes(vectors, -1, -2))

    def mean_direction(self, kernel: Array) -> Array:
        """Of the block of the samples' mean."""
        return np.asarray(self.blocks(kernel)[..., 1, :, :].sum((-1, -2)) / self.positions)

    def flatten(self, kernel: Array) -> Array:
        """Traces over positions."""
        return np.trace(kernel, axis1=-2, axis2=-1)[..., None, None] / self.positions

    def mean_other(self, kernel: Array) -> float:
        """Mean over positions of the pair of samples."""
        return float(np.trace(kernel[..., 1, :, :]) / self.positions)


class Gram(_Resolved):
    """All pairs of sites of the user's own samples."""

    level, axes = "gram", 2

    def __init__(self, samples: float, sides: Shape) -> None:
        super().__init__(samples, sides)
        self.sites = int(self.sites)

    @property
    def shape(self) -> Shape:
        """One matrix over sites."""
        return (int(self.sites), int(self.sites))

    def _image(self) -> Shape:
        return (int(self.samples), *self.sides)

    def diagonal(self, kernel: Array) -> Array:
        """One number a site."""
        return np.diagonal(kernel, axis1=-2, axis2=-1)

    def rows(self, profile: Array) -> Array:
        """Along the first site."""
        return profile[..., :, None]

    def columns(self, profile: Array) -> Array:
        """Along the second site."""
        return profile[..., None, :]

    def with_diagonal(self, kernel: Array, profile: Array) -> Array:
        """The diagonal replaced."""
        made = kernel.copy()
        index = np.arange(self.shape[0])
        made[..., index, index] = profile
        return made

    def sample_mean(self, profile: Array) -> Array:
        """Mean over the positions of each sample."""
        means = profile.reshape(int(self.samples), -1).mean(1)
        return np.repeat(means, self.positions)

    def blocks(self, kernel: Array) -> Array:
        """The matrix itself."""
        return kernel

    def from_blocks(self, blocks: Array) -> Array:
        """The matrix itself."""
        return blocks

    def center(self, kernel: Array) -> Array:
        """Row and column means subtracted."""
        once = kernel - kernel.mean(-1, keepdims=True)
        return np.asarray(once - once.mean(-2, keepdims=True))

    def eigen(self, kernel: Array) -> tuple[Array, Array, Any]:
        """Of the matrix."""
        values, vectors = np.linalg.eigh(kernel)
        return np.maximum(values, 0.0), np.ones(values.size), vectors

    def from_eigen(self, values: Array, vectors: Any) -> Array:
        """The matrix of these eigenvalues."""
        return np.asarray((vectors * values) @ vectors.T)

    def mean_direction(self, kernel: Array) -> Array:
        """Sum over N."""
        return np.asarray(kernel.sum((-1, -2)) / self.sites)

    def flatten(self, kernel: Array) -> Array:
        """Means over positions of the pairs at one position."""
        t, p = int(self.samples), self.positions
        wide = kernel.reshape(*kernel.shape[:-2], t, p, t, p)
        return np.asarray(np.einsum("...apbp->...ab", wide) / p)

    def mean_other(self, kernel: Array) -> float:
        """Mean over pairs of samples, at the same position."""
        small = self.flatten(kernel)
        count = len(small)
        return float((small.sum() - np.trace(small)) / max(count * (count - 1), 1))


def algebra(level: str, samples: float, sides: Shape) -> Algebra:
    """The algebra of a level."""
    kinds = {kind.level: kind for kind in (Homogeneous, Positions, Gram)}
    return kinds[level](samples, sides)


def input_kernel(data: Array, level: str) -> tuple[Array, Algebra]:
    """Mean over channels of products of the data (T, channels, *sides), by class of pairs."""
    samples, channels, sides = data.shape[0], data.shape[1], data.shape[2:]
    made = algebra(level, float(samples), sides)
    flat = data.reshape(samples, channels, -1)
    count = flat.shape[2]
    if level == "gram":
        rows = flat.transpose(0, 2, 1).reshape(samples * count, channels)
        return rows @ rows.T / channels, made
    if level == "positions":
        same = np.tensordot(flat, flat, ((0, 1), (0, 1))) / (channels * samples)
        sums = flat.sum(0)
        other = (sums.T @ sums / channels - samples * same) / max(samples * (samples - 1), 1)
        return np.stack([same, other]), made
    power = (flat**2).sum() / channels
    over_sites = (flat.sum((0, 2)) ** 2).mean()
    over_positions = (flat.sum(2) ** 2).sum() / channels
    over_samples = (flat.sum(0) ** 2).sum() / channels
    pairs_p, pairs_t = count * (count - 1), samples * (samples - 1)
    both = over_sites - over_positions - over_samples + power
    values = [
        power / (samples * count),
        (over_positions - power) / max(samples * pairs_p, 1),
        (over_samples - power) / max(pairs_t * count, 1),
        both / max(pairs_t * pairs_p, 1),
    ]
    return Homogeneous(samples, sides)._settled(np.array(values)), made


def white_kernel(level: str, samples: float, sides: Shape) -> tuple[Array, Algebra]:
    """The kernel of independent values of variance 1, many channels."""
    made = algebra(level, samples, sides)
    return made.eye(), made


def _sites_inside(side: int, window: Window, number: int) -> Array:
    """(windows, kernel sites): 1 where the site lies inside the image."""
    k, s, d = window.kernel[number], window.stride[number], window.dilation[number]
    before, after = window.padding[number]
    count = (side + before + after - d * (k - 1) - 1) // s + 1
    place = np.arange(count)[:, None] * s + np.arange(k)[None] * d - before
    return ((place >= 0) & (place < side)).astype(float)


def _window_weights(side: int, window: Window, number: int) -> Array:
    """(windows, positions): the mean over each window; zeros of the padding count."""
    k, s = window.kernel[number], window.stride[number]
    inside = _sites_inside(side, window, number)
    weights = np.zeros((len(inside), side))
    for row, column in zip(*np.nonzero(inside), strict=True):
        weights[row, row * s + column - window.padding[number][0]] += 1 / k
    return weights


def _product(parts: list[Array]) -> tuple[float, float]:
    """Trace and sum of the Kronecker product of matrices, one a side."""
    return (
        math.prod(float(np.trace(part)) for part in parts),
        math.prod(float(part.sum()) for part in parts),
    )
