"""Chart of a monitored training: one panel per quantity, one line per layer."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.report.style import inline, log_axis, number_label, plain_axis, positive, tips
from normscope.results.monitor import MonitorLog, Series

WIDTH, HEIGHT, COLUMNS = 230, 170, 3
WIDE = 10.0  # ratio of values above which an axis of positive values is logarithmic
SHADES = ("#0f83c9", "#00a277", "#b8860b", "#d55e00")  # from the first layer to the last
FEW = 30  # steps up to which every one gets a dot


def monitor_chart(
    log: MonitorLog, *, quantities: Sequence[str] | None = None, layers: str | None = None
) -> Any:
    """Quantities over training, coloured by depth.

    Args:
        log: the readings.
        quantities: which panels; None for all.
        layers: a glob such as ``"stage1.*"``; None for all.
    """
    for quantity in quantities or ():
        if quantity not in log.quantities:
            hint = near_match(str(quantity), list(log.quantities))
            raise InputError(f"Nothing was recorded under {quantity!r}. {hint}")
    fits = [s for s in log.series if layers is None or fnmatch.fnmatchcase(s.layer, layers)]
    whole = {s.quantity for s in log.series if not s.layer}  # those of the network come first
    names = quantities or sorted(log.quantities, key=lambda quantity: quantity not in whole)
    chosen = {name: [s for s in fits if s.quantity == name] for name in names}
    drawn = [(q, series, _rows(series)) for q, series in chosen.items()]
    panels = [_panel(q, series, rows) for q, series, rows in drawn if rows]
    if not panels:
        raise InputError("There is nothing to draw: no finite reading fits the choice.")
    read = sum(len(s.values) for _, found, _ in drawn for s in found)
    unseen = read - sum(len(rows) for _, _, rows in drawn)
    notes = [f"{log.num_steps} optimizer steps, one in {log.every} recorded"]
    notes += [f"not drawn: {unseen} readings that are not finite"] if unseen else []
    for t in log.troubles:
        reason = t.reason if len(t.reason) <= 100 else t.reason[:97] + "..."
        notes.append(f"{t.status}: {t.name}: {reason}")
    heading = alt.Title("A training, watched", subtitle=notes)
    return alt.concat(*panels, columns=COLUMNS).properties(title=heading)


def _rows(series: list[Series]) -> list[dict[str, Any]]:
    """Finite readings, with the place of their layer between 0 (first) and 1 (last)."""
    last = max(len(series) - 1, 1)
    return [
        {"step": int(step), "value": float(value), "layer": s.layer or "network"}
        | {"depth": place / last if len(series) > 1 else 0.0}
        for place, s in enumerate(series)
        for step, value in zip(s.steps, s.values, strict=True)
        if abs(value) < float("inf")
    ]


def _panel(quantity: str, series: list[Series], rows: list[dict[str, Any]]) -> Any:
    label = "datum.value == 0 ? 'first' : 'last'"
    legend = alt.Legend(title="layer", values=[0, 1], labelExpr=label, gradientLength=90)
    values = [row["value"] for row in rows]
    log = all(map(positive, values)) and max(values) > WIDE * min(values)
    scale = alt.Scale(domain=[0, 1 / 3, 2 / 3, 1], range=list(SHADES))
    axis = alt.Axis(tickMinStep=1, grid=False, labelExpr=number_label(), tickCount=5)
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("step:Q", title="optimizer step", axis=axis),
        y=alt.Y("value:Q", title=None, **(log_axis(values) if log else plain_axis())),
        color=alt.Color("depth:Q", scale=scale, legend=legend if len(series) > 1 else None),
        detail="layer:N",
        tooltip=tips("layer:N", alt.Tooltip("step:Q", format="d"), "value:Q"),
    )
    steps = max(len(s.steps) for s in series)
    # dots of many steps are there to be pointed at, not to be seen
    dots = base.mark_point(filled=True, size=26, opacity=0.9 if steps <= FEW else 0)
    lines = base.mark_line(strokeWidth=1.4, opacity=0.8)
    name = alt.Title(quantity.replace("_", " "), fontSize=13, fontWeight="normal", offset=6)
    return alt.layer(lines, dots).properties(width=WIDTH, height=HEIGHT, title=name)
