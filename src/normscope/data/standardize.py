"""Mean and deviation of images: over the whole set, per channel or per pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import Array
from normscope.errors import InputError
from normscope.registry import near_match

STANDARDIZATIONS = {
    "none": "values from 0 to 1, nothing subtracted",
    "dataset": "one mean and deviation for all",
    "channel": "mean and deviation of each channel",
    "pixel": "mean and deviation of each pixel of each channel",
}
Standardize = str | tuple[Sequence[float], Sequence[float]]
_AXES: dict[str, tuple[int, ...]] = {"dataset": (0, 1, 2), "channel": (1, 2), "pixel": ()}


def standardization(
    kind: Standardize, images: NDArray[np.uint8], maximum: int
) -> tuple[Tensor, Tensor]:
    r"""Mean and deviation to standardize with, in units of ``maximum``, shaped (c, 1 or h, 1 or w).

    .. math:: \mu = \frac1N \sum x, \qquad \sigma^2 = \frac1N \sum x^2 - \mu^2

    over the training images (n, c, h, w), the sums exact integers. A constant pixel gets deviation
    1, so that it becomes 0. ``kind`` may be a pair (means, deviations), one number per channel.
    """
    channels = images.shape[1]
    if not isinstance(kind, str):
        return _given(kind, channels)
    if kind not in STANDARDIZATIONS:
        raise InputError(
            f"Unknown standardize={kind!r}. {near_match(kind, list(STANDARDIZATIONS))} "
            "A pair (means, deviations) with one number per channel will do too."
        )
    if kind == "none":
        return _float(np.zeros((1, 1, 1))), _float(np.ones((1, 1, 1)))
    mean, variance = _moments(images, _AXES[kind])
    deviation = np.where(variance > 0, np.sqrt(variance), maximum)
    return _float(mean / maximum), _float(deviation / maximum)


def standardized(images: NDArray[np.uint8], maximum: int, mean: Tensor, std: Tensor) -> Tensor:
    """Images scaled to 0..1, less ``mean``, over ``std``, as float32, (n, c, h, w)."""
    result = torch.from_numpy(images.astype(np.float32))
    return result.div_(maximum).sub_(mean).div_(std)


def _moments(images: NDArray[np.uint8], axes: tuple[int, ...]) -> tuple[Array, Array]:
    first = np.zeros(images.shape[1:], np.int64)
    second = np.zeros(images.shape[1:], np.int64)
    for start in range(0, len(images), 4096):  # chunks, so that the squares stay small in memory
        part = images[start : start + 4096].astype(np.int32)
        first += part.sum(0, dtype=np.int64)
        second += (part * part).sum(0, dtype=np.int64)
    count = len(images) * math.prod(images.shape[1 + axis] for axis in axes)
    first, second = first.sum(axes, keepdims=True), second.sum(axes, keepdims=True)
    # N^2 times the variance is an integer: no cancellation. Python's own integers: no overflow.
    spread = count * second.astype(object) - first.astype(object) ** 2
    return first / count, (spread / count**2).astype(np.float64)


def _given(kind: tuple[Sequence[float], Sequence[float]], channels: int) -> tuple[Tensor, Tensor]:
    try:
        mean, std = (_float(np.atleast_1d(np.asarray(v, np.float64))) for v in kind)
    except (TypeError, ValueError):
        raise InputError(
            f"standardize must be a name ({', '.join(STANDARDIZATIONS)}) or a pair (means, "
            f"deviations). Got {kind!r} instead."
        ) from None
    usable = bool(mean.isfinite().all() and std.isfinite().all() and (std > 0).all())
    if not usable or any(v.ndim != 1 or len(v) not in (1, channels) for v in (mean, std)):
        raise InputError(
            f"standardize=(means, deviations) needs one finite number, or one per channel "
            f"({channels}), and deviations above 0. Got {kind!r} instead."
        )
    return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)


def _float(values: Array) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float32))
