"""The chart of batch norm's regularization."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest
from chart_reading import marks, rows, views

from normscope import report
from normscope.errors import InputError
from normscope.report.converter import svg
from normscope.results import BatchNormRegularization, LayerRegularization

SIZES = np.array([16, 64])


def layer(name, sign=1.0):
    table = np.full((2, 3), 0.01)
    gaps = sign * np.array([0.2, 0.05])
    return LayerRegularization(
        layer=name, kind="BatchNorm1d", positions=1, batch_sizes=SIZES, gamma=np.ones(3),
        excess_kurtosis=np.zeros(3), skewness=np.zeros(3),
        mean_variance=1 / SIZES[:, None] + 0 * table,
        deviation_variance=0.5 / SIZES[:, None] + 0 * table, zeta_mean=table, zeta_deviation=table,
        first_order=0 * gaps, second_order=gaps, second_order_error=0 * gaps,
        wide_second_order=1.1 * gaps, wide_second_order_error=0.01 * abs(gaps), measured=1.2 * gaps,
        measured_error=0.05 * abs(gaps), curvature="exact Hessian",
    )  # fmt: skip


def result(*layers):
    return BatchNormRegularization(
        layers=layers, batch_sizes=SIZES, together=np.array([0.3, 0.06]),
        together_error=np.array([0.01, 0.002]), everywhere=np.array([0.3, 0.06]),
        everywhere_error=np.array([0.01, 0.002]), population_loss=0.5, samples=100, num_batches=10,
        sampling="independent", loss="cross_entropy", seed=0,
    )  # fmt: skip


def test_a_panel_per_layer_and_one_for_all(tmp_path):
    drawn = result(layer("a"), layer("b")).chart()
    found = rows(drawn)
    assert {row["layer"] for row in found} == {"a", "b", "all layers together"}
    measured = [row for row in found if row["kind"] == "measured" and row["layer"] == "a"]
    assert [row["gap"] for row in measured] == pytest.approx([0.24, 0.06])
    assert [row["high"] - row["gap"] for row in measured] == pytest.approx([0.02, 0.005])
    report.save(drawn, tmp_path / "gaps.svg")
    svg = (tmp_path / "gaps.svg").read_text()
    assert len(marks(svg, "line")) == 6  # three predictions in each of two panels
    assert len(marks(svg, "symbol")) == 2 * (4 + 4 + 1)  # at each size: two layers, and all


def test_negative_gaps_are_drawn_on_a_linear_axis(tmp_path):
    drawn = result(layer("a", sign=-1.0)).chart(title="mine")
    report.save(drawn, tmp_path / "gaps.svg")
    svg = (tmp_path / "gaps.svg").read_text()
    assert "mine" in svg
    assert len(marks(svg, "symbol")) == 2 * 4


def at_one_size(found):
    """As an examination measures it."""

    def first(value):
        return value[:1] if isinstance(value, np.ndarray) and value.shape[:1] == (2,) else value

    def cut(record):
        named = {f.name: getattr(record, f.name) for f in fields(record)}
        return replace(record, **{name: first(value) for name, value in named.items()})

    return replace(cut(found), layers=tuple(cut(layer) for layer in found.layers))


def test_one_batch_size_shows_every_series():
    found = at_one_size(result(layer("a")))
    chart = found.chart()
    kinds = {row["kind"] for row in rows(chart)}
    assert len(kinds) == 4
    picture = svg(chart.to_dict()).decode()
    drawn = re.findall(r'kind: ([^;]+);[^"]*"[^>]* aria-roledescription="point"', picture)
    assert sorted(drawn) == sorted(kinds)  # a line of one point draws nothing
    assert len(set(marks(picture, "symbol"))) == 4


def test_an_error_bar_below_zero_ends_with_the_log_axis():
    wide = replace(layer("a"), measured_error=np.array([0.5, 0.5]))
    chart = result(wide).chart()
    low = min(row["low"] for row in rows(chart) if "low" in row)
    ends = [v["encoding"]["y"]["scale"]["domain"] for v in views(chart.to_dict())]
    assert {tuple(end) for end in ends} == {tuple(ends[0])}
    assert low == ends[0][0]


def test_a_long_name_does_not_stretch_the_chart():
    widths = []
    for name in ("a", "a" * 190):
        picture = svg(result(layer(name)).chart().to_dict()).decode()
        widths.append(float(re.search(r'width="([\d.]+)"', picture)[1]))
    assert widths[1] == pytest.approx(widths[0], abs=20)


def test_some_layers():
    drawn = result(layer("a"), layer("b")).chart(layers=["b"])
    assert {row["layer"] for row in rows(drawn)} == {"b"}
    with pytest.raises(InputError, match="called 'c'"):
        result(layer("a")).chart(layers=["c"])


def test_what_is_said():
    said = " ".join(result(layer("a"), layer("b", sign=-1.0)).advice())
    assert "larger batch regularizes less" in said
    assert "b: batch noise is predicted to lower the loss" in said
    assert "a: the diagonal form behind zeta gives 0.06, the complete one 0.22" in said
    assert "Layers do not add" in said
    assert "kinks" not in said  # 10 % is within the bar and its error
    found = result(layer("a"))
    assert found.layers[0].mean_share == pytest.approx([0.5, 0.5])
    assert found.layers[0].effective_batch_size == pytest.approx(SIZES)
    assert found.layers[0].ratio == pytest.approx([1.2 / 1.1] * 2)


def test_kinks_are_said():
    kinked = layer("a")
    kinked = replace(kinked, wide_second_order=1.5 * kinked.second_order)
    assert "a: the Hessian sees a curvature of 0.05, the noise one of 0.075" in " ".join(
        result(kinked).advice()
    )
