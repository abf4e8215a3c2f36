"""Charts of advice: every training and every bound has its mark; open ends do no harm."""

import dataclasses
import math

import numpy as np
import pytest
from test_learning_rate_race import trial
from test_what_if import table, variant

from normscope import report
from normscope.diagnose._race import choose
from normscope.results import LRAdvice, LRBound, StabilityBound, StabilityLimit, Variant


def advice(**fields):
    trials = (
        trial(0.1, 0.5),
        trial(1.0, 1.5, learned=False),
        trial(2.0, 1e9, diverged=True),
        trial(4.0, math.nan, diverged=True),
    )
    limit = StabilityLimit(
        "diverges", StabilityBound("diverges", 1.0, 2.0),
        StabilityBound("does-not-learn", 0.0, 1.0), trials, True, 1.0,
    )  # fmt: skip
    nothing = (math.nan, math.nan, math.nan)
    given = {
        "lr": 0.2, "low": 0.1, "high": 0.3, "rule": "a rule", "reason": "a reason " * 30,
        "bounds": (
            LRBound("theory", *nothing, "a rule", "not covered"),
            LRBound("threshold", 0.4, 0.3, math.inf, "a rule"),
            LRBound("diverges", 1.4, 1.0, 2.0, "a rule"),
            LRBound("does-not-learn", 0.0, 0.0, 1.0, "a rule"),
        ),
        "race": (trial(0.1, 0.2), trial(0.2, 0.1), trial(0.4, 0.3)),
        "limit": limit, "seconds": 1.0,
    }  # fmt: skip
    return LRAdvice(**(given | fields))


def svg_of(chart, tmp_path):
    text = report.save(chart, tmp_path / "chart.svg").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    return text


def data_rows(chart):
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lr": math.nan, "low": math.nan, "high": math.nan, "race": ()},
        {"limit": None},
        {"race": (trial(0.1, -0.2), trial(0.2, -1.0), trial(0.4, 0.0))},
    ],
)
def test_every_training_and_bound_is_drawn(fields, tmp_path):
    found = advice(**fields)
    chart = found.chart()
    svg_of(chart, tmp_path)
    rows = data_rows(chart)
    trainings = [row for row in rows if "outcome" in row]
    assert len(trainings) == len(found.race) + (4 if found.limit else 0)
    assert all(math.isfinite(row["loss"]) for row in trainings)
    names = {row["name"] for row in rows if "name" in row}
    assert {"local threshold", "diverges at", "stops learning above"} <= names
    assert "theory" not in names
    assert ("recommended" in names) == found.ok
    assert ("No recommendation" in str(chart.to_dict()["title"])) == (not found.ok)


def test_chart_and_text_rank_rates_by_the_same_number():
    """The end of a training run may be lower at another rate than its second half."""
    falling = dataclasses.replace(trial(0.4, 0.01), losses=np.array([2.0, 0.9, 0.8, 0.01]))
    level = dataclasses.replace(trial(0.2, 0.2), losses=np.array([2.0, 0.4, 0.3, 0.2]))
    chart = advice(race=(level, falling)).chart()
    drawn = {row["lr"]: row for row in data_rows(chart) if "race" in row.get("kind", "")}
    assert {lr: row["loss"] for lr, row in drawn.items()} == {0.2: level.score, 0.4: falling.score}
    assert choose([level, falling]).best is level
    assert "mean loss over the second half" in str(chart.to_dict())


def test_titles_can_be_given():
    assert advice().chart(title="mine").to_dict()["title"]["text"] == "mine"
    assert table(variant("x", 1.0, 1.0, 2.0)).chart(title="mine").to_dict()["title"][
        "text"
    ] == "mine"  # fmt: skip


def test_what_if_has_a_mark_per_limit(tmp_path):
    unlimited = variant("open", 60.0, 2.0, math.inf)
    bare = dataclasses.replace(variant("bare", 5.0, 1.0, 2.0), diverges=None, does_not_learn=None)
    found = table(variant("flat", 1.0, 0.9, 1.1), unlimited, bare, Variant("bogus", reason="no"))
    chart = found.chart()
    svg_of(chart, tmp_path)
    rows = [row for row in data_rows(chart) if "kind" in row]
    rates = [row for row in rows if "lr" in row]
    assert {row["change"] for row in rows} == {"as it is", "flat", "open", "bare"}
    assert len(rates) == 3 + 3 + 3 + 1
    assert [row["end"] for row in rates if row["change"] == "open"] == ["found"] + ["beyond"] * 2
    ratios = {(r["change"], r["kind"]): r["ratio"] for r in rows if "ratio" in r}
    assert ratios["flat", "by curvature"] == 60
    assert ("open", "by training") not in ratios
    assert "factor 60" in chart.to_dict()["title"]["subtitle"][0]
    assert all(np.isfinite([row["low"], row["high"]]).all() for row in rows)
