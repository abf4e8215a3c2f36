"""Arguments of the teacher-student model, refused where a formula would be silently wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import Array, checked_numbers
from normscope.errors import InputError


def above_zero(name: str, values: ArrayLike, *, why: str) -> Array:
    """Finite and positive; ``why`` says what a value of zero or below would mean."""
    found = checked_numbers(values, name)
    if np.any(found <= 0):
        raise InputError(f"{name} must be above 0, {why}. Got {values!r}.")
    return found


def at_least_zero(name: str, values: ArrayLike, *, why: str) -> Array:
    """Finite and not negative."""
    found = checked_numbers(values, name)
    if np.any(found < 0):
        raise InputError(f"{name} must be at least 0, {why}. Got {values!r}.")
    return found


def correlations(values: ArrayLike) -> Array:
    """R within [-1, 1], rounding forgiven."""
    found = checked_numbers(values, "correlation")
    if np.any(np.abs(found) > 1 + 1e-9):
        raise InputError(
            f"correlation is the cosine between student and teacher, from -1 to 1. Got {values!r}."
        )
    return np.clip(found, -1.0, 1.0)


def learning_rates_of(lr: ArrayLike) -> Array:
    """Check that the learning rates eta are positive."""
    return above_zero("lr", lr, why="a student with no step does not learn")


def decays(zeta: ArrayLike) -> Array:
    """Check that the decay strengths zeta are not negative."""
    return at_least_zero("zeta", zeta, why="a negative decay makes gamma grow for ever")


def lengths(length: ArrayLike) -> Array:
    """Check that the lengths L are positive."""
    return above_zero("length", length, why="it divides the learning rate")


def noise(noise_variance: float) -> float:
    """Check that the noise S is not negative."""
    return float(at_least_zero("noise_variance", noise_variance, why="it is a variance"))


def loads(alpha: ArrayLike) -> Array:
    """The loads alpha = P / N as a 1-D array."""
    found = above_zero("alpha", alpha, why="it is the number of samples over the inputs, P / N")
    if found.ndim > 1 or found.size == 0:
        raise InputError(f"alpha must be a number or a list of numbers. Got shape {found.shape}.")
    return np.atleast_1d(found)
