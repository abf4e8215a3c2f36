"""Charts that stand in pages: prediction beside measurement, outliers, layout, rates, ratios."""

import math
from dataclasses import replace

import numpy as np
import pytest
from chart_reading import log_values, marks, rows

from examinations import hostile, normalized
from normscope.errors import InputError
from normscope.report.converter import svg
from normscope.report.difference import difference_page
from normscope.report.rates import YOURS, rates_chart
from normscope.results import Modes, NormModes, Score, compare_examinations
from normscope.results.layout import NormUse


def drawn(chart):
    return svg(chart.to_dict()).decode()


def test_comparison_has_both_matrices():
    found = normalized()["comparison"]
    chart = found.chart()
    values = {(row["matrix"], row["kind"]): row["value"] for row in rows(chart)}
    assert values["JᵀJ / T", "predicted"] == found.predicted
    assert values["JᵀJ / T", "measured"] == found.measured
    assert values["of the loss", "predicted"] == pytest.approx(found.loss_scale * found.predicted)
    assert values["of the loss", "measured"] == found.loss_measured
    assert min(log_values(chart)) > 0
    assert len(marks(drawn(chart), "symbol")) == 4


def test_comparison_of_the_squared_loss_has_one_matrix():
    found = replace(normalized()["comparison"], loss_scale=1.0)
    assert {row["matrix"] for row in rows(found.chart())} == {"JᵀJ / T"}


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf, -1.0])
def test_comparison_leaves_out_what_a_log_axis_cannot_show(bad):
    found = replace(normalized()["comparison"], predicted=bad, loss_predicted=bad)
    chart = found.chart()
    assert {row["kind"] for row in rows(chart)} == {"measured"}
    nothing = replace(found, measured=bad, loss_measured=bad)
    with pytest.raises(InputError, match="nothing to draw"):
        nothing.chart()


def test_a_bound_wider_than_its_value_stays_positive():
    found = replace(normalized()["comparison"], bound=1e9)
    assert min(log_values(found.chart())) > 0


def test_outliers_have_two_points_per_output_and_the_line():
    found = hostile()["outliers"]
    chart = found.chart()
    data = rows(chart)
    assert len([row for row in data if "output" in row]) == 2 * len(found.outliers)
    assert [row["top"] for row in data if "top" in row] == [found.values[0]]
    assert len(marks(drawn(chart), "symbol")) == 2 * len(found.outliers)


def test_outliers_over_decades_take_a_log_axis():
    found = hostile()["outliers"]
    tiny = replace(found, outliers=found.outliers * 1e-6)
    assert log_values(tiny.chart())
    assert not log_values(found.chart())
    with pytest.raises(InputError, match="nothing to draw"):
        replace(found, outliers=np.zeros(3), rayleigh=np.zeros(3)).chart()


def test_layout_shows_layers_and_norms_in_order():
    found = normalized()["layout"]
    chart = found.chart()
    lines = [row["line"] for row in rows(chart)]
    assert lines.count("layers, input normalized") == 3
    assert lines.count("layers, input not normalized") == 1
    assert lines.count("BatchNorm1d") == 3
    assert len(marks(drawn(chart), "symbol")) == 7
    plain = hostile()["layout"].chart()
    assert {row["line"] for row in rows(plain)} == {"layers, input not normalized"}


def test_layout_shows_unused_norms():
    norms = (NormUse("a", "BatchNorm1d", 1, True, 1.0), NormUse("b", "BatchNorm1d", 0, False, 1.0))
    chart = replace(normalized()["layout"], norms=norms).chart()
    names = [row["name"] for row in rows(chart) if row.get("line") == "norms never used"]
    assert names == ["b"]
    assert len(marks(drawn(chart), "symbol")) == 6


def test_modes_show_losses_and_running_statistics():
    norms = (
        NormModes("a", "BatchNorm1d", mean_gap=0.3, variance_ratio=4.0, updates=5, values=64),
        NormModes("b", "BatchNorm1d"),
    )
    found = Modes(Score(1.0), Score(1.0), running=Score(2.5, 0.5), norms=norms)
    data = rows(found.chart())
    assert [row["ratio"] for row in data if "ratio" in row] == [4.0]
    losses = {row["mode"]: row["loss"] for row in data if "mode" in row}
    assert losses == {"batch statistics": 1.0, "running statistics": 2.5}
    assert len(marks(drawn(found.chart()), "symbol")) == 1
    assert drawn(replace(found, norms=()).chart())


def test_rates_show_the_one_asked_about_and_the_threshold():
    found = hostile()
    chart = rates_chart(found)
    named = {row["name"]: row for row in rows(chart) if "name" in row}
    assert named[YOURS]["lr"] == 50.0
    threshold = next(n for n in found.numbers if "threshold" in n.quantity)
    assert named["local threshold"]["lr"] == threshold.value
    assert named["local threshold"]["low"] == threshold.low
    assert named["theory"]["lr"] == pytest.approx(2 / found["comparison"].loss_predicted)
    assert drawn(chart)


def test_rates_need_one():
    with pytest.raises(InputError, match="no learning rate was found"):
        rates_chart(replace(hostile(), numbers=(), measurements={}))


def test_ratios_have_a_row_for_every_number_that_moved():
    found = compare_examinations(normalized(), hostile())
    chart = found.chart()
    shown = [row for row in rows(chart) if "name" in row]
    moved = [n for n in found.numbers if n.measurement and 0 < n.ratio < math.inf and n.ratio != 1]
    assert [row["ratio"] for row in shown] == [n.ratio for n in moved]
    assert all((row["side"] == "larger in B") == (row["ratio"] > 1) for row in shown)
    assert len(marks(drawn(chart), "symbol")) == len(shown)
    with pytest.raises(InputError, match="nothing to draw"):
        compare_examinations(hostile(), hostile()).chart()


def test_a_comparison_writes_shares_and_symbols_as_a_page_does():
    found = compare_examinations(normalized(), hostile())
    shares = [n for n in found.numbers if n.quantity.startswith("share") and n.first == n.first]
    assert shares
    text = difference_page(found)
    for number in shares:
        assert f'<td class="num">{100 * number.first:.3g} %</td>' in text
    names = [row["name"] for row in rows(found.chart()) if "name" in row]
    assert any("JᵀJ" in name for name in names)
    assert not any("^T" in name for name in names)
