"""The race of learning rates as a function of a loss curve that is known."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.diagnose._race import MOST, choose, climb
from normscope.results import StabilityTrial


def trial(lr, final, *, diverged=False, start=2.0, learned=True, reason=""):
    return StabilityTrial(
        lr=lr, seed=0, diverged=diverged, learned=learned, updates=3, start=start, final=final,
        chance=2.3, rising=False, reason=reason, losses=np.array([start, final]),
    )  # fmt: skip


def valley(lowest, *, bend=0.3, limit=math.inf):
    """Trainings whose log loss is a parabola of log-lr, and that diverge from ``limit`` on."""

    def run(lr):
        loss = 0.1 * math.exp(bend * math.log(lr / lowest) ** 2)
        return trial(lr, 1e9 if lr >= limit else loss, diverged=lr >= limit)

    return run


@settings(max_examples=100)
@given(
    lowest=st.floats(1e-3, 1e3),
    octaves=st.floats(-MOST, MOST),
    bend=st.floats(0.05, 2.0),
)
def test_the_lowest_point_of_a_valley_is_found_from_either_side(lowest, octaves, bend):
    start = lowest * 2.0**octaves
    race = climb(valley(lowest, bend=bend), start, math.inf)
    found = choose(race)
    assert found.lr == pytest.approx(lowest, rel=1e-6)
    assert found.low <= found.lr <= found.high
    assert len(race) <= abs(octaves) + 6
    assert [t.lr for t in race] == sorted({t.lr for t in race})


@settings(max_examples=50)
@given(lowest=st.floats(0.01, 100.0), cap=st.floats(0.01, 100.0))
def test_no_rate_above_the_cap_is_tried_or_chosen(lowest, cap):
    race = climb(valley(lowest), min(cap, 1.0), cap)
    assert max(t.lr for t in race) <= cap * (1 + 1e-6)
    assert choose(race).lr <= cap * (1 + 1e-6)


def test_losses_next_to_nothing_are_equal_and_the_smaller_rate_counts():
    """Rates at which everything is learned anyway: the largest of them has no merit."""
    race = [trial(lr, loss) for lr, loss in ((0.01, 0.5), (0.1, 1e-4), (1.0, 1e-6), (10.0, 0.0))]
    found = choose(race)
    assert found.lr == 0.1
    assert (found.low, found.high) == (0.1, 10.0)


def test_what_hardly_learned_is_not_as_good():
    """The best came from 2.0 to 1.9 only: 1.25 times that would be more than the start."""
    race = [trial(0.1, 1.97), trial(0.2, 1.9), trial(0.4, 2.2)]
    assert (choose(race).low, choose(race).high) == (0.2, 0.2)


def test_a_wall_beside_the_valley_does_not_bend_the_parabola():
    race = climb(valley(1.0, limit=1.2), 0.5, math.inf)
    assert any(t.diverged for t in race)
    assert choose(race).lr == pytest.approx(1.0, rel=1e-6)


def test_a_race_that_falls_to_its_end_takes_the_end():
    found = choose([trial(0.25, 0.4), trial(0.5, 0.2), trial(0.7, 0.14), trial(1.0, 0.1)])
    assert found.lr == found.best.lr == 1.0
    assert (found.low, found.high) == (1.0, 1.0)  # 0.14 is more than 1.25 times 0.1


def test_what_is_about_as_good_makes_the_interval():
    losses = {0.1: 0.30, 0.2: 0.11, 0.4: 0.1, 0.8: 0.11, 1.6: 0.13, 3.2: 0.11}
    found = choose([trial(lr, loss) for lr, loss in losses.items()])
    assert (found.low, found.high) == (0.2, 0.8)  # 3.2 is as good, but not next to them


def test_an_end_that_is_worse_in_another_order_is_left_out():
    losses = {0.1: 0.30, 0.2: 0.11, 0.4: 0.1, 0.8: 0.11, 1.6: 0.13}
    race = [trial(lr, loss) for lr, loss in losses.items()]
    assert choose(race).tried == (0.2, 0.8)
    again = [trial(0.2, 0.31), trial(0.4, 0.3), trial(0.8, 0.4)]
    assert choose(race, again).tried == (0.2, 0.4)
    assert choose(race, again[2:]).tried == (0.2, 0.8)  # nothing to compare it with


def test_time_that_is_up_leaves_what_is_known():
    left = iter([trial(1.0, 0.5), trial(0.5, 0.4)])
    race = climb(lambda lr: next(left, None), 1.0, math.inf)
    assert [t.lr for t in race] == [0.5, 1.0]
    assert choose(race).lr == 0.5
    assert climb(lambda lr: None, 1.0, math.inf) == []


def test_losses_that_are_not_positive_need_no_logarithm():
    found = choose([trial(0.5, -1.0), trial(1.0, -2.0), trial(2.0, -1.5)])
    assert (found.lr, found.fitted) == (1.0, False)


def test_nothing_but_divergence_is_no_choice():
    assert choose([trial(1.0, math.inf, diverged=True), trial(0.5, math.nan)]) is None
    assert choose([]) is None


def test_a_long_slope_ends_somewhere():
    race = climb(lambda lr: trial(lr, 1 / lr), 1.0, math.inf)
    assert len(race) <= MOST + 6


def test_a_training_counts_by_its_second_half():
    losses = np.array([9.0, 9.0, 4.0, 3.0, 2.0])
    long = dataclasses.replace(trial(1.0, 2.0), losses=losses)
    assert long.score == 3.0
    assert dataclasses.replace(long, diverged=True).score == math.inf
    assert dataclasses.replace(long, losses=losses * math.nan).score == math.inf
