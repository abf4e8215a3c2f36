"""Chart of what changes of a network would do to it."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.report.style import NEUTRAL, PALETTE, inline, legend, log_axis, positive, tips
from normscope.results.what_if import Variant, WhatIf

WIDTH, ROW = 420, 46
OPEN = 100  # times the largest rate found at which an open end is drawn at most
KINDS = {
    "local threshold": PALETTE[0],
    "stops learning above": PALETTE[4],
    "diverges at": PALETTE[1],
}


def what_if_chart(found: WhatIf) -> Any:
    """Learning rates at which each variant is stable, as intervals, and the two ratios."""
    made = [variant for variant in found if variant.made]
    names = [variant.change for variant in made]
    rates = [row for variant in made for row in _rates(variant)]
    panels = [_intervals(rates, names)]
    ratios = [row for variant in found.after if variant.made for row in _ratios(found, variant)]
    if ratios:
        panels.append(_gains(ratios, names))
    shown = "no change learns better than the network as it is"
    if found.best is not None:
        shown = f"{found.best.change} comes to the lowest loss"
    heading = alt.Title(f"What if: {shown}", subtitle=_notes(found))
    return alt.hconcat(*panels, title=heading).resolve_scale(color="independent")


def _rates(variant: Variant) -> list[dict[str, Any]]:
    rows = []
    if positive(variant.threshold):
        rows.append(_rate(variant, "local threshold", variant.threshold, variant.threshold))
    limits = {"stops learning above": variant.does_not_learn, "diverges at": variant.diverges}
    for kind, bound in limits.items():
        ends = [] if bound is None else [end for end in (bound.low, bound.high) if positive(end)]
        if bound is not None and ends:
            rows.append(_rate(variant, kind, ends[0], ends[-1], beyond=bound.high == math.inf))
    return rows


def _rate(
    variant: Variant, kind: str, low: float, high: float, *, beyond: bool = False
) -> dict[str, Any]:
    shown = f"above {low:.4g}" if beyond else f"{low:.4g} to {high:.4g}"
    middle, end = math.sqrt(low) * math.sqrt(high), "beyond" if beyond else "found"
    row = {"change": variant.change, "kind": kind, "low": low, "high": high, "shown": shown}
    return row | {"lr": middle, "end": end}


def _clipped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Open ends drawn not far beyond what was found, so that the rest keeps its room."""
    found = [row["high"] for row in rows if row["end"] == "found"]
    most = OPEN * max(found, default=math.inf)
    return [row | {key: min(row[key], most) for key in ("low", "high", "lr")} for row in rows]


def _intervals(rows: list[dict[str, Any]], names: list[str]) -> Any:
    rows = _clipped(rows)
    ends = [row[key] for row in rows for key in ("low", "high")]
    x = {"title": "learning rate", **log_axis(ends)}
    base = _lines(rows, names, KINDS, tips("change:N", "kind:N", "shown:N learning rate"))
    bars = base.mark_bar(height=6, opacity=0.5).encode(x=alt.X("low:Q", **x), x2="high:Q")
    shapes = alt.Scale(domain=["found", "beyond"], range=["circle", "triangle-right"])
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(
        x=alt.X("lr:Q", **x), shape=alt.Shape("end:N", scale=shapes, legend=None)
    )
    return (bars + dots).properties(width=WIDTH, height=ROW * len(names))


def _ratios(found: WhatIf, variant: Variant) -> list[dict[str, Any]]:
    gain, low, high = found.limit_ratio(variant)
    curvature = found.curvature_ratio(variant)
    rows: list[dict[str, Any]] = [
        {"change": variant.change, "kind": "by curvature", "ratio": curvature}
        | {"low": curvature, "high": curvature},
        {"change": variant.change, "kind": "by training", "ratio": gain, "low": low, "high": high},
    ]
    return [row for row in rows if positive(row["ratio"])]


def _gains(rows: list[dict[str, Any]], names: list[str]) -> Any:
    kinds = {"by curvature": PALETTE[0], "by training": PALETTE[4]}
    ends = [row[key] for row in rows for key in ("low", "high")]
    x = {"title": "largest stable rate, changed / unchanged", **log_axis([*ends, 1.0])}
    told = tips("change:N", "kind:N", "ratio:Q", "low:Q", "high:Q", form=".3g")
    base = _lines(rows, names[1:], kinds, told)
    bars = base.mark_bar(height=6, opacity=0.5).encode(x=alt.X("low:Q", **x), x2="high:Q")
    dots = base.mark_point(filled=True, size=55, opacity=1).encode(x=alt.X("ratio:Q", **x))
    same = alt.Chart(inline([{"one": 1.0}])).mark_rule(strokeDash=[5, 4], color=NEUTRAL)
    layers = alt.layer(same.encode(x=alt.X("one:Q", **x)), bars, dots)
    return layers.properties(width=WIDTH // 2, height=ROW * (len(names) - 1))


def _lines(
    rows: list[dict[str, Any]], names: list[str], kinds: dict[str, str], told: list[Any]
) -> Any:
    """One line per change, in it one per kind."""
    return alt.Chart(inline(rows)).encode(
        y=alt.Y("change:N", title=None, sort=names, axis=alt.Axis(labelLimit=220)),
        yOffset=alt.YOffset("kind:N", sort=list(kinds)),
        color=legend(alt.Color, "kind:N", kinds, orient="bottom"),
        tooltip=told,
    )


def _notes(found: WhatIf) -> list[str]:
    apart = [v for v in found.after if found.disagreement(v) > 1]
    if not apart:
        return []
    worst = max(apart, key=found.disagreement)
    return [
        f"curvature and training runs differ most for {worst.change}, by a factor "
        f"{found.disagreement(worst):.3g}: the curvature is that of the start"
    ]
