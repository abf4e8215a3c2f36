"""A panel of a figure as a chart: measurements as points with intervals, theory as lines."""

from __future__ import annotations

import re
from typing import Any

import altair as alt

from normscope.report.stability_map import heat_cells, heat_layer
from normscope.report.style import (
    COLOURS,
    inline,
    log_axis,
    named_scale,
    plain_axis,
    positive,
    tips,
    whole_axis,
)
from normscope.results.panel import Curve, HeatMap, Panel

WIDTH, HEIGHT = 460, 300
MOST_WHOLE = 300  # whole numbers, such as layers, on an axis of their own kind
MANY = 12  # points from which on measurements are joined by a thin line
DASHES = {"line": [1, 0], "dashed": [6, 4]}
# a legend for each kind: what is measured has circles there, theory has lines
LEGENDS = {"band": "square", "line": "stroke", "dashed": "stroke", "points": "circle"}


def panel_chart(panel: Panel) -> Any:
    """Every curve in a colour of its own; what is measured has points, what is theory has none."""
    maps = [one for one in panel.curves if isinstance(one, HeatMap)]
    curves = [one for one in panel.curves if one not in maps]
    rows = [row for one in curves for row in _rows(one, panel)]
    cells = {one.name: _cells(one) for one in maps}
    places = [row["x"] for row in rows] + [c["x"] for made in cells.values() for c in made]
    named = any(isinstance(place, str) for place in places)
    ends = [row[k] for row in rows for k in ("y", "low", "high") if row.get(k) is not None]
    ends += [cell[k] for made in cells.values() for cell in made for k in ("y", "y2")]
    x = _x(panel, places, named=named)
    y = {"title": panel.y, **(log_axis(ends) if panel.log_y else plain_axis())}
    names = list(dict.fromkeys(one.name for one in curves))
    own = _settings(panel.curves)
    order = list(dict.fromkeys(own.values()))
    colours = {name: COLOURS[order.index(key) % len(COLOURS)] for name, key in own.items()}
    groups = [heat_layer(made, x, alt.Y("y:Q", **y), name) for name, made in cells.items()]
    for style, symbol in LEGENDS.items():
        kind = [row for row in rows if row["style"] == style]
        scale = named_scale({r["curve"]: colours[r["curve"]] for r in kind})
        dash = DASHES.get(style, alt.Undefined)
        look = alt.Legend(
            symbolType=symbol, symbolStrokeWidth=2.5, symbolDash=dash, symbolOpacity=1, labelLimit=0
        )
        shown = look if len(names) > 1 else None
        colour = alt.Color("curve:N", title=None, sort=names, scale=scale, legend=shown)
        if kind:
            groups.append(alt.layer(*_layers(style, kind, x, y, colour)))
    notes = [panel.note] if panel.note else []
    heading = alt.Title(panel.title, subtitle=notes)
    whole = alt.layer(*groups).resolve_scale(color="independent")
    return whole.properties(width=WIDTH, height=HEIGHT, title=heading)


def _settings(curves: tuple[Curve, ...]) -> dict[str, str]:
    """The setting of each curve: "A, theory" and "A, measured" share one, and its colour.

    Curves of one style are told apart by colour only, so that they share none.
    """
    styles = {one.name: one.style for one in curves}
    matches = {name: re.match(r"(.+)(?:, |: )", name) for name in styles}
    first = {name: match[1] if match else name for name, match in matches.items()}
    whole = set(first.values())  # "A" belongs to "A, theory"
    own = {name: name if name in whole else key for name, key in first.items()}
    groups: dict[str, list[str]] = {}
    for name, key in own.items():
        groups.setdefault(key, []).append(styles[name])
    same = {key for key, found in groups.items() if len(found) > len(set(found))}
    return {name: name if key in same else key for name, key in own.items()}


def _x(panel: Panel, places: list[Any], *, named: bool) -> Any:
    if named:
        order = list(dict.fromkeys(map(str, places)))
        return alt.X(
            "x:N", title=panel.x, sort=order, axis=alt.Axis(labelAngle=-30, labelLimit=200)
        )
    whole = places and all(float(place).is_integer() for place in places)
    if whole and not panel.log_x and max(places) - min(places) <= MOST_WHOLE:
        return alt.X("x:Q", title=panel.x, **whole_axis(int(min(places)), int(max(places))))
    axis = log_axis(places) if panel.log_x else plain_axis()
    if not panel.log_x:
        axis["scale"] = alt.Scale(zero=False, padding=8)  # no point on the edge
        if places and min(places) >= 0:  # times and sizes: no axis below zero
            low, high = min(places), max(places)
            room = 0.03 * (high - low) or 0.5
            domain = [max(0.0, low - room), high + room]
            axis["scale"] = alt.Scale(zero=False, nice=False, domain=domain)
    return alt.X("x:Q", title=panel.x, **axis)


def _rows(one: Curve, panel: Panel) -> list[dict[str, Any]]:
    rows = []
    places = [x for x in one.x if not isinstance(x, str)]
    joined = len(one.x) >= MANY and places == sorted(places)  # else a cloud of points
    for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
        row: dict[str, Any] = {"curve": one.name, "style": one.style, "x": x, "y": y, "place": i}
        if one.low and one.high:
            row |= {"low": one.low[i], "high": one.high[i]}
        if panel.log_y:
            row |= {k: None for k in ("low", "high") if k in row and not positive(row[k])}
            if not positive(y):
                continue
        if panel.log_x and not (isinstance(x, str) or positive(x)):
            continue
        rows.append(row | {"many": joined})
    return rows


def _cells(one: HeatMap) -> list[dict[str, Any]]:
    columns: dict[Any, list[tuple[float, float]]] = {}
    for x, y, z in zip(one.x, one.y, one.z, strict=True):
        columns.setdefault(x, []).append((y, z))
    made = heat_cells([(x, *zip(*cells, strict=True)) for x, cells in columns.items()])
    return [cell | {k: 10 ** cell[k] for k in ("y", "y2")} for cell in made]


def _layers(
    style: str, rows: list[dict[str, Any]], x: Any, y: dict[str, Any], colour: Any
) -> list[Any]:
    if not rows:
        return []
    base = alt.Chart(inline(rows)).encode(x=x, color=colour)
    told = tips(
        "curve:N", "x:N" if isinstance(rows[0]["x"], str) else "x:Q", "y:Q", "low:Q", "high:Q"
    )
    value = alt.Y("y:Q", **y)
    if style == "band":
        area = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", **y), y2="high:Q")
        return [area]
    if style in ("line", "dashed"):
        line = base.mark_line(strokeWidth=2, strokeDash=DASHES[style], clip=True)
        return [line.encode(y=value, order="place:Q", tooltip=told)]
    bars = base.transform_filter("datum.low != null && datum.high != null").mark_rule(
        strokeWidth=1.5
    )
    thin = base.transform_filter("datum.many").mark_line(strokeWidth=1, opacity=0.5)
    dots = base.mark_point(filled=True, size=55, opacity=1)
    return [
        thin.encode(y=value, order="place:Q"),
        bars.encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        dots.encode(y=value, tooltip=told),
    ]
