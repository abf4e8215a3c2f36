"""Charts of limits: every trial has its mark, infinite losses and open ends do no harm."""

import dataclasses
import math

import numpy as np
import pytest
from chart_reading import log_values, marks, rows

from normscope import report
from normscope.results import LRRange, StabilityBound, StabilityLimit, StabilityTrial


def trial(lr, *, diverged=False, learned=True, final=0.5):
    return StabilityTrial(
        lr=lr, seed=0, diverged=diverged, learned=learned, updates=3, start=2.0, final=final,
        chance=2.3, rising=False, reason="", losses=np.array([2.0, 1.0, final]),
    )  # fmt: skip


def limit(low=0.5, high=0.6):
    trials = (
        trial(0.1),
        trial(0.5, learned=False, final=3.0),
        trial(0.6, diverged=True, learned=False, final=2e3),
        trial(8.0, diverged=True, learned=False, final=math.inf),
    )
    return StabilityLimit(
        criterion="diverges",
        diverges=StabilityBound("diverges", low, high, reason="a reason"),
        does_not_learn=StabilityBound("does-not-learn", 0.1, 0.5),
        trials=trials,
        complete=True,
        seconds=1.0,
    )


def lr_range(**fields):
    lrs = np.geomspace(1e-3, 10, 20)
    given = {"losses": 1 / lrs, "fitted": 1 / lrs, "slope": -np.ones(20), "suggestion": 0.1}
    given |= {"low": 0.05, "high": 0.2, "turn": 5.0, "ok": True, "reason": "", "rule": "a rule"}
    return LRRange(lrs=lrs, diverged=True, seconds=1.0, **(given | fields))


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.6), (0.0, 0.1), (8.0, math.inf)])
def test_every_trial_has_a_mark(low, high, tmp_path):
    chart = limit(low, high).chart()
    svg = report.save(chart, tmp_path / "chart.svg").read_text()
    assert "NaN" not in svg
    assert len(marks(svg, "symbol")) == 4
    assert all(value > 0 and math.isfinite(value) for value in log_values(chart))
    assert {row["outcome"] for row in rows(chart) if "outcome" in row} == {
        "learned", "did not learn", "diverged"
    }  # fmt: skip
    assert "a reason" in " ".join(chart.to_dict()["title"]["subtitle"])


def test_trainings_and_seeds_are_counted():
    note = limit().chart().to_dict()["title"]["subtitle"][0]
    assert "4 trainings, 1 seed;" in note
    found = limit()
    two = dataclasses.replace(
        found, trials=(dataclasses.replace(found.trials[0], seed=7), trial(1))
    )
    assert "2 trainings, 2 seeds;" in two.chart().to_dict()["title"]["subtitle"][0]


def test_losses_below_zero_get_a_linear_axis(tmp_path):
    found = limit()
    trials = (*found.trials, trial(0.2, final=-1.0))
    chart = dataclasses.replace(found, trials=trials).chart()
    svg = report.save(chart, tmp_path / "chart.svg").read_text()
    assert len(marks(svg, "symbol")) == 5


def test_the_range_has_its_losses_fit_and_suggestion(tmp_path):
    svg = report.save(lr_range().chart(title="A title"), tmp_path / "chart.svg").read_text()
    assert len(marks(svg, "symbol")) == 20
    assert len(marks(svg, "line")) == 1
    assert len(marks(svg, "rule")) == 1
    none = lr_range(ok=False, suggestion=math.nan, reason="why", fitted=np.full(20, math.nan))
    svg = report.save(none.chart(), tmp_path / "none.svg").read_text()
    assert "why" in svg
    assert not marks(svg, "rule")
