"""Curves of panels: means and intervals over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.results.panel import curve


def test_a_curve_has_means_and_intervals_of_two_standard_errors() -> None:
    made = curve("a", [1, 2], [[1, 2], [2, 3]])
    assert made.y == (1.5, 2.5)
    assert made.high[0] - made.y[0] == pytest.approx(2 * np.std([1, 2], ddof=1) / np.sqrt(2))
    assert curve("b", ["p"], [3.0]).low == ()
    assert curve("c", [1.0], [[1.0, 100.0]], log=True).y == (pytest.approx(10.0),)
