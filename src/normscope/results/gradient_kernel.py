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
EDGE = 4 / 3  # what the edge of the bulk may be, over the mean direction, from which it may lead
NEAR = 0.6  # second eigenvalue over the first from which it may lead at finite width
CENTRED = 1e-9  # overlap of two samples below which infinitely many have no leading eigenvalue


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
    split = own + overlap_factor(outputs, channels) * (total - own)
    unknown = math.isinf(samples) and other <= CENTRED * same and same > 0
    # Four numbers leave out how much overlaps vary from pair to pair: their second moment is low.
    moment = square if total.ndim == 2 else same**2
    return {
        "lambda_max": None if unknown else largest(total, samples),
        "lambda_max_split": None if unknown else largest(split, samples),
        "mean_direction": mean,
        "lower": max(mean, square / same if same > 0 else 0.0),
        "upper": math.sqrt(outputs * moment),
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


def bulk_leads(found: dict[str, Any], *, samples: float, spread: float) -> bool:
    """Whether the top eigenvector is not the mean over samples, as far as can be seen.

    Args:
        found: what ``numbers`` gave.
        samples: T.
        spread: largest over mean eigenvalue of the centred samples. Where only the mean of the
            bulk is known its edge may be that much larger; 0 where all of it is known.
    """
    top, mean = found["lambda_max"], max(found["mean_direction"], 0.0)
    edge = spread * (found["A1"] - found["A2"]) / samples
    return top is None or bool(top > BULK * mean or edge > EDGE * mean)


def doubts(
    found: dict[str, Any],
    kernels: dict[str, Array],
    *,
    samples: float,
    level: str,
    spread: float,
) -> tuple[str, ...]:
    """Why lambda_max, as ``numbers`` made it of the kernels, is a lower estimate or not known."""
    top, mean = found["lambda_max"], found["mean_direction"]
    if found["trace"] == 0:
        return ("No gradient is left: signals or gradients vanish on the way (F = 0).",)
    if top is None:
        return (
            "The network is centred: two samples' gradients do not overlap on average, and "
            "infinitely many samples leave no leading eigenvalue. Give data or samples=.",
        )
    known = level == "gram"
    if not bulk_leads(found, samples=samples, spread=0.0 if known else spread):
        return _near(np.sum(list(kernels.values()), axis=0))
    by = f"{top / mean:.2f} times" if mean > 0 and top < 1000 * mean else "far above"
    if known:
        why = (
            f"it is {by} the mean direction ({mean:.4g}), so the bulk of the spectrum leads, and "
            "its edge lies higher at finite width (10 to 50 % at widths of 100 and more)."
        )
    else:
        why = (
            f"level={level!r} sees the mean direction ({mean:.4g}) and the mean of the bulk, but "
            "not its edge, which may lie several times higher. level='gram' on the data sees it."
        )
    return (f"lambda_max is a lower estimate: {why} Trace and mean direction hold.",)


def _near(total: Array) -> tuple[str, ...]:
    """What follows if the second eigenvalue is near the first."""
    if total.ndim < 2 or len(total) < 2:
        return ()
    second, first = np.linalg.eigvalsh(total)[-2:]
    if second < NEAR * first:
        return ()
    return (
        f"lambda_max is a lower estimate: the second eigenvalue is {second / first:.2f} of it, and "
        "layers of finite width spread eigenvalues that are near one another. Trace and mean "
        "direction hold.",
    )


def _mean(same: Any, other: Any, samples: float) -> Any:
    return same / samples + (1 - 1 / samples) * other


def _second_moment(kernel: Array, samples: float) -> float:
    """Tr F*^2 of one output."""
    if kernel.ndim == 2:
        return float((kernel**2).sum()) / len(kernel) ** 2
    same, other = float(kernel[0]), float(kernel[1])
    return same**2 / samples + (1 - 1 / samples) * other**2
