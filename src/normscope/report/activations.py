"""Signals by depth, and histograms of channels."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    layer_axis,
    legend,
    log_axis,
    number_label,
    positive,
    tips,
)
from normscope.results import Activations, ChannelStatistics, Growth

WIDTH, HEIGHT = 330, 280
SMALL = 200, 150
COLUMNS = 4
SPREAD = 0.8  # opacity of bars behind their dots, to be seen on white and on near-black


def activation_chart(
    found: Activations, *, show: str = "depth", layer: str | int | None = None, channels: int = 8
) -> Any:
    """Channel means and variances by depth, or histograms of some channels of one signal.

    Args:
        found: the result.
        show: ``"depth"`` or ``"histograms"``.
        layer: name or number of the signal of the histograms; None for the middle one.
        channels: how many of them, evenly spaced from the lowest to the highest mean.
    """
    if show == "depth":
        return _depth(found)
    if show == "histograms":
        return _histograms(found, layer, channels)
    raise InputError(f"Unknown chart show={show!r}. {near_match(show, ['depth', 'histograms'])}")


def _depth(found: Activations) -> Any:
    layers = found.outputs or found.signals
    numbers = [signal.number for signal in (*layers, *found.rectified)]
    x = layer_axis(numbers)
    variances = _moment_panel(layers, "variance", "mean over channels of the variance", x)
    panels = [
        _moment_panel(layers, "mean", "mean over channels of |mean|", x),
        alt.layer(variances, *_growth_lines(found, x)),
    ]
    if any(signal.dying.any() or signal.full.any() for signal in found.rectified):
        panels.append(_share_panel(found, x))
    heading = alt.Title("Channel moments by depth", subtitle=_depth_notes(found))
    sized = [panel.properties(width=WIDTH, height=HEIGHT) for panel in panels]
    return alt.hconcat(*sized).resolve_scale(color="independent").properties(title=heading)


def _depth_notes(found: Activations) -> list[str]:
    statistics = found.convention.get("statistics", "")
    notes = [f"{found.num_samples} samples; bars: standard deviation over the channels", statistics]
    lines = [f"× {fit.factor:.3g} a layer ({fit.which})" for fit in _drawn(found)]
    return notes + ([f"variance {', '.join(lines)}: dashed"] if lines else [])


def _drawn(found: Activations) -> tuple[Growth, ...]:
    """Even and odd layers where there are both: in residual networks they lie far apart."""
    return found.growth[1:] if len(found.growth) == 3 else found.growth[:1]


def _moment_panel(layers: tuple[ChannelStatistics, ...], name: str, label: str, x: Any) -> Any:
    rows: list[dict[str, Any]] = []
    for signal in layers:
        values = np.abs(getattr(signal, name))
        middle, spread = float(values.mean()), float(values.std())
        if positive(middle):
            rows.append(
                {"layer": signal.number, "name": signal.name, "value": middle, "std": spread}
                | {"low": max(middle - spread, middle / 10), "high": middle + spread}
            )
    if not rows:
        raise InputError(f"There is nothing to draw: the {name} of every channel is zero.")
    axis = log_axis([row["low"] for row in rows] + [row["high"] for row in rows])
    base = alt.Chart(inline(rows)).encode(x=x)
    y = alt.Y("value:Q", title=label, **axis)
    shown = tips("name:N", alt.Tooltip("layer:Q"), "value:Q", "std:Q")
    bars = base.mark_rule(color=PALETTE[0], opacity=SPREAD).encode(
        y=alt.Y("low:Q", title=label, **axis), y2="high:Q"
    )
    dots = base.mark_point(filled=True, size=26, opacity=1, color=PALETTE[0])
    return alt.layer(bars, dots.encode(y=y, tooltip=shown))


def _growth_lines(found: Activations, x: Any) -> list[Any]:
    """The fitted lines, between the first and the last layer."""
    last = max((s.number for s in found.outputs), default=1)
    rows = [
        {"layer": n, "value": 10 ** (fit.start + fit.slope * n), "which": fit.which}
        for fit in _drawn(found)
        for n in (1, last)
    ]
    if not rows:
        return []
    line = alt.Chart(inline(rows)).mark_line(color=PALETTE[1], strokeWidth=2, strokeDash=[6, 4])
    return [line.encode(x=x, y="value:Q", detail="which:N")]


def _share_panel(found: Activations, x: Any) -> Any:
    kinds = {"dead (always 0)": "dying", "always active": "full"}
    colours = dict(zip(kinds, PALETTE[1:], strict=False))
    rows: list[dict[str, Any]] = [
        {"layer": s.number, "name": s.name, "units": label}
        | {"share": float(getattr(s, kind).mean())}
        for s in found.rectified
        for label, kind in kinds.items()
    ]
    top = max(0.05, 1.05 * max(row["share"] for row in rows))
    y = alt.Y(
        "share:Q",
        title="share of the units of a rectifier",
        axis=alt.Axis(format="%"),
        scale=alt.Scale(domain=[0, min(top, 1.0)]),
    )
    colour = legend(alt.Color, "units:N", colours, orient="top")
    return (
        alt.Chart(inline(rows))
        .mark_line(point=alt.OverlayMarkDef(size=20), strokeWidth=1)
        .encode(x=x, y=y, color=colour, tooltip=["name:N", "units:N", "share:Q"])
    )


def _histograms(found: Activations, layer: str | int | None, channels: int) -> Any:
    signals = found.rectified or found.outputs
    signal = signals[len(signals) // 2] if layer is None else found[layer]
    if signal.histograms is None:
        raise InputError("No histograms were kept. Measure with histogram=32, for example.")
    if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
        raise InputError(f"channels is how many are drawn, at least 1. Got {channels!r}.")
    order = np.argsort(signal.mean)
    places = np.unique(np.linspace(0, len(order) - 1, channels).round().astype(int))
    panels = [_histogram_panel(signal, int(order[place])) for place in places]
    notes = [
        f"{signal.one_signed.mean():.0%} of {len(signal.mean)} channels never change their sign; "
        f"shown from the lowest to the highest mean"
    ]
    heading = alt.Title(f"Channels at {signal.name}", subtitle=notes)
    return alt.concat(*panels, columns=COLUMNS, spacing=18).properties(title=heading)


def _histogram_panel(signal: ChannelStatistics, channel: int) -> Any:
    assert signal.histograms is not None
    edges, density = signal.histograms.edges(channel), signal.histograms.density(channel)
    rows = [
        {"low": float(a), "high": float(b), "density": float(d), "floor": 0.0}
        for a, b, d in zip(edges[:-1], edges[1:], density, strict=True)
    ]
    low, high = min(edges[0], 0.0), max(edges[-1], 0.0)
    axis = alt.Axis(grid=False, tickCount=4, labelExpr=number_label())
    x = alt.X("low:Q", title=f"channel {channel}", axis=axis, scale=alt.Scale(domain=[low, high]))
    y = alt.Y("density:Q", title=None, axis=None)
    bars = alt.Chart(inline(rows)).mark_rect(color=PALETTE[0], strokeWidth=0)
    zero = alt.Chart(inline([{"zero": 0.0}])).mark_rule(color=NEUTRAL, strokeDash=[4, 3])
    shown = bars.encode(
        x=x, x2="high:Q", y=y, y2="floor:Q", tooltip=tips("low:Q", "high:Q", "density:Q")
    )
    return alt.layer(shown, zero.encode(x="zero:Q")).properties(width=SMALL[0], height=SMALL[1])
