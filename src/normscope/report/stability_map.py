"""The stability map: test loss over a setting and the learning rate, with boundary and theories."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np

from normscope.report.phases import cell_borders
from normscope.report.style import PALETTE, inline, named_scale, positive, tips
from normscope.results.stability_map import StabilityMap

WIDTH, HEIGHT = 460, 380
MEASURED = "measured limit"
NAMES = {"corrected": "corrected theory", "wei2019": "Wei et al. 2019, as printed"}
NAMES |= {"wei2019-as-plotted": "Wei et al. 2019, as plotted"}
COLOURS = {MEASURED: "#000000"} | dict(
    zip(NAMES.values(), (PALETTE[1], PALETTE[3], PALETTE[3]), strict=True)
)


def map_chart(found: StabilityMap) -> Any:
    """log10 of the test loss by colour; white where a run failed."""
    x = alt.X("x:Q", title=found.axis, scale=alt.Scale(nice=False, zero=False))
    low, high = (math.log10(end) for end in (found.lrs.min(), found.lrs.max()))
    pad = 0.02 * (high - low) + 1e-3
    y: dict[str, Any] = {"title": "log10 learning rate"}
    y |= {"scale": alt.Scale(domain=[low - pad, high + pad], nice=False)}
    heat = alt.Chart(inline(_cells(found))).mark_rect(strokeWidth=0).encode(
        x=x, x2="x2:Q", y=alt.Y("y:Q", **y), y2="y2:Q",
        color=alt.Color("shown:Q", scale=alt.Scale(scheme="viridis"),
                        legend=alt.Legend(title="log10 test loss", gradientLength=180)),
        tooltip=tips("value:Q " + found.axis, "lr:Q", "loss:Q test loss"),
    )  # fmt: skip
    layers = [heat, *_lines(found, y, (low - pad, high + pad)), *_boundary(found, y)]
    words = "diverges" if found.criterion == "diverges" else "diverges or learns nothing"
    title = f"Where training is stable, over {found.axis} and learning rate"
    notes = [f"white: a run of {found.seeds} {words}; dots: measured limit with its interval"]
    notes += [f"lines: critical rate, dashed: half of it; chance {found.chance:.3g}"]
    heading = alt.Title(title, subtitle=notes)
    drawn = alt.layer(*layers).resolve_scale(color="independent")
    return drawn.properties(width=WIDTH, height=HEIGHT, title=heading)


def _cells(found: StabilityMap) -> list[dict[str, Any]]:
    columns = cell_borders(found.values)
    rows = cell_borders(np.log10(found.lrs))
    return [
        {"x": left, "x2": right, "y": bottom, "y2": top, "loss": found.loss[i, j]}
        | {"value": found.values[i], "lr": found.lrs[j]}
        | {"shown": math.log10(found.loss[i, j])}
        for i, (left, right) in enumerate(columns)
        for j, (bottom, top) in enumerate(rows)
        if positive(found.loss[i, j])
    ]


def _lines(found: StabilityMap, y: dict[str, Any], ends: tuple[float, float]) -> list[Any]:
    rows = [
        {"x": float(value), "y": math.log10(rate * part), "theory": NAMES.get(name, name)}
        | {"line": f"{name} {part}", "rate": rate * part, "half": part < 1}
        for name, rates in found.theories.items()
        for value, rate in zip(found.values, rates, strict=True)
        for part in (1.0, 0.5)
        if positive(rate) and ends[0] <= math.log10(rate * part) <= ends[1]
    ]
    if not rows:
        return []
    base = alt.Chart(inline(rows)).encode(x="x:Q", y=alt.Y("y:Q", **y), detail="line:N")
    shown = {MEASURED, *(row["theory"] for row in rows)}
    colours = {name: colour for name, colour in COLOURS.items() if name in shown}
    colour = alt.Color("theory:N", title=None, scale=named_scale(colours))
    dash = alt.StrokeDash("half:N", legend=None, scale=alt.Scale(range=[[1, 0], [6, 4]]))
    told = tips("theory:N", "rate:Q")
    return [
        base.mark_line(color="white", strokeWidth=4, opacity=0.7),
        base.mark_line(strokeWidth=2).encode(color=colour, strokeDash=dash, tooltip=told),
    ]


def _boundary(found: StabilityMap, y: dict[str, Any]) -> list[Any]:
    rows = [
        {"x": float(value), "y": math.log10(limit), "theory": MEASURED, "rate": limit}
        | {"low": math.log10(bound.low), "high": math.log10(bound.high)}
        for value, limit, bound in zip(found.values, found.boundary, found.bounds, strict=True)
        if positive(limit) and bound.closed
    ]
    base = alt.Chart(inline(rows)).encode(x="x:Q")
    told = tips("rate:Q measured limit")
    marks = base.mark_point(filled=True, color="black", stroke="white", size=60, opacity=1)
    return [
        base.mark_rule(color="black", strokeWidth=2).encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        marks.encode(y=alt.Y("y:Q", **y), tooltip=told),
    ]
