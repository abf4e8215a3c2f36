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
from normscope.files import check_writable

Array = NDArray[np.float64]


LARGEST = 2**63 - 1  # of whole numbers in torch and numpy


def checked_count(
    value: Any, name: str, *, least: int = 1, most: int = LARGEST, why: str = ""
) -> int:
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
    if count > most:
        raise InputError(f"{name} must be at most {most}. Got {count!r:.40}.")
    return count


def checked_list(values: Any, name: str) -> list[Any]:
    """``values`` as a list; a single value in the place of several is refused."""
    try:
        if not isinstance(values, str):
            return list(values)
    except TypeError:  # also of things that only look as if they could be iterated over
        pass
    raise InputError(f"{name} must be a list. Got {values!r}. Put it in brackets: [...].")


def as_float(value: Any) -> float:
    """A real number as a float, infinite if it is too large; NaN for anything else."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


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
    number = as_float(value)
    if not 0 < number < math.inf:
        raise InputError(f"{name} must be a number above 0. Got {value!r:.40}.")
    return number


def checked_momentum(value: Any) -> float:
    """``value`` as the momentum of gradient descent."""
    number = as_float(value)
    if not 0 <= number < 1:
        raise InputError(f"momentum must be at least 0 and below 1. Got {value!r:.40}.")
    return number


def checked_seconds(max_seconds: float | None) -> float:
    """A number of seconds above 0; infinite for None."""
    return math.inf if max_seconds is None else checked_positive(max_seconds, "max_seconds")


def checked_target(path: str | Path) -> Path:
    """``path`` as a file that can be written, tried out in its folder; otherwise an error."""
    target = Path(path)
    if not target.parent.is_dir():
        raise InputError(
            f"There is no folder {target.parent} to write {target.name!r} to. Make it first."
        )
    if target.is_dir():
        raise InputError(f"{target} is a folder. Give the name of a file.")
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is a pipe or a device. Give the name of a file.")
    try:
        check_writable(target)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}.") from None
    return target
