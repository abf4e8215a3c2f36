"""Per-sample weight gradients as sums over positions of outer products."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from normscope.measure.probes.sites import Geometry, Site


def patches(x: Tensor, geometry: Geometry, *, windows: tuple[int, ...] | None = None) -> Tensor:
    """What the window of a convolution sees, (n, channels, *space) -> (n, P, channels x K).

    ``windows`` cuts the number of places per axis. The result has its places last in memory.
    """
    space = len(geometry.kernel)
    x = _unfolded(functional.pad(x, geometry.pads), geometry, range(space))
    for axis, count in enumerate(windows or ()):
        x = x.narrow(2 + axis, 0, count)
    kernel_first = [1, *range(2 + space, 2 + 2 * space), 0, *range(2, 2 + space)]
    width, n = x.shape[1] * math.prod(geometry.kernel), x.shape[0]
    return x.permute(kernel_first).reshape(width, n, -1).permute(1, 2, 0)


def patch_gram(x: Tensor, geometry: Geometry) -> tuple[Tensor, int]:
    """The sum of v v^T over all patches v, and their number; stride 1 along the first axis.

    Rows of the first axis that are s apart have the same products wherever the window stands, but
    for the rows at the border. So a product per shift s, corrected at the border, is enough, and
    the first axis need not be unfolded: half the work of the patches themselves.
    """
    space, size, gap = len(geometry.kernel), geometry.kernel[0], geometry.dilation[0]
    x = _unfolded(functional.pad(x, geometry.pads), geometry, range(1, space))
    n, channels, height = x.shape[:3]
    row_first = [1, *range(2 + space, x.ndim), 2, 0, *range(3, 2 + space)]
    v = x.permute(row_first).reshape(-1, height, n * x.shape[3 : 2 + space].numel())
    width, places = len(v), height - gap * (size - 1)

    def product(first: int, second: int, rows: int) -> Tensor:
        return v[:, first : first + rows].flatten(1) @ v[:, second : second + rows].flatten(1).T

    gram = v.new_empty(size, width, size, width)
    for shift in range(size):
        total = product(gap * shift, 0, places)
        for j in range(size - shift):
            if j:  # the window moves on: rows leave it at one end and enter at the other
                out, into = gap * (j - 1), gap * (j - 1) + places
                total = total - product(out + gap * shift, out, gap)
                total += product(into + gap * shift, into, gap)
            gram[j + shift, :, j] = total
            gram[j, :, j + shift] = total.T
    parts = gram.view(size, channels, -1, size, channels, width // channels)
    return parts.permute(1, 0, 2, 4, 3, 5).reshape(size * width, -1), places * v.shape[2]


def _unfolded(x: Tensor, geometry: Geometry, axes: Iterable[int]) -> Tensor:
    """A view of padded ``x`` with the window along some axes in new last dimensions."""
    for axis in axes:
        size, gap = geometry.kernel[axis], geometry.dilation[axis]
        x = x.unfold(2 + axis, gap * (size - 1) + 1, geometry.stride[axis])[..., ::gap]
    return x


def weight_factors(site: Site, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b) with a sample's weight gradient, per group, the sum over positions of b a^T.

    Shapes (n, P, groups, .); the result is laid out as the flattened weight.
    """
    geometry = site.geometry
    if geometry is None:
        a, b = site.rows(x)[:, :, None], site.rows(g)[:, :, None]
        return (b, a) if site.transposed else (a, b)
    seen, plain = (g, x) if geometry.transposed else (x, g)
    windows = tuple(x.shape[2:]) if geometry.transposed else None
    a, b = patches(seen, geometry, windows=windows), site.rows(plain)
    groups = geometry.groups
    return a.reshape(*a.shape[:2], groups, -1), b.reshape(*b.shape[:2], groups, -1)


def weight_rows(a: Tensor, b: Tensor) -> Tensor:
    """The weight gradients of all samples, (n, weights)."""
    return torch.einsum("npgb,npga->ngba", b, a).flatten(1)
