"""Charts that stand in pages: prediction beside measurement, outliers, layout, trials, ratios."""

import math
from dataclasses import replace

import numpy as np
import pytest
from chart_reading import log_values, marks, rows

from examinations import hostile, normalized
from normscope.errors import InputError
from normscope.report.converter import svg
from normscope.report.difference import difference_page
from normscope.results import Modes, NormModes, Score, compare_examinations
from normscope.results.layout import NormUse
from normscope.results.trial import Rung, Trial


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


def test_the_trial_has_a_colour_for_every_rate():
    rungs = [Rung(10.0**k, 2, 2, 2.3, 2.2, (2.3, 2.2)) for k in range(-2, 5)]
    drawn = Trial(0.1, 2.3, 2.3, 2.3, tuple(rungs)).chart().to_dict()
    scale = drawn["layer"][-1]["encoding"]["color"]["scale"]
    assert len(set(scale["range"])) == len(scale["domain"]) == 7


def test_the_trial_shows_each_rate_and_the_constant_prediction():
    rungs = (
        Rung(1.0, 25, 2, 2.0, math.inf, (2.0, 1e9, math.nan), "diverged"),
        Rung(0.1, 25, 3, 2.0, 1.0, (2.1, 1.7, 1.3)),
        Rung(0.1, 100, 4, 2.0, 0.9, (2.1, 1.7, 1.3, 1.1)),
        Rung(0.2, 25, 3, 2.0, 0.8, (2.1, 50.0, 1.3)),
    )
    found = Trial(0.5, 2.3, 2.3, 2.0, rungs)
    data = rows(found.chart())
    assert [row["loss"] for row in data if "name" in row] == [2.3]
    losses = {}
    for row in data:
        losses.setdefault(row.get("rate"), []).append(row["loss"])
    assert losses["lr 0.05"] == [2.1, 1.7, 1.3, 1.1, 0.9]  # the longest
    assert losses["lr 0.5"] == [2.0, 3 * 2.3, 3 * 2.3]  # it ends at the upper edge
    assert losses["lr 0.1"] == [2.1, 3 * 2.3, 1.3, 0.8]  # it comes back from there
    assert "lr 0.5: NaN or infinite after 2 updates" in str(found.chart().title.subtitle)
    assert len(marks(drawn(found.chart()), "line")) == 3
    several = replace(found, lr=None, constant=math.nan)
    assert {row["rate"] for row in rows(several.chart())} == {
        "your rates",
        "your rates × 0.1",
        "your rates × 0.2",
    }
    with pytest.raises(InputError, match="no update was made"):
        replace(found, rungs=()).chart()


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
