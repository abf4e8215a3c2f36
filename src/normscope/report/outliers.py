"""What makes a network sharp: the mean gradient of each output beside the largest eigenvalue."""

from __future__ import annotations

from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import (
    PALETTE,
    inline,
    legend,
    log_axis,
    number_label,
    positive,
    tips,
    whole_axis,
)
from normscope.results import LeadingDirections

WIDTH, HEIGHT = 460, 260
WIDE = 50.0  # ratio from which on the axis is logarithmic
SERIES = {
    "curvature along it": (PALETTE[0], "circle"),
    "its squared length": (PALETTE[1], "diamond"),
}


def outlier_chart(found: LeadingDirections) -> Any:
    """One column per output: its mean gradient's squared length, and the curvature along it.

    Both are at most lambda_max, the dashed line; where they come near it, the sharpest direction
    is one in which all samples move together.
    """
    rows: list[dict[str, Any]] = [
        {"output": k, "kind": kind, "value": float(value)}
        for kind, values in zip(SERIES, (found.rayleigh, found.outliers), strict=True)
        for k, value in enumerate(values)
        if positive(float(value))
    ]
    top = float(found.values[0])
    if not rows or not positive(top):
        raise InputError("There is nothing to draw: the network's outputs have no mean gradient.")
    y = {"title": "of the mean gradient of one output", **_axis([r["value"] for r in rows], top)}
    x = alt.X("output:Q", title="output", **whole_axis(0, len(found.outliers) - 1))
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=70, opacity=1)
    line = alt.Chart(inline([{"top": top, "name": "λ_max"}])).mark_rule(
        strokeDash=[6, 4], strokeWidth=2
    )
    layers = [
        line.encode(y=alt.Y("top:Q", **y), tooltip=tips("name:N line", "top:Q")),
        dots.encode(
            x=x,
            y=alt.Y("value:Q", **y),
            color=_legend(alt.Color, 0),
            shape=_legend(alt.Shape, 1),
            tooltip=tips(alt.Tooltip("output:Q"), "kind:N", "value:Q"),
        ),
    ]
    notes = [
        f"dashed: λ_max = {top:.4g}; the curvature along mean gradients, mixed at best, reaches "
        f"{found.explained:.0%} of it"
    ]
    heading = alt.Title("Mean gradients and the sharpest direction", subtitle=notes)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def _axis(values: list[float], top: float) -> dict[str, Any]:
    """Linear from zero, so that shares of lambda_max can be seen; log over decades."""
    if min(values) < top / WIDE:
        return log_axis([*values, top])
    return {"scale": alt.Scale(domain=[0, 1.06 * top], nice=False)} | {
        "axis": alt.Axis(labelExpr=number_label())
    }


def _legend(channel: Any, part: int) -> Any:
    given = {kind: values[part] for kind, values in SERIES.items()}
    return legend(channel, "kind:N", given, orient="top")
