"""The stability map: test loss over a setting and the learning rate, with boundary and theories."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    columns = [(v, found.lrs, row) for v, row in zip(found.values, found.loss, strict=True)]
    heat = heat_layer(heat_cells(columns), x, alt.Y("y:Q", **y), "log10 test loss")
    layers = [heat, *_lines(found, y, (low - pad, high + pad)), *_boundary(found, y)]
    words = "diverges" if found.criterion == "diverges" else "diverges or learns nothing"
    title = f"Where training is stable, over {found.axis} and learning rate"
    notes = [f"white: a run of {found.seeds} {words}; dots: measured limit with its interval"]
    notes += [f"lines: critical rate, dashed: half of it; chance {found.chance:.3g}"]
    heading = alt.Title(title, subtitle=notes)
    drawn = alt.layer(*layers).resolve_scale(color="independent")
    return drawn.properties(width=WIDTH, height=HEIGHT, title=heading)


def heat_cells(columns: Sequence[tuple[float, Any, Any]]) -> list[dict[str, Any]]:
    """Rectangles of a heat map over a setting and log10 of the rate; none where a loss is unknown.

    Args:
        columns: for each value of the setting its rates and their losses.
    """
    sides = cell_borders(np.array([value for value, _, _ in columns], np.float64))
    return [
        {"x": left, "x2": right, "y": bottom, "y2": top, "loss": loss}
        | {"value": value, "lr": lr, "shown": math.log10(loss)}
        for (value, rates, losses), (left, right) in zip(columns, sides, strict=True)
        for lr, loss, (bottom, top) in zip(
            rates, losses, cell_borders(np.log10(np.asarray(rates))), strict=True
        )
        if positive(loss)
    ]


def heat_layer(rows: list[dict[str, Any]], x: Any, y: Any, title: str) -> Any:
    """The cells in colours by the logarithm of their loss."""
    legend = alt.Legend(title=title, gradientLength=180)
    colour = alt.Color("shown:Q", scale=alt.Scale(scheme="viridis"), legend=legend)
    told = tips(f"value:Q {x.to_dict()['title']}", "lr:Q", "loss:Q")
    base = alt.Chart(inline(rows)).mark_rect(strokeWidth=0)
    return base.encode(x=x, x2="x2:Q", y=y, y2="y2:Q", color=colour, tooltip=told)


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
