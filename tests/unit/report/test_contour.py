"""The zero line of a function on a grid."""

import numpy as np
import pytest

from normscope.report.contour import crossings, zero_contour


def test_crossings_of_a_line_are_exact():
    x = np.array([0.0, 1.0, 3.0])
    assert crossings(x, 2 * x - 3) == [1.5]
    assert crossings(x, np.array([-1.0, 0.0, 1.0])) == [1.0]
    assert crossings(x, np.array([1.0, 2.0, 3.0])) == []
    assert crossings(x, np.array([-1.0, np.nan, 1.0])) == []
    assert crossings(x, np.array([-np.inf, 1.0, -1.0])) == [2.0]


def circle(points):
    x = np.linspace(-1.5, 1.5, points)
    y = np.linspace(-1.4, 1.4, points)
    return x, y, x[None] ** 2 + y[:, None] ** 2 - 1


def test_a_straight_line_is_found_exactly():
    x, y = np.linspace(0, 1, 7), np.linspace(0, 2, 5)
    pieces = zero_contour(x, y, x[None] + 0 * y[:, None] - 0.37)
    assert [end[0] for piece in pieces for end in piece] == pytest.approx([0.37] * 8)
    assert sum(abs(b[1] - a[1]) for a, b in pieces) == pytest.approx(2)


def test_a_circle_closes_and_improves_with_the_square_of_the_step():
    errors = []
    for points in (20, 40, 80):
        pieces = zero_contour(*circle(points))
        ends = [end for piece in pieces for end in piece]
        assert all(ends.count(end) == 2 for end in ends)  # every end meets another piece
        errors.append(max(abs(np.hypot(*end) - 1) for end in ends))
        length = sum(np.hypot(b[0] - a[0], b[1] - a[1]) for a, b in pieces)
        assert length == pytest.approx(2 * np.pi, rel=20 / points**2)
    slope = np.polyfit(np.log([20, 40, 80]), np.log(errors), 1)[0]
    assert slope == pytest.approx(-2, abs=0.5)


def test_cells_that_are_not_finite_are_passed_over():
    x, y, z = circle(20)
    z[:, :10] = np.nan
    pieces = zero_contour(x, y, z)
    assert pieces
    assert min(end[0] for piece in pieces for end in piece) >= x[10]


def test_a_saddle_gives_two_pieces():
    z = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert len(zero_contour(np.array([0.0, 1.0]), np.array([0.0, 1.0]), z)) == 2
