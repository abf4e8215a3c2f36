"""Chart of order parameters by layer: measured as dots, the theory's as lines."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import PALETTE, inline, layer_axis, log_axis, positive, tips
from normscope.results.order_parameters import OrderProfile

PANELS = {
    "qhat": "q-hat, input of the layer",
    "q": "q, output of the layer",
    "qtilde": "q-tilde, sensitivity of the outputs",
}
KINDS = {"": "one sample", "_st": "two samples"}
NUMBERS = ("value:Q measured", "error:Q s.e.", "theory:Q theory")
TIPS = tips(alt.Tooltip("layer:Q", format="d"), "name:N", "kind:N", *NUMBERS)
WIDTH, HEIGHT = 230, 240
BAND = 2.0  # standard errors on either side
FEW = 40  # layers up to which every one gets a dot of full size


def order_chart(profile: OrderProfile) -> Any:
    """Three panels: inputs, outputs and sensitivities; each for one sample and for two.

    The axes are logarithmic, so that overlaps at or below zero are left out, and counted below
    the title.
    """
    numbers = {layer.name: layer.number for layer in profile.coverage.layers}
    rows = {q: _rows(profile, q, numbers) for q in PANELS}
    shown = {q: [row for row in rows[q] if row["value"] is not None] for q in PANELS}
    panels = [_panel(rows[q], q) for q in PANELS if shown[q]]
    if not panels:
        raise InputError("There is nothing to draw: no order parameter is a positive number.")
    hidden = sum(row["hidden"] for found in rows.values() for row in found)
    notes = [f"{profile.num_samples} samples; bars ± 2 s.e."]
    without = f"no theory: {profile.theory_reason}"
    without = without if len(without) <= 110 else without[:107] + "..."
    notes[0] += "; lines: theory" if profile.theory else f"; {without}"
    notes += [f"not drawn: overlaps that are not positive ({hidden})"] if hidden else []
    heading = alt.Title("Order parameters by layer", subtitle=notes)
    return alt.hconcat(*panels).properties(title=heading)


def _rows(profile: OrderProfile, quantity: str, numbers: dict[str, int]) -> list[dict[str, Any]]:
    rows = []
    for ending, kind in KINDS.items():
        name = quantity + ending
        for i, layer in enumerate(profile.names):
            value, error = float(profile.measured[name][i]), float(profile.errors[name][i])
            theory = float(profile.theory[name][i]) if profile.theory else None
            seen = positive(value)
            rows.append(
                {"layer": numbers[layer], "name": layer, "kind": kind}
                | {"value": value if seen else None, "error": error}
                | {"low": max(value - BAND * error, value / 10) if seen else None}
                | {"high": value + BAND * error if seen else None}
                | {"theory": theory if positive(theory) else None}
                | {"hidden": not seen and not math.isnan(value)}
            )
    return rows


def _panel(rows: list[dict[str, Any]], quantity: str) -> Any:
    columns = ("low", "high", "theory")
    axis = log_axis(row[c] for row in rows for c in columns if row[c] is not None)
    y: dict[str, Any] = {"title": PANELS[quantity], **axis}
    scale = alt.Scale(domain=list(KINDS.values()), range=list(PALETTE[:2]))
    legend = alt.Legend(orient="bottom", title=None)
    x = layer_axis(row["layer"] for row in rows)
    size = 45 if len(rows) <= 2 * FEW else 18

    def base(column: str) -> Any:
        kept = [row for row in rows if row[column] is not None]
        return alt.Chart(inline(kept)).encode(
            x=x, color=alt.Color("kind:N", scale=scale, legend=legend)
        )

    bars = base("value").mark_rule(strokeWidth=1.4).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    dots = base("value").mark_point(filled=True, size=size, opacity=1)
    layers = [bars, dots.encode(y=alt.Y("value:Q", **y), tooltip=TIPS)]
    if any(row["theory"] is not None for row in rows):
        lines = base("theory").mark_line(strokeWidth=1.8, opacity=0.75)
        layers.insert(0, lines.encode(y=alt.Y("theory:Q", **y)))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)
