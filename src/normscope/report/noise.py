"""Charts of gradient noise: by batch size, and by layer."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from normscope.errors import InputError
from normscope.messages import counted
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    legend,
    log_axis,
    positive,
    tips,
    whole_axis,
)
from normscope.results import GradientNoise

WIDTH, HEIGHT = 340, 280
BAND = 2.0  # standard errors on either side
ERROR = alt.Tooltip("error:Q", title="s.e.", format=".2~g")
KINDS = ("with replacement", "without replacement", "batches drawn")


def noise_chart(noise: GradientNoise) -> Any:
    """Noise beside the squared gradient over the batch size, and the noise scale of each layer."""
    panels = [_by_size(noise)]
    rows = _layer_rows(noise)
    if rows:
        panels.append(_by_layer(rows, int(noise.batch_sizes[-1]), coupled=noise.coupled))
    heading = alt.Title("Noise of the gradient of a batch", subtitle=_notes(noise))
    return alt.hconcat(*panels).properties(title=heading)


def _by_size(noise: GradientNoise) -> Any:
    rows = _size_rows(noise)
    if not rows:
        raise InputError("There is nothing to draw: all samples have the same gradient.")
    signal = [float(s) for s in noise.signal[0] if positive(float(s))]
    y = {"title": "E|g_B − E g_B|²", **log_axis([*signal, *_ends(rows)])}
    x = alt.X("size:Q", title="batch size B", **log_axis(noise.batch_sizes.tolist()))
    shown = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    colours = dict(zip(shown, PALETTE, strict=False))
    colour = legend(alt.Color, "kind:N", colours, sort=shown, orient="bottom")
    base = alt.Chart(inline(rows)).encode(x=x, color=colour)
    told = tips(alt.Tooltip("size:Q", title="batch size"), "value:Q noise", ERROR)
    layers = [
        base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", **y)),
        base.mark_point(filled=True, size=55, opacity=1).encode(
            y=alt.Y("value:Q", **y), tooltip=told
        ),
    ]
    if noise.coupled:
        layers.append(base.mark_rule().encode(y=alt.Y("low:Q", **y), y2="high:Q"))
    if signal:
        layers += _signal_layers(noise, x, y)
    return alt.layer(*layers).properties(
        width=WIDTH, height=HEIGHT, title=alt.Title("all layers", fontSize=13)
    )


def _signal_layers(noise: GradientNoise, x: Any, y: dict[str, Any]) -> list[Any]:
    pairs = zip(noise.batch_sizes.tolist(), noise.signal[0].tolist(), strict=True)
    rows = [{"size": b, "value": s} for b, s in pairs if positive(s)]
    data = alt.Chart(inline(rows)).encode(x=x, y=alt.Y("value:Q", **y))
    label = alt.Chart(inline(rows[-1:])).encode(x=x, y=alt.Y("value:Q", **y))
    return [
        data.mark_line(strokeDash=[5, 4], color=NEUTRAL, strokeWidth=1.6),
        label.mark_text(align="right", dy=-8).encode(text=alt.value("|E g_B|²")),
    ]


def _by_layer(rows: list[dict[str, Any]], size: int, *, coupled: bool) -> Any:
    y = {"title": "noise scale", **log_axis(_ends(rows))}
    axis = whole_axis(1, max(row["place"] for row in rows))
    x = alt.X("place:Q", title="layer, in forward order", **axis)
    base = alt.Chart(inline(rows)).encode(x=x)
    name = f"each layer, B = {size}" if coupled else "each layer"
    return alt.layer(
        base.mark_rule(strokeWidth=1.4).encode(y=alt.Y("low:Q", **y), y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1, color=PALETTE[0]).encode(
            y=alt.Y("value:Q", **y), tooltip=tips("layer:N", "value:Q noise scale", ERROR)
        ),
    ).properties(width=WIDTH, height=HEIGHT, title=alt.Title(name, fontSize=13))


def _size_rows(noise: GradientNoise) -> list[dict[str, Any]]:
    found = [(KINDS[2] if noise.coupled else KINDS[1], noise.without_replacement[0])]
    if not noise.coupled:
        found.insert(0, (KINDS[0], noise.with_replacement[0]))
    errors = noise.without_replacement_error[0]
    return [
        {"kind": kind, "size": int(size)} | _bar(float(value), float(error))
        for kind, values in found
        for size, value, error in zip(noise.batch_sizes, values, errors, strict=True)
        if positive(float(value))
    ]


def _layer_rows(noise: GradientNoise) -> list[dict[str, Any]]:
    column = zip(noise.noise_scale[1:, -1], noise.noise_scale_error[1:, -1], strict=True)
    return [
        {"layer": name, "place": place} | _bar(float(value), float(error))
        for place, (name, (value, error)) in enumerate(
            zip(noise.layers, column, strict=True), start=1
        )
        if positive(float(value))
    ]


def _bar(value: float, error: float) -> dict[str, float]:
    """A value with its error bar, which ends where a log axis still reaches."""
    half = BAND * error if np.isfinite(error) else 0.0
    return {"value": value, "error": error, "low": max(value - half, value / 10)} | {
        "high": value + half
    }


def _ends(rows: list[dict[str, Any]]) -> list[float]:
    return [row[end] for row in rows for end in ("low", "high")]


def _notes(noise: GradientNoise) -> list[str]:
    left = sum(not positive(float(v)) for v in noise.noise_scale[1:, -1])
    notes = [f"{noise.num_samples} samples; bars ± {BAND:g} s.e."]
    if noise.coupled:
        notes += [f"{noise.draws} batches drawn of each size, because {noise.coupling}"]
    else:
        notes[0] += f"; M = {noise.total:.4g}, |grad f|² = {noise.gradient2[0]:.4g}"
    if left:
        notes.append(
            f"not drawn: {counted(left, 'layer')} whose noise scale is infinite or undefined"
        )
    return notes
