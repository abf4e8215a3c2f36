"""Schedules against their formulas written out."""

import pytest

from normscope.errors import InputError
from normscope.train import (
    Constant,
    EpochDecay,
    Exponential,
    InverseTime,
    StepDecay,
    WarmStart,
    When,
    schedules,
)
from normscope.train.schedules import as_schedule


def rates(schedule, steps, per_epoch=10, base=0.1):
    return [schedule.lr(base, When(t, per_epoch, steps)) for t in range(steps)]


def test_constant():
    assert rates(Constant(), 3) == [0.1] * 3


def test_step_falls_at_half_and_three_quarters():
    expected = [0.1] * 20 + [0.01] * 10 + [0.001] * 10
    assert rates(StepDecay(), 40) == pytest.approx(expected)


def test_epoch_falls_at_the_start_of_the_epochs():
    expected = [0.1] * 20 + [0.05] * 10 + [0.025] * 10
    assert rates(EpochDecay(epochs=(2, 3), factor=0.5), 40) == pytest.approx(expected)


def test_inverse_time_and_exponential():
    assert rates(InverseTime(0.5), 3) == pytest.approx([0.1, 0.1 / 1.5, 0.05])
    assert rates(Exponential(0.5), 3) == pytest.approx([0.1, 0.05, 0.025])


def test_both_readings_of_the_paper_agree_to_second_order():
    when = When(100, None, None)
    ratio = InverseTime().lr(1.0, when) / Exponential().lr(1.0, when)
    assert ratio - 1 == pytest.approx(0.5 * (1e-4 * 100) ** 2, rel=0.05)


def test_warm_start_is_one_epoch_at_a_small_rate():
    expected = [1e-4] * 10 + [0.1] * 10
    assert rates(WarmStart(), 20) == expected
    then = [1e-4] * 10 + [0.1] * 10 + [0.01] * 10 + [0.001] * 10
    assert rates(WarmStart(then=StepDecay()), 40) == pytest.approx(then)


@pytest.mark.parametrize("name", sorted(schedules))
def test_every_name_means_a_schedule(name):
    assert rates(as_schedule(name), 5)[0] > 0


def test_unknown_names_and_unknown_lengths():
    with pytest.raises(InputError, match="Did you mean 'constant'"):
        as_schedule("constnat")
    with pytest.raises(InputError, match="steps="):
        StepDecay().lr(0.1, When(0, None, None))
    with pytest.raises(InputError, match="a loader with a length"):
        WarmStart().lr(0.1, When(0, None, 10))
