"""Predicted beside measured: one row per matrix, on one log axis."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    legend,
    log_axis,
    named_scale,
    positive,
    tips,
)
from normscope.results import Comparison

WIDTH, ROW = 460, 64
PLAIN, OWN = "JᵀJ / T", "of the loss"
COLOURS = {"predicted": PALETTE[1], "measured": PALETTE[0]}
SHAPES = {"predicted": "diamond", "measured": "circle"}


def comparison_chart(found: Comparison) -> Any:
    """lambda_max by theory (diamonds) and on the network (dots, with the bound of their error)."""
    rows = _rows(found)
    if not rows:
        raise InputError("There is nothing to draw: no largest eigenvalue is positive.")
    order = list(dict.fromkeys(row["matrix"] for row in rows))
    ends = [end for row in rows for end in (row["low"], row["high"])]
    x = {"title": "largest eigenvalue λ_max", **log_axis(ends)}
    y = alt.Y("matrix:N", title=None, sort=order, axis=alt.Axis(labelLimit=140))
    colour = legend(alt.Color, "kind:N", COLOURS, orient="top", symbolSize=110)
    base = alt.Chart(inline(rows)).encode(y=y)
    link = base.mark_line(color=NEUTRAL, strokeWidth=2).encode(
        x=alt.X("value:Q", **x), detail="matrix:N"
    )
    bars = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", **x), x2="high:Q", color=colour)
    dots = base.mark_point(filled=True, size=130, opacity=1).encode(
        x=alt.X("value:Q", **x),
        color=colour,
        shape=alt.Shape("kind:N", title=None, scale=named_scale(SHAPES)),
        tooltip=tips("matrix:N", "kind:N", "value:Q λ_max"),
    )
    heading = alt.Title("Largest eigenvalue, predicted and measured", subtitle=_notes(found))
    return alt.layer(link, bars, dots).properties(
        width=WIDTH, height=ROW * len(order), title=heading
    )


def _rows(found: Comparison) -> list[dict[str, Any]]:
    pairs = [
        (PLAIN, "predicted", found.predicted, 0.0),
        (PLAIN, "measured", found.measured, found.bound),
    ]
    if found.loss_scale != 1:  # otherwise the second matrix is the first
        pairs += [(OWN, "predicted", found.loss_predicted, 0.0)]
        pairs += [(OWN, "measured", found.loss_measured, 0.0)]
    return [
        {"matrix": matrix, "kind": kind, "value": value, "high": value + bound}
        | {"low": value - bound if value > bound else value / 2}
        for matrix, kind, value, bound in pairs
        if positive(value)
    ]


def _notes(found: Comparison) -> list[str]:
    notes = [f"over the weights; measured / predicted = {found.ratio:.3g} for {PLAIN}"]
    if found.loss_scale != 1 and math.isfinite(found.loss_scale):
        notes.append(f"prediction for the loss: scaled by {found.loss_scale:.3g}, an approximation")
    return [*notes, *found.flags]
