"""Charts of landscapes: lines of loss and channel moments, or a map of a plane."""

from __future__ import annotations

import itertools
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.errors import InputError
from normscope.report.phases import cell_borders
from normscope.report.stability import loss_axis
from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, number_label, positive, tips
from normscope.results import Landscape

WIDTH, HEIGHT = 300, 280
WIDE = 30.0  # ratio of distances above which their axis is logarithmic


def landscape_chart(landscape: Landscape) -> Any:
    """Loss, mean |mu_c| and mean variance of each layer by distance; for a plane a heat map."""
    if landscape.loss.ndim == 2:
        return _map(landscape)
    x, shown = _distance_axis(landscape.distances)
    panels = [_loss_panel(landscape, x, shown)]
    for name, what in (("mean_abs", "mean over channels |μ_c|"), ("variance", "mean σ_c²")):
        rows = _moment_rows(landscape, name, shown)
        if rows:
            panels.append(_moment_panel(rows, what, x, numbered=len(landscape.layers)))
    heading = alt.Title(f"Loss and signals along {landscape.way}", subtitle=_notes(landscape))
    return alt.hconcat(*panels).properties(title=heading)


def _distance_axis(distances: Array) -> tuple[Any, NDArray[np.bool_]]:
    """The axis, and which distances it can show: a log axis has no zero."""
    above = distances[distances > 0]
    wide = len(above) > 1 and above.max() > WIDE * above.min() and (distances >= 0).all()
    if wide:
        return alt.X("t:Q", title="distance t", **log_axis(above.tolist())), distances > 0
    axis = alt.Axis(labelExpr=number_label(), tickCount=6)
    scale = alt.Scale(nice=False, zero=False)
    return alt.X("t:Q", title="distance t", axis=axis, scale=scale), np.isfinite(distances)


def _loss_panel(landscape: Landscape, x: Any, shown: NDArray[np.bool_]) -> Any:
    pairs = zip(landscape.distances[shown], landscape.loss[shown], strict=True)
    rows = [{"t": float(t), "loss": float(v)} for t, v in sorted(pairs) if np.isfinite(v)]
    start = landscape.initial_loss
    values = [row["loss"] for row in rows] + ([start] if np.isfinite(start) else [])
    if not values:
        raise InputError("There is nothing to draw: the loss is not finite anywhere.")
    y: dict[str, Any] = {"title": "loss", **loss_axis(values)}
    shown_values = tips("t:Q", "loss:Q", form=".5~g")
    base = alt.Chart(inline(rows)).encode(x=x, y=alt.Y("loss:Q", **y), tooltip=shown_values)
    layers: list[Any] = [
        base.mark_line(strokeWidth=2, color=PALETTE[0]),
        base.mark_point(filled=True, size=35, opacity=1, color=PALETTE[0]),
    ]
    if np.isfinite(start):
        level = alt.Chart(inline([{"loss": start}]))
        layers.append(
            level.mark_rule(strokeDash=[5, 4], color=NEUTRAL).encode(y=alt.Y("loss:Q", **y))
        )
    if landscape.diverges_between is not None:
        edge = alt.Chart(inline([{"t": landscape.diverges_between[1]}]))
        layers.append(edge.mark_rule(color=PALETTE[1], strokeWidth=1.5).encode(x=x))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _moment_rows(landscape: Landscape, name: str, shown: NDArray[np.bool_]) -> list[dict[str, Any]]:
    table: Array = getattr(landscape, name)
    states = landscape.coverage.ok
    return [
        {"t": float(t), "value": float(value), "number": states[k].number, "layer": states[k].name}
        for k in range(len(states))
        for t, value in zip(landscape.distances[shown], table[k][shown], strict=True)
        if positive(float(value))
    ]


def _moment_panel(rows: list[dict[str, Any]], what: str, x: Any, *, numbered: int) -> Any:
    y = alt.Y("value:Q", title=what, **log_axis(row["value"] for row in rows))
    legend = alt.Legend(title="layer", format="d", tickCount=min(numbered, 6))
    colour = alt.Color("number:Q", scale=alt.Scale(scheme="viridis"), legend=legend)
    shown = tips("layer:N", alt.Tooltip("number:Q", format="d"), "t:Q", "value:Q")
    lines = alt.Chart(inline(rows)).mark_line(strokeWidth=1.3, opacity=0.8)
    return lines.encode(x=x, y=y, color=colour, detail="layer:N", tooltip=shown).properties(
        width=WIDTH, height=HEIGHT
    )


def _map(landscape: Landscape) -> Any:
    values = landscape.loss[np.isfinite(landscape.loss)]
    if not len(values):
        raise InputError("There is nothing to draw: the loss is not finite anywhere.")
    log = bool(values.min() > 0 and values.max() > WIDE * values.min())
    rows = _cells(landscape, log=log)
    axis = alt.Axis(labelExpr=number_label(), tickCount=7, grid=False)
    flat = alt.Scale(nice=False, zero=False)
    x = alt.X("x:Q", title="distance along the first direction", scale=flat, axis=axis)
    y = alt.Y("y:Q", title="distance along the second direction", scale=flat, axis=axis)
    legend = alt.Legend(title="log10 loss" if log else "loss", gradientLength=220)
    loss = alt.Tooltip("loss:Q", format=".5~g")
    shown = tips("first:Q first distance", "second:Q second distance", loss)
    heat = alt.Chart(inline(rows)).mark_rect(strokeWidth=0).encode(
        x=x, x2="x2:Q", y=y, y2="y2:Q", tooltip=shown,
        color=alt.Color("colour:Q", scale=alt.Scale(scheme="viridis"), legend=legend),
    )  # fmt: skip
    blank = landscape.loss.size - len(rows)
    notes = [f"{landscape.way}; start {landscape.initial_loss:.4g}"]
    notes += [f"{blank} of {landscape.loss.size} cells are blank: not finite"] if blank else []
    return heat.properties(
        width=420, height=360, title=alt.Title("Loss around the network", subtitle=notes)
    )


def _cells(landscape: Landscape, *, log: bool) -> list[dict[str, Any]]:
    first, second = (cell_borders(axis) for axis in landscape.axes)
    rows = []
    for i, j in itertools.product(range(len(first)), range(len(second))):
        loss = float(landscape.loss[i, j])
        if np.isfinite(loss):
            at = {"first": float(landscape.axes[0][i]), "second": float(landscape.axes[1][j])}
            rows.append(
                at
                | {"x": first[i][0], "x2": first[i][1], "y": second[j][0], "y2": second[j][1]}
                | {"loss": loss, "colour": float(np.log10(loss)) if log else loss}
            )
    return rows


def _notes(landscape: Landscape) -> list[str]:
    notes = [f"dashed: the loss at the start, {landscape.initial_loss:.4g}"]
    if landscape.diverges_between is not None:
        edge = landscape.diverges_between[1]
        notes[0] += f"; orange: it exceeds {landscape.limit:.4g} from distance {edge:.4g} on"
    lost = int((~np.isfinite(landscape.loss)).sum())
    if lost:
        notes.append(f"not drawn: {lost} of {landscape.loss.size} points, the loss is not finite")
    return notes
