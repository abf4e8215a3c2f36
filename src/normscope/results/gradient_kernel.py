"""Numbers of F from Theta, the inner products of two samples' gradients of one output.

Theta is kept as all pairs of samples, (T, T), or as two numbers where samples are alike: one sample
with itself, and two samples. F of C outputs then has the eigenvalues of Theta / T, C times each.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from normscope.checks import Array

DRAWS = 400
LARGE = 200_000  # outputs times channels from which the edge of the spectrum is accurate
TRACY_WIDOM = -1.2065  # its mean, for real matrices


@lru_cache(maxsize=256)
def overlap_factor(outputs: int, channels: int) -> float:
    """E of the largest eigenvalue of W W^T / M, W (C, M) standard normal; 1 for one output.

    Example:
        >>> overlap_factor(1, 64)
        1.0
    """
    if outputs == 1:
        return 1.0
    if outputs * channels > LARGE:
        roots = math.sqrt(channels) + math.sqrt(outputs)
        spread = roots * (1 / math.sqrt(channels) + 1 / math.sqrt(outputs)) ** (1 / 3)
        return (roots**2 + TRACY_WIDOM * spread) / channels
    rng = np.random.default_rng(0)
    tops = [np.linalg.norm(rng.standard_normal((outputs, channels)), 2) ** 2 for _ in range(DRAWS)]
    return float(np.mean(tops)) / channels


BULK = 1.05  # lambda_max over the mean direction from which the bulk of the spectrum leads


def numbers(
    kernels: dict[str, Array], *, samples: float, outputs: int, channels: int
) -> dict[str, Any]:
    """lambda_max and what stands beside it, as the fields of a ``Prediction``.

    Args:
        kernels: parts of Theta; names that begin with ``"head"`` are the read-out's own.
        samples: T, or infinity.
        outputs: C.
        channels: channels that enter the read-out.
    """
    total = np.sum(list(kernels.values()), axis=0)
    own = np.sum([v for k, v in kernels.items() if k.startswith("head")], axis=0) + 0 * total
    same, other = pair_of(total)
    square = _second_moment(total, samples)
    trace = outputs * same
    mean = _mean(same, other, samples)
    top = largest(total, samples)
    split = own + overlap_factor(outputs, channels) * (total - own)
    return {
        "lambda_max": top,
        "lambda_max_split": largest(split, samples),
        "mean_direction": mean,
        "lower": max(mean, square / same if same > 0 else 0.0),
        "upper": math.sqrt(outputs * square),
        "trace": trace,
        "A1": same,
        "A2": other,
    }


def pair_of(kernel: Array) -> tuple[float, float]:
    """Mean of one sample with itself, and of two samples."""
    if kernel.ndim == 1:
        return float(kernel[0]), float(kernel[1])
    count = len(kernel)
    same = float(np.trace(kernel)) / count
    off = float(kernel.sum()) - float(np.trace(kernel))
    return same, off / max(count * (count - 1), 1)


def largest(kernel: Array, samples: float) -> float:
    """Top eigenvalue over T."""
    if kernel.ndim == 2:
        return float(np.linalg.eigvalsh(kernel)[-1]) / len(kernel)
    same, other = float(kernel[0]), float(kernel[1])
    bulk = (same - other) / samples if samples > 1 else -math.inf
    return max(_mean(same, other, samples), bulk)


def along_top(total: Array, parts: Array, samples: float) -> Array:
    """Each part's share of the top eigenvalue, along the eigenvector of the total."""
    if total.ndim == 2:
        vector = np.linalg.eigh(total)[1][:, -1]
        return np.asarray(np.einsum("sab,a,b->s", parts, vector, vector) / len(total))
    same, other = parts[:, 0], parts[:, 1]
    if largest(total, samples) > _mean(float(total[0]), float(total[1]), samples):
        return np.asarray((same - other) / samples)
    return np.asarray(_mean(same, other, samples))


def bulk_leads(found: dict[str, Any]) -> bool:
    """Whether the top eigenvector is not the mean over samples."""
    return bool(found["lambda_max"] > BULK * max(found["mean_direction"], 0.0))


def _mean(same: Any, other: Any, samples: float) -> Any:
    return same / samples + (1 - 1 / samples) * other


def _second_moment(kernel: Array, samples: float) -> float:
    """Tr F*^2 of one output."""
    if kernel.ndim == 2:
        return float((kernel**2).sum()) / len(kernel) ** 2
    same, other = float(kernel[0]), float(kernel[1])
    return same**2 / samples + (1 - 1 / samples) * other**2
