"""Per-sample weight gradients as sums over positions of outer products."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from normscope.measure.probes.sites import Geometry, Site

__all__ = ["patches", "weight_factors", "weight_rows"]


def patches(x: Tensor, geometry: Geometry, *, windows: tuple[int, ...] | None = None) -> Tensor:
    """What the window of a convolution sees, (n, channels, *space) -> (n, P, channels x K).

    ``windows`` cuts the number of places per axis. The result has its places last in memory.
    """
    x = functional.pad(x, _padding(geometry))
    for axis, (size, step, gap) in enumerate(
        zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True)
    ):
        x = x.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
        if windows is not None:
            x = x.narrow(2 + axis, 0, windows[axis])
    space = len(geometry.kernel)
    kernel_first = [1, *range(2 + space, 2 + 2 * space), 0, *range(2, 2 + space)]
    width, n = x.shape[1] * math.prod(geometry.kernel), x.shape[0]
    return x.permute(kernel_first).reshape(width, n, -1).permute(1, 2, 0)


def _padding(geometry: Geometry) -> list[int]:
    """For ``functional.pad``: last axis first, left and right."""
    pairs = []
    for axis, (size, gap) in enumerate(zip(geometry.kernel, geometry.dilation, strict=True)):
        if geometry.padding == "same":
            total = gap * (size - 1)
            pairs.append((total // 2, total - total // 2))
        elif isinstance(geometry.padding, str):
            pairs.append((0, 0))
        else:
            pairs.append((geometry.padding[axis], geometry.padding[axis]))
    return [number for pair in reversed(pairs) for number in pair]


def weight_factors(site: Site, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """(a, b) with a sample's weight gradient, per group, the sum over positions of b a^T.

    Shapes (n, P, groups, .); the result is laid out as the flattened weight.
    """
    geometry = site.geometry
    if geometry is None:
        return site.rows(x)[:, :, None], site.rows(g)[:, :, None]
    seen, plain = (g, x) if geometry.transposed else (x, g)
    windows = tuple(x.shape[2:]) if geometry.transposed else None
    a, b = patches(seen, geometry, windows=windows), site.rows(plain)
    groups = geometry.groups
    return a.reshape(*a.shape[:2], groups, -1), b.reshape(*b.shape[:2], groups, -1)


def weight_rows(a: Tensor, b: Tensor) -> Tensor:
    """The weight gradients of all samples, (n, weights)."""
    return torch.einsum("npgb,npga->ngba", b, a).flatten(1)
