"""Gradients by depth, and the pictures of single layers, outputs and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.registry import near_match
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    layer_axis,
    log_axis,
    number_label,
    positive,
    tips,
    whole_axis,
)
from normscope.results import Gradients, Histograms, LayerGradients

WIDTH, HEIGHT = 400, 300
COLUMN_LABELS = {
    "t1": "T1  Σ |d|",
    "t2": "T2  Σ_b |Σ_p d|",
    "t3": "T3  Σ_p |Σ_b d|",
    "t4": "T4  |Σ d|",
}
TWINS = {"t2": "t1", "t3": "t4"}  # the same where a weight is used at one position
SAME = 1e-3  # relative difference that no eye can see on a log axis


def gradient_chart(found: Gradients, *, show: str = "depth", layer: str | int | None = None) -> Any:
    """Alignment and size by depth, or one picture.

    Args:
        found: the result.
        show: ``"depth"``; of one layer ``"entries"`` (histogram), ``"matrix"`` (in- and
            out-channels), ``"terms"`` (T1 and T4 of its weights), ``"summands"`` (terms of the
            weight with the largest gradient), ``"means"`` (in-channel mean and gradient); of the
            outputs ``"outputs"`` and ``"classes"``.
        layer: name or number of the layer; None for the middle one.
    """
    if show in _WHOLE:
        return _WHOLE[show](found)
    if show not in _SINGLE:
        raise InputError(f"Unknown chart show={show!r}. {near_match(show, [*_WHOLE, *_SINGLE])}")
    chosen = found.layers[(len(found.layers) - 1) // 2] if layer is None else found[layer]
    drawn = _SINGLE[show](chosen)
    heading = alt.Title(drawn[1], subtitle=[f"{chosen.name}, layer {chosen.number}"])
    return drawn[0].properties(width=WIDTH, height=HEIGHT, title=heading)


def _depth(found: Gradients) -> Any:
    aligned = any(positive(layer.t1) for layer in found.layers)
    panels = [_columns_panel(found), _alignment_panel(found)] if aligned else [_size_panel(found)]
    notes = [
        f"{found.num_samples} samples, loss {found.loss:.4g}; "
        + found.convention.get("statistics", "")
    ]
    if aligned:
        at = " b at one position p" if len(_columns(found)) > len(TWINS) else ""
        notes.append(f"d: one term of a weight's gradient, of one sample{at}")
    heading = alt.Title("Gradients by depth", subtitle=notes)
    sized = [panel.properties(width=WIDTH, height=HEIGHT) for panel in panels]
    return alt.hconcat(*sized).properties(title=heading)


def _columns(found: Gradients) -> dict[str, str]:
    """The columns that can be told from their twins in some layer."""

    def differs(key: str) -> bool:
        pairs = ((getattr(x, key), getattr(x, TWINS[key])) for x in found.layers)
        return any(positive(a) and abs(a - b) > SAME * b for a, b in pairs)

    return {k: label for k, label in COLUMN_LABELS.items() if k not in TWINS or differs(k)}


def _columns_panel(found: Gradients) -> Any:
    colours = dict(zip(COLUMN_LABELS, PALETTE, strict=False))
    shown = _columns(found)
    rows = [
        {"layer": x.number, "name": x.name, "column": label, "value": getattr(x, key)}
        for x in found.layers
        for key, label in shown.items()
        if positive(getattr(x, key))
    ]
    y = alt.Y("value:Q", title="mean over weights, per term", **log_axis(_values(rows)))
    scale = alt.Scale(domain=list(shown.values()), range=[colours[key] for key in shown])
    legend = alt.Legend(orient="top", columns=2, title=None)
    dots = alt.Chart(inline(rows)).mark_line(point=alt.OverlayMarkDef(size=18), strokeWidth=1)
    return dots.encode(
        x=_layer_axis(found),
        y=y,
        color=alt.Color("column:N", scale=scale, legend=legend),
        tooltip=tips("name:N", "column:N", "value:Q"),
    )


def _alignment_panel(found: Gradients) -> Any:
    one = alt.Chart(inline([{"one": 1.0}])).mark_rule(color=NEUTRAL, strokeDash=[4, 3])
    label = "T4 / T1: 1 if all terms pull one way"
    return alt.layer(one.encode(y="one:Q"), _dots(found, "alignment", label, PALETTE[3], 1.0))


def _size_panel(found: Gradients) -> Any:
    if not any(positive(layer.mean_abs) for layer in found.layers):
        raise InputError("There is nothing to draw: every gradient is zero.")
    return _dots(found, "mean_abs", "mean |gradient|", PALETTE[0])


def _dots(found: Gradients, name: str, label: str, colour: str, *marks: float) -> Any:
    """One number of every layer, on an axis that holds ``marks`` too."""
    rows = [
        {"layer": x.number, "name": x.name, "value": getattr(x, name)}
        for x in found.layers
        if positive(getattr(x, name))
    ]
    y = alt.Y("value:Q", title=label, **log_axis([*_values(rows), *marks]))
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=30, opacity=1, color=colour)
    return dots.encode(x=_layer_axis(found), y=y, tooltip=tips("name:N", "value:Q"))


def _entries(layer: LayerGradients) -> tuple[Any, str]:
    heading = f"Entries of a gradient: std {layer.std:.3g}, excess kurtosis {layer.kurtosis:.3g}"
    return _bars(layer.histogram, "entry of the gradient"), heading


def _summands(layer: LayerGradients) -> tuple[Any, str]:
    place = ", ".join(map(str, layer.summand))
    return _bars(layer.summands, "d"), f"Terms of the gradient of weight ({place})"


def _bars(histogram: Histograms | None, label: str) -> Any:
    if histogram is None:
        raise InputError("No histogram was kept of this layer.")
    edges, counts = histogram.edges(), histogram.counts[0]
    rows = [
        {"low": float(a), "high": float(b), "count": int(n)}
        for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
        if n
    ]
    y = alt.Y("count:Q", title="count", **log_axis([0.5, float(counts.max())]))
    x = alt.X("low:Q", title=label, axis=alt.Axis(grid=False, labelExpr=number_label()))
    bars = alt.Chart(inline([row | {"floor": 0.5} for row in rows])).mark_bar(color=PALETTE[0])
    return bars.encode(x=x, x2="high:Q", y=y, y2="floor:Q", tooltip=["low:Q", "high:Q", "count:Q"])


def _matrix(layer: LayerGradients) -> tuple[Any, str]:
    if layer.matrix is None:
        raise InputError(f"The channel matrix of {layer.name} is too large and was not kept.")
    label = "log10 of |gradient|, summed over the kernel"
    with np.errstate(divide="ignore"):
        heat = _heat(np.log10(layer.matrix), "in-channel", "out-channel", label)
    share = f"{layer.rank_one_signed:.2f}"
    return heat, f"Gradients between channels: {share} of rank one (signed)"


def _terms(layer: LayerGradients) -> tuple[Any, str]:
    if layer.terms is None:
        raise InputError("T1 and T4 were not measured. Ask for quantities='alignment'.")
    rows = [
        {"t1": float(a), "t4": float(b)} for a, b in layer.terms.T if positive(a) and positive(b)
    ]
    x = alt.X("t1:Q", title="T1  Σ |d|", **log_axis(row["t1"] for row in rows))
    y = alt.Y("t4:Q", title="T4  |Σ d|", **log_axis(row["t4"] for row in rows))
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=14, opacity=0.6, color=PALETTE[0])
    heading = f"T4 against T1, weight by weight: r = {layer.term_correlation:.2f}"
    return dots.encode(x=x, y=y), heading


def _means(layer: LayerGradients) -> tuple[Any, str]:
    assert layer.in_mean is not None
    assert layer.in_gradient is not None
    rows = [
        {"channel": c, "mean": float(m), "value": float(g)}
        for c, (m, g) in enumerate(zip(layer.in_mean, layer.in_gradient, strict=True))
    ]
    plain = alt.Axis(labelExpr=number_label())
    x = alt.X("mean:Q", title=f"mean of the in-channel ({layer.mean_of})", axis=plain)
    y = alt.Y("value:Q", title="mean |gradient| of its weights", axis=plain)
    dots = alt.Chart(inline(rows)).mark_point(filled=True, size=45, opacity=0.9, color=PALETTE[0])
    heading = f"Channel mean and gradient: r = {layer.mean_correlation:.2f}"
    return dots.encode(x=x, y=y, tooltip=["channel:Q", "mean:Q", "value:Q"]), heading


def _outputs(found: Gradients) -> Any:
    if found.outputs is None:
        raise InputError("Output gradients are measured for cross-entropy only.")
    outputs = found.outputs
    heat = _heat(outputs.examples, "class j", "sample b", "G = softmax − target", diverging=True)
    notes = [
        f"class {outputs.favoured} is favoured: predicted for "
        f"{outputs.predicted[outputs.favoured]:.0%}; alignment {outputs.alignment:.2f} of 1"
    ]
    heading = alt.Title("Gradients at the outputs", subtitle=notes)
    return heat.properties(width=WIDTH, height=HEIGHT, title=heading)


def _classes(found: Gradients) -> Any:
    if found.classes is None:
        raise InputError("Class-wise gradients were not measured. Ask for quantities='classes'.")
    values = found.classes.mean_abs
    rows = [{"class": j, "value": float(v)} for j, v in enumerate(values)]
    y = alt.Y("value:Q", title="mean |gradient|", axis=alt.Axis(labelExpr=number_label()))
    bars = alt.Chart(inline(rows)).mark_bar(color=PALETTE[0])
    notes = [f"{found.classes.name}, layer {found.classes.number}: largest over median class "
             f"{found.classes.top_over_median:.3g}"]  # fmt: skip
    heading = alt.Title("Gradient that comes through each class", subtitle=notes)
    drawn = bars.encode(x=alt.X("class:O", title="class", axis=alt.Axis(labelAngle=0)), y=y)
    return drawn.properties(width=WIDTH, height=HEIGHT, title=heading)


def _heat(values: Array, x: str, y: str, label: str, *, diverging: bool = False) -> Any:
    rows = [
        {"x": j - 0.5, "x2": j + 0.5, "y": i - 0.5, "y2": i + 0.5, "value": float(v)}
        for (i, j), v in np.ndenumerate(values)
        if np.isfinite(v)
    ]
    if diverging:
        scale = alt.Scale(scheme="blueorange", domain=[-1, 1])
    else:
        scale = alt.Scale(scheme="viridis")
    height, width = values.shape
    legend = alt.Legend(orient="top", titleLimit=WIDTH, gradientLength=200)
    return (
        alt.Chart(inline(rows))
        .mark_rect(strokeWidth=0)
        .encode(
            x=alt.X("x:Q", title=x, **whole_axis(0, width - 1)),
            x2="x2:Q",
            y=alt.Y("y:Q", title=y, **whole_axis(0, height - 1, reverse=True)),
            y2="y2:Q",
            color=alt.Color("value:Q", title=label, scale=scale, legend=legend),
        )
    )


def _values(rows: list[dict[str, Any]]) -> list[float]:
    return [row["value"] for row in rows]


def _layer_axis(found: Gradients) -> Any:
    return layer_axis(layer.number for layer in found.layers)


_WHOLE: dict[str, Callable[[Any], Any]] = {
    "depth": _depth,
    "outputs": _outputs,
    "classes": _classes,
}
_SINGLE: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "entries": _entries,
    "matrix": _matrix,
    "terms": _terms,
    "summands": _summands,
    "means": _means,
}
