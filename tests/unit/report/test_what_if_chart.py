"""The chart of changes: open ends do not push the rest aside, and say where they are."""

import math

import pytest
from chart_reading import log_values, marks, rows

from normscope.report.converter import svg
from normscope.report.what_if import OPEN
from normscope.results import StabilityBound, Variant, WhatIf


def variant(change, diverges):
    return Variant(
        change, loss=2.3, lambda_max=10.0, lambda_error=0.0, threshold=0.2,
        diverges=StabilityBound("diverges", *diverges),
        does_not_learn=StabilityBound("does-not-learn", 0.9, 1.1), learned=True, reached=0.1,
        reached_lr=0.9, kappa=10.0,
    )  # fmt: skip


def test_an_open_end_is_drawn_near_the_rest_and_keeps_its_number():
    found = WhatIf((variant("as it is", (4.0, 5.0)), variant("calm", (6e8, math.inf))), 1.0)
    chart = found.chart()
    open_end = next(row for row in rows(chart) if row.get("end") == "beyond")
    assert open_end["lr"] == open_end["low"] == pytest.approx(OPEN * 5.0)
    assert open_end["shown"] == "above 6e+08"
    assert max(log_values(chart)) < 1e4
    picture = svg(chart.to_dict()).decode()
    assert len(marks(picture, "symbol")) == 2 * 3 + 2  # rates of both, two ratios of the change


def test_an_open_end_nearby_stays_where_it_is():
    found = WhatIf((variant("as it is", (4.0, 5.0)), variant("calm", (40.0, math.inf))), 1.0)
    assert next(row for row in rows(found.chart()) if row.get("end") == "beyond")["low"] == 40.0
