"""Observations: parts, values over sizes, the lowest point of a grid."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from normscope.experiments.reproduce import rounded
from normscope.results import observations
from normscope.results.rules import judge


def test_parts_take_values_observations_and_what_all_share() -> None:
    found = observations.parts({"one": np.arange(2.0), "two": {"holds": [True]}}, threshold=1.0)
    assert rounded(found) == {"parts": {"one": {"values": [0.0, 1.0], "threshold": 1.0},
                                        "two": {"holds": [True], "threshold": 1.0}}}  # fmt: skip
    by_column = observations.columns([[1.0, 5.0], [2.0, 6.0]], ["a", "b"], expected=0.0)
    assert rounded(by_column["parts"]["b"]) == {"values": [5.0, 6.0], "expected": 0.0}


def test_over_sizes_takes_a_number_a_list_or_a_function() -> None:
    groups = [np.ones(2), np.ones(3)]
    for theory in (4.0, [4.0, 4.0], lambda n: 4.0):
        found = rounded(observations.over_sizes([10, 20], groups, theory))
        assert found == {"sizes": [10, 20], "values": [[1.0] * 2, [1.0] * 3], "theory": [4.0, 4.0]}


RATES = np.array([0.125, 0.25, 0.3, 0.5, 0.8, 1.0, 2.0])


def bowls(*lowest: float) -> np.ndarray:
    """Losses of seeds that are parabolas in log2 of the rate, (rates, seeds)."""
    return np.stack([0.2 + (np.log2(RATES) - place) ** 2 for place in lowest], 1)


def test_the_lowest_point_of_a_parabola_is_found_in_any_unit() -> None:
    found = observations.fitted_minimum(RATES, bowls(-0.9, -0.9, -0.9), 0.25, remainder=0.1)
    assert found["value"] == pytest.approx(-0.9 + 2)
    assert found["interval"] == pytest.approx([1.0, 1.2])
    each = observations.fitted_minimum(RATES, bowls(-0.9, -0.9), [0.5, 0.125])
    assert each["value"] == pytest.approx(-0.9 + 2)  # geometric mean of the units
    # three points of another curve, beside numpy's fit
    x, loss = np.log2(RATES), np.cosh(np.log2(RATES) + 0.8)[:, None]
    a, b, _ = np.polyfit(x[2:5], loss[2:5, 0], 2)
    assert observations.fitted_minimum(RATES, loss)["value"] == pytest.approx(-b / (2 * a))


def test_the_interval_is_that_of_every_resampling_of_the_seeds() -> None:
    lowest = np.array([-1.1, -0.9, -0.6])
    found = observations.fitted_minimum(RATES, bowls(*lowest))
    # means of parabolas of one width have the mean place; the ends have a weight of 1/27 > 2.5 %
    ways = [lowest[list(way)].mean() for way in itertools.product(range(3), repeat=3)]
    assert found["interval"] == pytest.approx([min(ways), max(ways)])
    assert found["value"] == pytest.approx(lowest.mean())


@pytest.mark.parametrize("place", [-6.0, 4.0])
def test_a_minimum_at_an_end_of_the_grid_is_undecided_and_no_number(place: float) -> None:
    found = observations.fitted_minimum(RATES, bowls(place, place, place))
    assert np.isnan(found["value"])
    verdict = judge("within", rounded(found), {"expected": place, "slack": 9.0})
    assert (verdict.verdict, verdict.observed) == ("undecided", None)
    assert "end of the grid" in verdict.reason
    mixed = observations.fitted_minimum(RATES, bowls(-0.9, -0.9, place))  # open on that side
    assert np.isinf(mixed["interval"]).tolist() == [place < 0, place > 0]


def test_a_minimum_beside_diverging_runs_lies_between_its_neighbours() -> None:
    losses = bowls(-0.1, -0.1, -0.1)
    losses[5, 1] = losses[6] = np.inf  # one run at rate 1 is enough
    found = observations.fitted_minimum(RATES, losses)
    assert found["value"] == pytest.approx(np.log2(0.8))
    assert found["interval"] == pytest.approx([-1.0, 0.0])
    losses[:] = np.inf
    assert np.isnan(observations.fitted_minimum(RATES, losses)["value"])


def test_a_minimum_of_networks_that_learn_nothing_is_no_minimum() -> None:
    losses = bowls(-0.9, -0.9, -0.9)
    assert observations.fitted_minimum(RATES, losses, ceiling=0.3)["why"] == ""
    found = observations.fitted_minimum(RATES, losses, ceiling=0.2)
    assert np.isnan(found["value"])
    assert "not below 0.2" in judge("within", found, {"expected": -1.0, "slack": 0.5}).reason
    assert observations.fitted_minimum(RATES, losses, [1.0, 1.0, np.nan])["why"] == "no unit"
