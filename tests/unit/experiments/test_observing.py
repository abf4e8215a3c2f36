"""Common functions of experiments: parts, pairs of runs, panels of arms."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from normscope.errors import InputError
from normscope.experiments import observing
from normscope.experiments.experiment import Table
from normscope.experiments.reproduce import rounded
from normscope.results.rules import judge

A, B = {"norm": "batch"}, {"norm": "none"}
RUNS = {("batch", 1): [4.0, 1.0], ("batch", 0): [2.0, 0.5], ("none", 0): [3.0, 3.0],
        ("none", 1): [8.0, 2.0]}  # fmt: skip
TABLE = Table([({"norm": n, "seed": s}, {"losses": np.array(v)}) for (n, s), v in RUNS.items()])


def test_parts_take_values_observations_and_what_all_share() -> None:
    found = observing.parts({"one": np.arange(2.0), "two": {"holds": [True]}}, threshold=1.0)
    assert rounded(found) == {"parts": {"one": {"values": [0.0, 1.0], "threshold": 1.0},
                                        "two": {"holds": [True], "threshold": 1.0}}}  # fmt: skip
    by_column = observing.columns([[1.0, 5.0], [2.0, 6.0]], ["a", "b"], expected=0.0)
    assert rounded(by_column["parts"]["b"]) == {"values": [5.0, 6.0], "expected": 0.0}


def test_arrays_of_any_kind_become_plain_data_once() -> None:
    found = observing.parts({"a": np.float32([0.5]), "b": {"holds": np.array([True, False])}})
    assert json.loads(json.dumps(rounded(found))) == rounded(found)
    assert judge("count", found["parts"]["b"], {}).observed == "1 of 2"


def test_pairs_are_of_the_same_seed_in_any_order() -> None:
    found = observing.paired(TABLE, "losses", A, B)
    assert found.tolist() == [[-4.0, -1.0], [-1.0, -2.5]]  # in the order of the first arm
    last = observing.paired(TABLE, lambda run: run["losses"][-1], A, B, log10=True)
    assert last == pytest.approx([np.log10(1 / 2), np.log10(0.5 / 3)])


def test_pairs_need_one_run_of_each_seed() -> None:
    with pytest.raises(InputError, match="seeds"):
        observing.paired(Table(TABLE.rows[1:]), "losses", A, B)
    with pytest.raises(InputError, match="4 runs with 2 seeds"):
        observing.paired(TABLE, "losses", {}, B)
    with pytest.raises(InputError, match="0 runs"):
        observing.paired(TABLE, "losses", {"norm": "layer"}, B)


def test_infinite_losses_are_values() -> None:
    table = Table([({"arm": a, "seed": 0}, {"late": v}) for a, v in (("x", np.inf), ("y", 1.0))])
    assert observing.paired(table, "late", {"arm": "x"}, {"arm": "y"}).tolist() == [np.inf]


def test_over_sizes_takes_a_number_a_list_or_a_function() -> None:
    groups = [np.ones(2), np.ones(3)]
    for theory in (4.0, [4.0, 4.0], lambda n: 4.0):
        found = rounded(observing.over_sizes([10, 20], groups, theory))
        assert found == {"sizes": [10, 20], "values": [[1.0] * 2, [1.0] * 3], "theory": [4.0, 4.0]}


def test_slopes_are_those_of_straight_lines() -> None:
    x = np.array([1.0, 2.0, 5.0])
    assert observing.slopes(x, [3 * x + 1, -x]) == pytest.approx([3.0, -1.0])


def test_panels_of_arms_have_means_and_intervals_over_seeds() -> None:
    arms = {"BN": A, "Plain": B}
    panel = observing.training_panel(TABLE, "Fig. 1", arms)
    assert [c.name for c in panel.curves] == ["BN", "Plain"]
    assert panel.curves[0].y == (3.0, 0.75)
    assert panel.curves[0].low == pytest.approx((1.0, 0.25))  # two standard errors
    bars = observing.arm_bars(TABLE, "Table 1", arms, lambda r: r["losses"][-1], "loss",
                              printed={"BN": 0.7})  # fmt: skip
    assert bars.curves[0].x == ("BN", "Plain")
    assert bars.curves[0].y == (0.75, 2.5)
    assert bars.curves[1].y == (0.7,)


RATES = np.array([0.125, 0.25, 0.3, 0.5, 0.8, 1.0, 2.0])


def bowls(*lowest: float) -> np.ndarray:
    """Losses of seeds that are parabolas in log2 of the rate, (rates, seeds)."""
    return np.stack([0.2 + (np.log2(RATES) - place) ** 2 for place in lowest], 1)


def test_the_lowest_point_of_a_parabola_is_found_in_any_unit() -> None:
    found = observing.fitted_minimum(RATES, bowls(-0.9, -0.9, -0.9), 0.25, remainder=0.1)
    assert found["value"] == pytest.approx(-0.9 + 2)
    assert found["interval"] == pytest.approx([1.0, 1.2])
    each = observing.fitted_minimum(RATES, bowls(-0.9, -0.9), [0.5, 0.125])
    assert each["value"] == pytest.approx(-0.9 + 2)  # geometric mean of the units
    # three points of another curve, beside numpy's fit
    x, loss = np.log2(RATES), np.cosh(np.log2(RATES) + 0.8)[:, None]
    a, b, _ = np.polyfit(x[2:5], loss[2:5, 0], 2)
    assert observing.fitted_minimum(RATES, loss)["value"] == pytest.approx(-b / (2 * a))


def test_the_interval_is_that_of_every_resampling_of_the_seeds() -> None:
    lowest = np.array([-1.1, -0.9, -0.6])
    found = observing.fitted_minimum(RATES, bowls(*lowest))
    # means of parabolas of one width have the mean place; the ends have a weight of 1/27 > 2.5 %
    ways = [lowest[list(way)].mean() for way in itertools.product(range(3), repeat=3)]
    assert found["interval"] == pytest.approx([min(ways), max(ways)])
    assert found["value"] == pytest.approx(lowest.mean())


@pytest.mark.parametrize("place", [-6.0, 4.0])
def test_a_minimum_at_an_end_of_the_grid_is_undecided_and_no_number(place: float) -> None:
    found = observing.fitted_minimum(RATES, bowls(place, place, place))
    assert np.isnan(found["value"])
    verdict = judge("within", rounded(found), {"expected": place, "slack": 9.0})
    assert (verdict.verdict, verdict.observed) == ("undecided", None)
    assert "end of the grid" in verdict.reason
    mixed = observing.fitted_minimum(RATES, bowls(-0.9, -0.9, place))  # open on that side
    assert np.isinf(mixed["interval"]).tolist() == [place < 0, place > 0]


def test_a_minimum_beside_diverging_runs_lies_between_its_neighbours() -> None:
    losses = bowls(-0.1, -0.1, -0.1)
    losses[5, 1] = losses[6] = np.inf  # one run at rate 1 is enough
    found = observing.fitted_minimum(RATES, losses)
    assert found["value"] == pytest.approx(np.log2(0.8))
    assert found["interval"] == pytest.approx([-1.0, 0.0])
    losses[:] = np.inf
    assert np.isnan(observing.fitted_minimum(RATES, losses)["value"])


def test_a_minimum_of_networks_that_learn_nothing_is_no_minimum() -> None:
    losses = bowls(-0.9, -0.9, -0.9)
    assert observing.fitted_minimum(RATES, losses, ceiling=0.3)["why"] == ""
    found = observing.fitted_minimum(RATES, losses, ceiling=0.2)
    assert np.isnan(found["value"])
    assert "not below 0.2" in judge("within", found, {"expected": -1.0, "slack": 0.5}).reason
    assert observing.fitted_minimum(RATES, losses, [1.0, 1.0, np.nan])["why"] == "no unit"
