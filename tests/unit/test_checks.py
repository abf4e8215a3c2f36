"""Whole numbers and finite numbers as arguments."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.checks import checked_count, checked_number, checked_numbers
from normscope.errors import InputError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_counts_are_plain_integers(value):
    made = checked_count(value, "n")
    assert made == 3
    assert type(made) is int


@pytest.mark.parametrize("value", [1, 2.0, "3", None, True, [3], float("nan")])
def test_what_is_no_count_is_refused_by_name_and_value(value):
    with pytest.raises(InputError, match="steps must be a whole number from 2: one is none") as e:
        checked_count(value, "steps", least=2, why="one is none")
    assert repr(value) in str(e.value)


def test_numbers_keep_their_shape_and_become_float64():
    made = checked_numbers(np.ones((2, 3), dtype=np.float32), "x")
    assert made.shape == (2, 3)
    assert made.dtype == np.float64
    assert checked_numbers(4, "x").shape == ()


@pytest.mark.parametrize("values", ["a", None, [[1.0], [1.0, 2.0]], 1j, {}])
def test_what_is_no_number_is_refused(values):
    with pytest.raises(InputError, match="x must be real numbers"):
        checked_numbers(values, "x")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_are_finite(bad):
    with pytest.raises(InputError, match=f"x must be finite. Got {bad} among 2 values"):
        checked_numbers([1.0, bad], "x")


def test_one_number():
    assert checked_number(np.float32(0.5), "x") == 0.5
    with pytest.raises(InputError, match=r"x must be one number\. Got 2"):
        checked_number([1.0, 2.0], "x")
