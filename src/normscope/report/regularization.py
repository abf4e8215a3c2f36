"""Charts of batch norm's regularization: loss gaps over the batch size, layer by layer."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    legend,
    log_axis,
    named_scale,
    number_label,
    tips,
)
from normscope.results import BatchNormRegularization

WIDTH, HEIGHT, COLUMNS = 230, 200, 3
BAND = 2.0  # standard errors on either side
ALL = "all layers together"
MEASURED = "measured"
LINES = {
    "predicted": ("predicted", PALETTE[0], [1, 0]),
    "formula": ("R_f + R_q to order 1/M", PALETTE[2], [6, 3]),
    "paper": ("the paper's diagonal form", NEUTRAL, [2, 3]),
}
COLOURS = {label: colour for label, colour, _ in LINES.values()} | {MEASURED: PALETTE[1]}
# one batch size makes no line, and points of one height must not hide one another
SHAPES = dict(zip(COLOURS, ("diamond", "square", "triangle-up", "circle"), strict=True))


def gap_chart(result: BatchNormRegularization, *, layers: list[str] | None = None) -> Any:
    """Loss gap over the batch size: lines as predicted, points as measured, a panel per layer.

    ``layers`` are the names to draw; all of them, and all together, by default.
    """
    names = _chosen([layer.layer for layer in result.layers], layers)
    rows = [row for layer in result.layers if layer.layer in names for row in _layer_rows(layer)]
    panels = list(names)
    if layers is None and len(result.layers) > 1:
        rows += _together_rows(result)
        panels.append(ALL)
    charts = [_panel([row for row in rows if row["layer"] == name], name) for name in panels]
    heading = "Loss that batch noise adds, by batch size"
    notes = [
        f"{result.samples:,} samples, {result.num_batches} batches each; error bars: "
        f"{BAND:g} standard errors",
        "one layer under batch statistics, the others under population statistics",
    ]
    return alt.concat(*charts, columns=COLUMNS).properties(title=alt.Title(heading, subtitle=notes))


def _chosen(known: list[str], asked: list[str] | None) -> list[str]:
    for name in asked or ():
        if name not in known:
            raise InputError(f"No measured layer is called {name!r}. {near_match(name, known)}")
    return known if asked is None else list(asked)


def _layer_rows(layer: Any) -> list[dict[str, Any]]:
    rows = []
    for i, size in enumerate(layer.batch_sizes):
        common = {"layer": layer.layer, "batch_size": int(size)}
        for key, (label, _, _) in LINES.items():
            rows.append(common | {"kind": label, "gap": float(getattr(layer, key)[i])})
        rows.append(common | _measured(layer.measured[i], layer.measured_error[i]))
    return rows


def _together_rows(result: Any) -> list[dict[str, Any]]:
    triples = zip(result.batch_sizes, result.together, result.together_error, strict=True)
    return [
        {"layer": ALL, "batch_size": int(size)} | _measured(gap, error)
        for size, gap, error in triples
    ]


def _measured(gap: float, error: float) -> dict[str, Any]:
    spread = BAND * float(error)
    return {"kind": MEASURED, "gap": float(gap), "low": gap - spread, "high": gap + spread}


def _panel(rows: list[dict[str, Any]], name: str) -> Any:
    measured = [row for row in rows if row["kind"] == MEASURED]
    lines = [row for row in rows if row["kind"] != MEASURED]
    positive = all(row["gap"] > 0 for row in rows)
    y = {"title": "loss gap", **_gap_axis(rows, positive=positive)}
    x = alt.X("batch_size:Q", title="batch size M", **_size_axis(rows))
    colour, shape = _legend(alt.Color, COLOURS), _legend(alt.Shape, SHAPES)
    dashes = {label: dash for label, _, dash in LINES.values()}
    dash = alt.StrokeDash("kind:N", legend=None, scale=named_scale(dashes))
    told = tips("layer:N", "kind:N", alt.Tooltip("batch_size:Q"), "gap:Q", form=".4g")
    dots = {"filled": True, "size": 60, "opacity": 1}
    drawn = []
    if lines:
        base = alt.Chart(inline(lines)).encode(
            x=x, y=alt.Y("gap:Q", **y), color=colour, tooltip=told
        )
        drawn.append(base.mark_line(strokeWidth=2).encode(strokeDash=dash))
        drawn.append(base.mark_point(**dots).encode(shape=shape))
    if positive:  # an error bar down to zero ends where the log axis does
        end = y["scale"].domain[0]
        measured = [row | {"low": max(row["low"], end)} for row in measured]
    base = alt.Chart(inline(measured)).encode(x=x, color=colour, tooltip=told)
    drawn.append(base.mark_rule(strokeWidth=1.6).encode(y=alt.Y("low:Q", **y), y2="high:Q"))
    drawn.append(base.mark_point(**dots).encode(y=alt.Y("gap:Q", **y), shape=shape))
    return alt.layer(*drawn).properties(
        width=WIDTH, height=HEIGHT, title=alt.Title(name, limit=WIDTH)
    )


def _legend(channel: Any, values: dict[str, Any]) -> Any:
    return legend(channel, "kind:N", values, orient="bottom", columns=2)


def _size_axis(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Logarithmic, with the measured batch sizes as ticks."""
    sizes = sorted({row["batch_size"] for row in rows})
    axis = log_axis([float(size) for size in sizes])
    ticks = sizes[:: math.ceil(len(sizes) / 6)]
    return {**axis, "axis": alt.Axis(values=ticks, format="d", grid=False)}


def _gap_axis(rows: list[dict[str, Any]], *, positive: bool) -> dict[str, Any]:
    if positive:
        return log_axis([row["gap"] for row in rows] + [row.get("high", 0.0) for row in rows])
    return {"scale": alt.Scale(zero=True), "axis": alt.Axis(labelExpr=number_label())}
