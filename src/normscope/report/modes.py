"""The loss by mode, and how far running statistics are from those of the batches."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, positive, tips
from normscope.results import Modes, NormModes

WIDTH, ROW, HEIGHT = 620, 26, 180


def modes_chart(found: Modes) -> Any:
    """The losses side by side; below, the variances of norms that keep running statistics."""
    rows = [
        {"mode": name, "loss": s.loss, "accuracy": s.accuracy}
        for name, s in found.scores.items()
        if math.isfinite(s.loss)
    ]
    order = [str(row["mode"]) for row in rows]
    bars = alt.Chart(inline(rows)).mark_bar(color=PALETTE[0], size=14)
    losses = bars.encode(
        x=alt.X("loss:Q", title="loss"),
        y=alt.Y("mode:N", title=None, sort=order, axis=alt.Axis(labelLimit=260)),
        tooltip=tips("mode:N", "loss:Q", "accuracy:Q"),
    ).properties(width=WIDTH, height=ROW * max(len(rows), 1))
    title = alt.Title("Loss by mode")
    kept = [n for n in found.norms if n.used and n.updates and positive(n.variance_ratio)]
    if not kept:
        return losses.properties(title=title)
    return alt.vconcat(losses, _running(kept), title=title)


def _running(norms: list[NormModes]) -> Any:
    rows = [
        {"norm": n.name, "ratio": n.variance_ratio, "gap": n.mean_gap, "updates": n.updates}
        for n in norms
    ]
    axis = log_axis([*(n.variance_ratio for n in norms), 0.5, 2.0])
    y = alt.Y("ratio:Q", title="variance: batch / running", **axis)
    x = alt.X("norm:N", title=None, sort=[n.name for n in norms])
    one = alt.Chart(inline([{"one": 1.0}])).mark_rule(color=NEUTRAL, strokeDash=[4, 3])
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=50, opacity=1, color=PALETTE[0])
    shown = tips("norm:N", "ratio:Q variance ratio", "gap:Q gap of means", "updates:Q")
    return alt.layer(one.encode(y=alt.Y("one:Q")), dots.encode(x=x, y=y, tooltip=shown)).properties(
        width=WIDTH, height=HEIGHT
    )
