"""Where a network is normalized: its layers in a row, the norms above them."""

from __future__ import annotations

from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import NEUTRAL, PALETTE, inline, layer_axis, tips
from normscope.results import LayerUse, Layout, NormUse

WIDTH, ROW, HEIGHT = 620, 34, 180
LAYERS, NORMALIZED = "layers, input not normalized", "layers, input normalized"
GATES, UNUSED = "layers of gates", "norms never used"
BELOW = (UNUSED, NORMALIZED, LAYERS, GATES)
GAMMA = "gamma:Q scale γ (rms)"  # tooltip


def layout_chart(found: Layout) -> Any:
    """The weighted layers by depth, each kind of norm on a line of its own."""
    rows = [_layer_row(x, side=x.name in found.side) for x in found.layers]
    rows += [_norm_row(norm) for norm in found.norms]
    if not rows:
        raise InputError("There is nothing to draw: no layer was found.")
    ends = min(row["layer"] for row in rows), max(row["layer"] for row in rows)
    title = f"{found.normalized} of {found.hidden_layers} hidden layers are normalized"
    before, behind = found.last_input_norm or "none", found.output_norm or "none"
    notes = [f"last layer {found.last}: norm before it {before}, behind it {behind}"]
    return _strip(rows, ends).properties(title=alt.Title(title, subtitle=notes))


def _layer_row(layer: LayerUse, *, side: bool) -> dict[str, Any]:
    line = GATES if side else NORMALIZED if layer.normalized else LAYERS
    return {"layer": layer.depth, "name": layer.name, "line": line, "kind": layer.kind}


def _norm_row(norm: NormUse) -> dict[str, Any]:
    row = {"layer": norm.number, "name": norm.name, "kind": norm.kind, "gamma": norm.gamma}
    return row | {"line": norm.kind if norm.used else UNUSED}


def _strip(rows: list[dict[str, Any]], ends: tuple[int, int]) -> Any:
    lines = list(dict.fromkeys(row["line"] for row in rows))
    kinds = [line for line in lines if line not in BELOW]
    order = kinds + [line for line in BELOW if line in lines]
    tints = {line: PALETTE[place % len(PALETTE)] for place, line in enumerate(kinds)}
    colours = [PALETTE[1] if o == UNUSED else tints.get(o, NEUTRAL) for o in order]
    shapes = ["circle" if o in tints else "cross" if o == UNUSED else "square" for o in order]
    size = max(20, min(110, 4000 // max(ends[1], 1)))
    marks = alt.Chart(inline(rows)).mark_point(filled=True, size=size, opacity=1)
    return marks.encode(
        x=_layer_axis(ends),
        y=alt.Y("line:N", title=None, sort=order, axis=alt.Axis(labelLimit=170, grid=True)),
        color=alt.Color("line:N", scale=alt.Scale(domain=order, range=colours), legend=None),
        shape=alt.Shape("line:N", scale=alt.Scale(domain=order, range=shapes), legend=None),
        tooltip=tips("name:N", "kind:N", alt.Tooltip("layer:Q", format="d"), GAMMA),
    ).properties(width=WIDTH, height=ROW * len(order))


def _layer_axis(ends: tuple[int, int]) -> Any:
    return layer_axis(ends, "depth")
