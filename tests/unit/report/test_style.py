"""Colours that can be told apart, and axes that can hold their values."""

import math

import numpy as np
import pytest

from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, positive, theme


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


GROUNDS = ("#ffffff", str(theme(dark=True)["background"]))


@pytest.mark.parametrize("dark", [False, True])
def test_lines_and_text_stand_out_on_both_grounds(dark):
    config = theme(dark=dark)
    ground = "#ffffff" if config["background"] == "white" else config["background"]
    for colour in (*PALETTE[:4], NEUTRAL):
        assert contrast(colour, ground) >= 3, colour  # WCAG for graphics
    for colour in (config["axis"]["labelColor"], config["axis"]["titleColor"]):
        assert contrast(colour, ground) >= 4.5, colour  # WCAG for text


# Brettel/Vienot matrices for linear RGB: what a protanope and a deuteranope see
PROTAN = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
DEUTAN = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])


def seen(colour: str, matrix):
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.clip(matrix @ parts**2.2, 0, 1) ** (1 / 2.2)


@pytest.mark.parametrize("matrix", [np.eye(3), PROTAN, DEUTAN])
def test_theories_differ_for_colour_blind_readers(matrix):
    colours = (*PALETTE[:3], NEUTRAL)
    for i, one in enumerate(colours):
        for other in colours[:i]:
            assert np.abs(seen(one, matrix) - seen(other, matrix)).max() > 0.1, (one, other)


@pytest.mark.parametrize("values", [[1.0], [3.0, 3.3], [2.0, 15.0], [1e-3, 1e3], [1e-9, 1e12],
                                    [0.0, -1.0, math.nan, math.inf, 5.0, 7.0], []])  # fmt: skip
def test_log_axis_holds_its_values_and_has_ticks(values):
    made = log_axis(values)
    low, high = made["scale"].domain
    shown = [v for v in values if positive(v)]
    assert 0 < low < high
    assert all(low <= v <= high for v in shown)
    ticks = made["axis"]["values"]
    assert 2 <= len(ticks) <= 25
    assert all(low <= tick <= high for tick in ticks)


def test_positive():
    assert positive(1e-300)
    for value in (None, 0.0, -1.0, math.nan, math.inf):
        assert not positive(value)


def test_inline_data_is_plain_and_unlimited():
    rows = [{"a": np.float64(1.5), "b": math.nan, "c": "x", "d": np.int64(2)}] * 6000
    made = inline(rows)["values"]
    assert len(made) == 6000
    assert made[0] == {"a": 1.5, "b": None, "c": "x", "d": 2}
