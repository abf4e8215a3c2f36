"""Where a network is normalized: its layers in a row, the norms above them."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import NEUTRAL, PALETTE, inline, layer_axis, log_axis, positive, tips
from normscope.results import Layout, NormUse

WIDTH, ROW, HEIGHT = 620, 34, 180
WEIGHTED = ("linear", "conv")
LAYERS, UNUSED = "layers with weights", "norms never used"
GAMMA = "gamma:Q scale γ (rms)"  # tooltip


def layout_chart(found: Layout) -> Any:
    """The weighted layers by number, each kind of norm on a line of its own.

    Below it, where norms keep running statistics: how far they are from those of the batch.
    """
    weighted = [layer for layer in found.coverage.layers if layer.kind in WEIGHTED]
    rows: list[dict[str, Any]] = [
        {"layer": x.number, "name": x.name, "line": LAYERS, "kind": x.kind} for x in weighted
    ]
    for norm in found.norms:
        line = norm.kind if norm.used else UNUSED
        row = {"layer": norm.number, "name": norm.name, "line": line, "kind": norm.kind}
        rows.append(row | {"gamma": norm.gamma})
    if not rows:
        raise InputError("There is nothing to draw: no layer was found.")
    ends = min(row["layer"] for row in rows), max(row["layer"] for row in rows)
    panels = [_strip(rows, ends)]
    known = [n for n in found.norms if math.isfinite(n.mean_gap) and positive(n.variance_ratio)]
    kept = [norm for norm in known if norm.used and norm.updates]
    if kept:
        panels.append(_running(kept, ends))
    title = f"{found.normalized} of {found.hidden_layers} hidden layers are normalized"
    before, behind = found.last_input_norm or "none", found.output_norm or "none"
    notes = [f"last layer {found.last}: norm before it {before}, behind it {behind}"]
    heading = alt.Title(title, subtitle=notes)
    if len(panels) == 1:
        return panels[0].properties(title=heading)
    return alt.vconcat(*panels, title=heading)


def _strip(rows: list[dict[str, Any]], ends: tuple[int, int]) -> Any:
    lines = list(dict.fromkeys(row["line"] for row in rows))
    kinds = [line for line in lines if line not in (LAYERS, UNUSED)]
    order = kinds + [line for line in (UNUSED, LAYERS) if line in lines]
    tints = {line: PALETTE[place % len(PALETTE)] for place, line in enumerate(kinds)}
    colours = [NEUTRAL if o == LAYERS else PALETTE[1] if o == UNUSED else tints[o] for o in order]
    shapes = ["square" if o == LAYERS else "cross" if o == UNUSED else "circle" for o in order]
    size = max(20, min(110, 4000 // max(ends[1], 1)))
    marks = alt.Chart(inline(rows)).mark_point(filled=True, size=size, opacity=1)
    return marks.encode(
        x=_layer_axis(ends),
        y=alt.Y("line:N", title=None, sort=order, axis=alt.Axis(labelLimit=170, grid=True)),
        color=alt.Color("line:N", scale=alt.Scale(domain=order, range=colours), legend=None),
        shape=alt.Shape("line:N", scale=alt.Scale(domain=order, range=shapes), legend=None),
        tooltip=tips("name:N", "kind:N", alt.Tooltip("layer:Q", format="d"), GAMMA),
    ).properties(width=WIDTH, height=ROW * len(order))


def _running(norms: list[NormUse], ends: tuple[int, int]) -> Any:
    rows = [
        {"layer": n.number, "name": n.name, "ratio": n.variance_ratio, "gap": n.mean_gap}
        for n in norms
    ]
    axis = log_axis([*(n.variance_ratio for n in norms), 0.5, 2.0])
    y = alt.Y("ratio:Q", title="variance: batch / running", **axis)
    one = alt.Chart(inline([{"one": 1.0}])).mark_rule(color=NEUTRAL, strokeDash=[4, 3])
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=50, opacity=1, color=PALETTE[0])
    shown = tips("name:N", "ratio:Q variance ratio", "gap:Q gap of means")
    return alt.layer(
        one.encode(y=alt.Y("one:Q")), dots.encode(x=_layer_axis(ends), y=y, tooltip=shown)
    ).properties(width=WIDTH, height=HEIGHT)


def _layer_axis(ends: tuple[int, int]) -> Any:
    return layer_axis(ends, "number of the layer")
