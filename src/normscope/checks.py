"""Arguments that are checked in many places: whole numbers, finite numbers, files to write."""

from __future__ import annotations

import math
import operator
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.errors import InputError

Array = NDArray[np.float64]


def checked_count(value: Any, name: str, *, least: int = 1, why: str = "") -> int:
    """``value`` as a whole number of at least ``least``; ``why`` says what a lower one would mean.

    Example:
        >>> checked_count(32, "batch_size", least=2, why="one sample has no deviation")
        32
    """
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        reason = f": {why}" if why else ""
        raise InputError(f"{name} must be a whole number from {least}{reason}. Got {value!r}.")
    return count


def checked_numbers(values: ArrayLike, name: str) -> Array:
    """``values`` as finite float64 numbers, in their shape."""
    try:
        array = np.asarray(values)
        made = array.astype(np.float64) if array.dtype.kind in "biuf" else None
    except (TypeError, ValueError):  # rows of unequal length, or objects without a value
        made = None
    if made is None:
        raise InputError(f"{name} must be real numbers. Got {values!r}.")
    if not np.isfinite(made).all():
        bad = made[~np.isfinite(made)].ravel()[0]
        raise InputError(
            f"{name} must be finite. Got {float(bad)} among {made.size} values: it would pass "
            "through every formula unseen."
        )
    return made


def checked_number(value: ArrayLike, name: str) -> float:
    """``value`` as one finite number."""
    made = checked_numbers(value, name)
    if made.size != 1:
        raise InputError(f"{name} must be one number. Got {made.size} of them.")
    return float(made.item())


def checked_positive(value: Any, name: str) -> float:
    """``value`` as one finite number above 0."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 < float(value) < math.inf:
        raise InputError(f"{name} must be a number above 0. Got {value!r}.")
    return float(value)


def checked_momentum(value: Any) -> float:
    """``value`` as the momentum of gradient descent."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 <= float(value) < 1:
        raise InputError(f"momentum must be at least 0 and below 1. Got {value!r}.")
    return float(value)


def checked_seconds(max_seconds: float | None) -> float:
    """A number of seconds above 0; infinite for None."""
    return math.inf if max_seconds is None else checked_positive(max_seconds, "max_seconds")


def checked_target(path: str | Path) -> Path:
    """``path`` as a file that can be written: its folder is there, and it is no folder itself."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(
            f"There is no folder {target.parent} to write {target.name!r} to. Make it first."
        )
    if target.is_dir():
        raise InputError(f"{target} is a folder. Give the name of a file.")
    return target
