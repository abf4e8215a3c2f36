"""Charts by layer: whole numbers at the ticks, one axis for all panels, series that can be seen."""

from dataclasses import replace

import numpy as np
import pytest
from chart_reading import rows, tick_labels, views
from test_style import DEUTAN, GROUNDS, PROTAN, contrast, seen

from examinations import hostile, normalized
from normscope.report.converter import svg
from normscope.report.style import MOST_TICKS, theme, whole_axis

BY_LAYER = ("layout", "activations", "gradients", "conditioning")


@pytest.mark.parametrize(("first", "last"), [(1, 1), (1, 2), (0, 3), (1, 12), (1, 31), (0, 4000)])
def test_whole_axis_has_few_whole_ticks_and_room_at_its_ends(first, last):
    made = whole_axis(first, last)
    ticks = made["axis"]["values"]
    assert all(isinstance(tick, int) and first <= tick <= last for tick in ticks)
    assert len(set(ticks)) == len(ticks)
    assert min(last - first + 1, 5) <= len(ticks) <= MOST_TICKS
    assert made["scale"].domain == [first - 0.5, last + 0.5]


@pytest.mark.parametrize("name", BY_LAYER)
@pytest.mark.parametrize("made", [hostile, normalized])
def test_panels_share_one_axis_of_layers(made, name):
    chart = made()[name].chart()
    found = [v["encoding"]["x"] for v in views(chart.to_dict()) if "x" in v.get("encoding", {})]
    axes = [x for x in found if x["field"] == "layer"]
    assert len(axes) >= 1
    ends = {tuple(x["scale"]["domain"]) for x in axes}
    numbers = [row["layer"] for row in rows(chart) if "layer" in row]
    assert ends == {(min(numbers) - 0.5, max(numbers) + 0.5)}


@pytest.mark.parametrize("name", [*BY_LAYER, "outliers"])
@pytest.mark.parametrize("made", [hostile, normalized])
def test_no_axis_says_a_number_twice(made, name):
    for labels in tick_labels(svg(made()[name].chart().to_dict()).decode()):
        assert len(set(labels)) == len(labels), labels


def with_terms(**given):
    found = normalized()["gradients"]
    return replace(found, layers=tuple(replace(layer, **given) for layer in found.layers))


def test_columns_that_nobody_can_tell_apart_are_not_drawn():
    dense = with_terms(t1=4.0, t2=4.0, t3=1.0, t4=1.0).chart()
    assert {row["column"][:2] for row in rows(dense) if "column" in row} == {"T1", "T4"}
    assert "position" not in dense.to_dict()["title"]["subtitle"][-1]
    spatial = with_terms(t1=4.0, t2=3.0, t3=2.0, t4=1.0).chart()
    named = {row["column"][:2] for row in rows(spatial) if "column" in row}
    assert named == {"T1", "T2", "T3", "T4"}
    assert "position" in spatial.to_dict()["title"]["subtitle"][-1]
    colours = [
        {label[:2]: colour for label, colour in zip(s["domain"], s["range"], strict=True)}
        for s in (column_scale(dense), column_scale(spatial))
    ]
    assert colours[0].items() <= colours[1].items()


def column_scale(chart):
    encodings = [view["encoding"] for view in views(chart.to_dict())]
    return next(e["color"]["scale"] for e in encodings if "color" in e)


def test_units_are_dead_as_everywhere_else():
    shown = [
        {row["units"] for row in rows(found["activations"].chart()) if "units" in row}
        for found in (hostile(), normalized())
    ]
    assert shown == [{"dead (always 0)", "always active"}, set()]  # left out where there are none


@pytest.mark.parametrize("ground", GROUNDS)
def test_bars_of_channels_stand_out(ground):
    chart = normalized()["activations"].chart().to_dict()
    marks = [v["mark"] for v in views(chart) if v["mark"]["type"] == "rule"]
    assert marks
    for mark in marks:
        parts = zip(pixels(mark["color"]), pixels(ground), strict=True)
        mixed = [round(mark["opacity"] * a + (1 - mark["opacity"]) * b) for a, b in parts]
        assert contrast("#" + "".join(f"{c:02x}" for c in mixed), ground) >= 3


def pixels(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_condition_numbers_can_be_told_apart():
    chart = normalized()["conditioning"].chart().to_dict()
    right = list(views(chart["hconcat"][1]))
    colours = right[0]["encoding"]["color"]["scale"]["range"]
    assert len(colours) == 4
    for place, one in enumerate(colours):
        assert all(contrast(one, ground) >= 3 for ground in GROUNDS), one
        for other in colours[:place]:
            for matrix in (np.eye(3), PROTAN, DEUTAN):
                assert np.abs(seen(one, matrix) - seen(other, matrix)).max() > 0.1
    shapes = right[1]["encoding"]["shape"]["scale"]["range"]
    assert len(set(shapes)) == 4


def test_each_panel_has_one_legend():
    picture = svg(normalized()["conditioning"].chart().to_dict()).decode()
    assert picture.count('role-legend"') == 2


def test_a_legend_is_as_strong_as_what_it_names():
    assert theme()["legend"]["symbolOpacity"] == 1
