"""The phase diagram as a heat map with the edge of chaos drawn in."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from normscope.checks import Array
from normscope.registry import check_choice
from normscope.report.contour import crossings, zero_contour
from normscope.report.style import inline, positive, tips
from normscope.results import PhaseDiagram

TITLES = {
    "chi1": "log10 χ_1",
    "correlation_depth": "log10 ξ_c (layers)",
    "length_depth": "log10 ξ_q (layers)",
    "length": "log10 q*",
}
EDGE_TIPS = tips("w:Q edge of chaos, σ_w²", "b:Q σ_b²")
NUMBERS = ("chi1:Q χ_1", "xi:Q ξ_c (layers)", "q:Q q*")
CELL_TIPS = tips("w:Q σ_w²", "b:Q σ_b²", "phase:N", *NUMBERS)
WIDTH, HEIGHT = 460, 340
OVERLAP = 0.003  # of the axis, about a pixel


def phase_chart(diagram: PhaseDiagram, *, quantity: str = "chi1") -> Any:
    """log10 of ``chi1``, ``correlation_depth``, ``length_depth`` or ``length`` over the grid."""
    check_choice("quantity", quantity, TITLES)
    values: Array = getattr(diagram, quantity)
    rows = _cells(diagram, values)
    shown = [row for row in rows if np.isfinite(row["value"])]
    flat, axis = alt.Scale(nice=False, zero=False), alt.Axis(tickCount=8, format="~g", grid=False)
    x = alt.X("x:Q", title="σ_w², weight variance", scale=flat, axis=axis)
    y = alt.Y("y:Q", title="σ_b², bias variance", scale=flat, axis=axis)
    heat = alt.Chart(inline(shown)).mark_rect(strokeWidth=0).encode(
        x=x, x2="x2:Q", y=y, y2="y2:Q", color=_colour(quantity, shown), tooltip=CELL_TIPS
    )  # fmt: skip
    layers = [heat, *_edge_layers(diagram)]
    heading = f"Order and chaos: wide {diagram.activation} networks without norm"
    subtitle = _subtitle(diagram, len(rows) - len(shown))
    title = alt.Title(heading, subtitle=subtitle)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _edge_layers(diagram: PhaseDiagram) -> list[Any]:
    """chi_1 = 1 as a dark line in a light one, visible on any colour."""
    columns, rows = np.argsort(diagram.weight_variances), np.argsort(diagram.bias_variances)
    weight, bias = diagram.weight_variances[columns], diagram.bias_variances[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        height = np.log(diagram.chi1[np.ix_(rows, columns)])
    if len(bias) == 1:
        return _edge_marks([(at, float(bias[0])) for at in crossings(weight, height[0])])
    pieces = zero_contour(weight, bias, height)
    if not pieces:
        return []
    data = [{"w": a[0], "b": a[1], "w2": b[0], "b2": b[1]} for a, b in pieces]
    ends = {"x": "w:Q", "y": "b:Q", "x2": "w2:Q", "y2": "b2:Q"}
    base = alt.Chart(inline(data)).encode(**ends, tooltip=EDGE_TIPS)
    return [
        base.mark_rule(color="white", strokeWidth=5, opacity=0.85, strokeCap="round"),
        base.mark_rule(color="black", strokeWidth=2, strokeCap="round"),
    ]


def _edge_marks(points: list[tuple[float, float]]) -> list[Any]:
    base = alt.Chart(inline([{"w": w, "b": b} for w, b in points]))
    marks = base.mark_point(filled=True, color="black", stroke="white", size=90, opacity=1)
    return [marks.encode(x="w:Q", y="b:Q", tooltip=EDGE_TIPS)] if points else []


def _cells(diagram: PhaseDiagram, values: Array) -> list[dict[str, Any]]:
    """One row per cell, few digits: a grid of ten thousand should stay a small file."""
    rows = []
    for i, (low, high) in enumerate(cell_borders(diagram.bias_variances)):
        for j, (left, right) in enumerate(cell_borders(diagram.weight_variances)):
            borders = {"x": left, "x2": right, "y": low, "y2": high}
            numbers = {
                "w": diagram.weight_variances[j],
                "b": diagram.bias_variances[i],
                "chi1": diagram.chi1[i, j],
                "xi": diagram.correlation_depth[i, j],
                "q": diagram.length[i, j],
                "value": np.log10(values[i, j]) if positive(values[i, j]) else np.nan,
            }
            row = _rounded(borders, 5) | _rounded(numbers, 4)
            rows.append(row | {"phase": str(diagram.status[i, j])})
    return rows


def _rounded(numbers: dict[str, float], digits: int) -> dict[str, Any]:
    return {name: float(f"{value:.{digits}g}") for name, value in numbers.items()}


def cell_borders(centres: Array) -> list[tuple[float, float]]:
    """Cells around the grid points, meeting half-way to their neighbours, in the given order."""
    order = np.argsort(centres)
    points = centres[order]
    if len(points) == 1:
        half = max(abs(points[0]) / 10, 0.05)
        return [(float(points[0] - half), float(points[0] + half))]
    # the outermost cells end at their points: no colour where nothing was computed
    edges = np.concatenate([points[:1], (points[1:] + points[:-1]) / 2, points[-1:]])
    # a hair of overlap, or the ground shines through between the cells
    ends = np.minimum(edges[1:] + OVERLAP * (edges[-1] - edges[0]), edges[-1])
    cells: list[tuple[float, float]] = [(0.0, 0.0)] * len(points)
    for place, index in enumerate(order):
        cells[index] = (float(edges[place]), float(ends[place]))
    return cells


def _colour(quantity: str, shown: list[dict[str, Any]]) -> Any:
    legend = alt.Legend(title=TITLES[quantity], gradientLength=220)
    if quantity != "chi1":
        return alt.Color("value:Q", scale=alt.Scale(scheme="viridis"), legend=legend)
    values = [row["value"] for row in shown] or [0.0]
    # white is chi_1 = 1; each side has its own full range of colour
    reach = max(map(abs, values)) or 1.0
    both = min(values) < 0 < max(values)
    domain = [min(values), max(values)] if both else [-reach, reach]
    scale = alt.Scale(scheme="blueorange", domain=domain, domainMid=0)
    return alt.Color("value:Q", scale=scale, legend=legend)


def _subtitle(diagram: PhaseDiagram, hidden: int) -> list[str]:
    names, counts = np.unique(diagram.status, return_counts=True)
    cells = diagram.status.size
    shares = (f"{count / cells:.0%} {name}" for name, count in zip(names, counts, strict=True))
    lines = [f"{', '.join(shares)}; black line: edge of chaos, χ_1 = 1"]
    if hidden:
        lines.append(f"{hidden} of {cells} cells are blank: zero, infinite or undefined")
    return lines
