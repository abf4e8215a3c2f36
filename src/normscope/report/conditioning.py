"""Charts of layer-wise conditioning."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.messages import counted
from normscope.report.style import PALETTE, inline, layer_axis, legend, log_axis, positive, tips
from normscope.results.conditioning import Conditioning

WIDTH, HEIGHT = 380, 280
PARTS = {
    "inputs": "inputs Σ_x",
    "gradients": "output gradients Σ_g",
    "fisher": "Fisher, factored",
    "exact": "Fisher, exact",
}
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
POINTS_UP_TO = 60  # layers; more make a band of dots


def conditioning_chart(result: Conditioning, *, of: str = "fisher") -> Any:
    """lambda_max by layer on the left; kappa_p of one matrix on the right, a line per p.

    ``of`` is the matrix on the right: ``"inputs"``, ``"gradients"``, ``"fisher"`` or ``"exact"``.
    """
    shown = [part for part in PARTS if part != "exact" or result.blocks]
    sizes = [r for p in shown for r in _rows(result, PARTS[p], result.lambda_max(p))]
    ratios, infinite = _ratios(result, of)
    if not sizes:
        raise InputError("There is nothing to draw: no layer has a positive eigenvalue.")
    heading = f"Conditioning of {counted(len(result.layers), 'layer')}"
    x = layer_axis(layer.number for layer in result.layers)
    parts, shares = [PARTS[part] for part in shown], [_share(p) for p in result.p]
    left = _panel(sizes, parts, "largest eigenvalue λ_max", x)
    right = _panel(ratios, shares, f"condition number κ_p of {PARTS[of]}", x)
    size = alt.Title("Size of signals and gradients", subtitle="second moments by layer")
    singular = (
        f"infinite, not drawn: {'; '.join(infinite)}" if infinite else "all values are finite"
    )
    shape = alt.Title("Conditioning", subtitle=singular)
    both = alt.hconcat(left.properties(title=size), right.properties(title=shape))
    both = both.resolve_scale(color="independent", shape="independent")
    return both.properties(title=alt.Title(heading, subtitle=_notes(result)))


def _rows(result: Conditioning, series: str, values: Iterable[float]) -> list[dict[str, Any]]:
    return [
        {"layer": layer.number, "name": layer.name, "series": series, "value": float(value)}
        for layer, value in zip(result.layers, values, strict=True)
        if positive(value)
    ]


def _ratios(result: Conditioning, of: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Finite kappa_p, and for which p some layers are singular."""
    rows, infinite = [], []
    for p in result.p:
        values = result.kappa(p, of)
        rows += _rows(result, _share(p), values)
        if singular := int(sum(v == float("inf") for v in values)):
            infinite.append(f"{_share(p)} in {singular} of {len(values)} layers")
    return rows, infinite


def _panel(rows: list[dict[str, Any]], order: list[str], label: str, x: Any) -> Any:
    """A line per series; shapes help where colours are not told apart."""
    y = alt.Y("value:Q", title=label, **log_axis(row["value"] for row in rows))
    colour = _series(alt.Color, order, PALETTE)
    shown = tips("name:N layer", f"series:N {'matrix' if 'λ' in label else 'share'}", "value:Q")
    base = alt.Chart(inline(rows)).encode(x=x, y=y, color=colour, tooltip=shown)
    marks = [base.mark_line(strokeWidth=2)]
    if len({row["layer"] for row in rows}) <= POINTS_UP_TO:
        dots = base.mark_point(filled=True, size=55, opacity=1)
        marks.append(dots.encode(shape=_series(alt.Shape, order, SHAPES)))
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT)


def _series(channel: Any, order: list[str], values: tuple[str, ...]) -> Any:
    given = dict(zip(order, itertools.cycle(values), strict=False))
    return legend(channel, "series:N", given, sort=order, orient="bottom", columns=2)


def _share(p: float) -> str:
    return f"p = {100 * p:g} %"


def _notes(result: Conditioning) -> list[str]:
    left_out = len(result.coverage.left_out)
    notes = [
        f"{result.convention.get('samples', '')}; gradients for: "
        f"{result.convention.get('labels', '').partition(' (')[0]}"
    ]
    return notes + ([f"{counted(left_out, 'layer')} left out (see summary)"] if left_out else [])
