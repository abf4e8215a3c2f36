"""Charts of layer-wise conditioning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from normscope.errors import InputError
from normscope.report.style import PALETTE, inline, log_axis, positive

if TYPE_CHECKING:
    from normscope.results.conditioning import Conditioning

__all__ = ["conditioning_chart"]

WIDTH, HEIGHT = 380, 280
PARTS = {
    "inputs": "inputs Σ_x",
    "gradients": "output gradients Σ_g",
    "fisher": "Fisher, factored",
    "exact": "Fisher, exact",
}
POINTS_UP_TO = 60  # layers; more make a band of dots


def conditioning_chart(
    result: Conditioning, *, of: str = "fisher", title: str | None = None
) -> Any:
    """lambda_max by layer on the left; kappa_p of one matrix on the right, a line per p.

    ``of`` is the matrix on the right: ``"inputs"``, ``"gradients"``, ``"fisher"`` or ``"exact"``.
    """
    shown = [part for part in PARTS if part != "exact" or result.blocks]
    sizes = [row for part in shown for row in _sizes(result, part)]
    ratios, infinite = _ratios(result, of)
    if not sizes:
        raise InputError("There is nothing to draw: no layer has a positive eigenvalue.")
    heading = title or f"Conditioning of {len(result.layers)} layers"
    left = _panel(
        sizes, "series", [PARTS[part] for part in shown], "largest eigenvalue λ_max", PALETTE
    )
    right = _panel(
        ratios,
        "series",
        [_share(p) for p in result.p],
        f"condition number κ_p of {PARTS[of]}",
        _shades(len(result.p)),
    )
    left = left.properties(
        title=alt.Title("Size of signals and gradients", subtitle="second moments by layer")
    )
    right = right.properties(title=alt.Title("Conditioning", subtitle=_infinite_note(infinite)))
    return (
        alt.hconcat(left, right)
        .resolve_scale(color="independent")
        .properties(title=alt.Title(heading, subtitle=_notes(result)))
    )


def _sizes(result: Conditioning, part: str) -> list[dict[str, Any]]:
    return [
        {"layer": layer.number, "name": layer.name, "series": PARTS[part], "value": float(value)}
        for layer, value in zip(result.layers, result.lambda_max(part), strict=True)
        if positive(value)
    ]


def _ratios(result: Conditioning, of: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Finite kappa_p, and for which p some layers are singular."""
    rows, infinite = [], []
    for p in result.p:
        values = result.kappa(p, of)
        rows += [
            {"layer": layer.number, "name": layer.name, "series": _share(p), "value": float(value)}
            for layer, value in zip(result.layers, values, strict=True)
            if positive(value)
        ]
        if singular := int(sum(v == float("inf") for v in values)):
            infinite.append(f"{_share(p)} in {singular} of {len(values)} layers")
    return rows, infinite


def _panel(
    rows: list[dict[str, Any]], field: str, order: list[str], label: str, colours: Any
) -> Any:
    numbers = {row["layer"] for row in rows}
    axis = alt.Axis(tickMinStep=1, format="d", grid=False)
    x = alt.X(
        "layer:Q", title="layer", axis=axis, scale=alt.Scale(zero=False, nice=False, padding=8)
    )
    y = alt.Y("value:Q", title=label, **log_axis(row["value"] for row in rows))
    colour = alt.Color(
        f"{field}:N",
        title=None,
        sort=order,
        scale=alt.Scale(domain=order, range=list(colours[: len(order)])),
        legend=alt.Legend(orient="bottom", columns=2),
    )
    tips = [
        alt.Tooltip("name:N", title="layer"),
        alt.Tooltip(f"{field}:N", title="matrix" if "λ" in label else "share"),
        alt.Tooltip("value:Q", format=".4~g"),
    ]
    base = alt.Chart(inline(rows)).encode(x=x, y=y, color=colour, tooltip=tips)
    marks = [base.mark_line(strokeWidth=2)]
    if len(numbers) <= POINTS_UP_TO:
        marks.append(base.mark_point(filled=True, size=42, opacity=1))
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT)


def _shades(count: int) -> list[str]:
    """From light to dark blue: kappa_p grows with p."""
    shades = ["#a6cbe8", "#5aa9e0", "#0f83c9", "#0b5a8c", "#06324f"]
    if count >= len(shades):
        return [shades[i * (len(shades) - 1) // (count - 1)] for i in range(count)]
    return shades[len(shades) - 1 - count : -1]


def _share(p: float) -> str:
    return f"p = {100 * p:g} %"


def _infinite_note(infinite: list[str]) -> str:
    return f"infinite, not drawn: {'; '.join(infinite)}" if infinite else "all values are finite"


def _notes(result: Conditioning) -> list[str]:
    left_out = len(result.coverage.left_out)
    notes = [
        f"{result.convention.get('samples', '')}; gradients for: "
        f"{result.convention.get('labels', '').partition(' (')[0]}"
    ]
    return notes + ([f"{left_out} layers left out (see summary)"] if left_out else [])
