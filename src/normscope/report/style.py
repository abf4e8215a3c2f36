"""One look for all charts: fonts, colours that colour-blind readers can tell apart, log axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt

# Okabe and Ito's colours, those that stand out on white and on near-black alike
PALETTE = ("#0f83c9", "#d55e00", "#00a277", "#c46aa0", "#b8860b", "#5aa9e0")
NEUTRAL = "#8a8f98"  # for what is no theory's own
COLOURS = (*PALETTE, "#6c5ce7", "#7a5230", "#3d6b35", NEUTRAL)  # where there may be more
# fonts of one width: a still picture is laid out by the first and shown in what a reader has
FONT = "'Liberation Sans', Arial, Helvetica, sans-serif"
MOST_TICKS = 12  # whole numbers on an axis
INK = {False: ("#1f2328", "#57606a", "#d8dee4"), True: ("#e6e9ed", "#a8b0ba", "#3a414b")}


def theme(*, dark: bool = False) -> dict[str, Any]:
    """The Vega-Lite ``config`` of every chart; the dark one is for pages on a dark ground."""
    ink, soft, line = INK[dark]
    text = {"labelColor": soft, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 13}
    return {
        "background": "#16191d" if dark else "white",
        "font": FONT,
        "padding": 12,
        "axis": text
        | {"titleFontWeight": "normal", "titlePadding": 8, "gridColor": line, "gridOpacity": 0.7}
        | {"domainColor": soft, "tickColor": soft},
        "legend": text
        | {"titleFontWeight": "normal", "symbolSize": 110, "labelLimit": 320}
        | {"symbolOpacity": 1},
        "header": text,
        "title": {"color": ink, "fontSize": 15, "fontWeight": 600, "anchor": "start", "offset": 12}
        | {"subtitleColor": soft, "subtitleFontSize": 12, "subtitlePadding": 5},
        "text": {"color": ink},
        "rule": {"color": soft},
        "view": {"stroke": None},
        "concat": {"spacing": 36},
    }


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """Scale and axis of a log encoding that holds ``values``; the others are left out."""
    found = [value for value in values if positive(value)]
    low, high = (min(found), max(found)) if found else (1.0, 10.0)
    pad = 10 ** (0.06 * max(math.log10(high / low), 0.3))
    low, high = low / pad, high * pad
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return {"scale": scale, "axis": alt.Axis(values=_ticks(low, high), labelExpr=number_label())}


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten, not too many; with 2 and 5 over few decades; evenly spaced within one."""
    decades = math.log10(high / low)
    if decades < 1:
        step = 10 ** math.floor(math.log10((high - low) / 2))
        ticks = [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
        return ticks[:: math.ceil(len(ticks) / 8)]
    steps = (1,) if decades > 3 else (1, 2, 5)
    stride = max(1, math.ceil(decades / 12))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, stride)
    return [t for t in (s * 10.0**k for k in powers for s in steps) if low <= t <= high]


def whole_axis(first: int, last: int, *, reverse: bool = False) -> dict[str, Any]:
    """Scale and axis of an encoding by whole numbers, with half a step of room at either end.

    The ticks are given: Vega puts some at halves, which ``tickMinStep`` does not prevent.
    """
    strides = (step * 10**power for power in range(18) for step in (1, 2, 5))
    stride = next(stride for stride in strides if (last - first) // stride < MOST_TICKS)
    ticks = [number for number in range(first, last + 1) if number % stride == 0]
    scale = alt.Scale(domain=[first - 0.5, last + 0.5], nice=False, reverse=reverse)
    return {"scale": scale, "axis": alt.Axis(values=ticks, format="d", grid=False)}


def layer_axis(numbers: Iterable[int], title: str = "layer") -> Any:
    """The channel x of charts by the number of a layer."""
    found = list(numbers)
    return alt.X("layer:Q", title=title, **whole_axis(min(found), max(found)))


def plain_axis() -> dict[str, Any]:
    """Scale and axis of a linear encoding that need not hold zero."""
    return {"scale": alt.Scale(zero=False), "axis": alt.Axis(labelExpr=number_label())}


def legend(
    channel: Any, name: str, values: Mapping[str, Any], *, sort: Any = alt.Undefined, **options: Any
) -> Any:
    """A channel such as ``alt.Color`` that gives each name its value; ``options`` of its legend."""
    shown = alt.Legend(**options)
    return channel(name, title=None, sort=sort, scale=named_scale(values), legend=shown)


def named_scale(values: Mapping[str, Any]) -> Any:
    """A scale that gives each name its value."""
    return alt.Scale(domain=list(values), range=list(values.values()))


def tips(*fields: Any, form: str = ".4~g") -> list[Any]:
    """Tooltips of fields such as ``"kind:N"`` or ``"value:Q the title"``, numbers in ``form``.

    What is no text, such as a tooltip with a format of its own, stays as it is.
    """
    return [_tip(field, form) if isinstance(field, str) else field for field in fields]


def _tip(field: str, form: str) -> Any:
    name, _, title = field.partition(" ")
    number = name.endswith(":Q")
    return alt.Tooltip(name, title=title or alt.Undefined, format=form if number else alt.Undefined)


def number_label() -> str:
    """A Vega expression for tick labels: plain numbers near one, 1e6 far away."""
    return (
        "abs(datum.value) < 100000 && (datum.value == 0 || abs(datum.value) >= 0.001) "
        "? format(datum.value, '.6~g') : replace(format(datum.value, '.1~e'), '+', '')"
    )


def positive(value: float | None) -> bool:
    """True for what a log scale can show; one value it cannot would blank the whole chart."""
    return value is not None and math.isfinite(value) and value > 0


def inline(rows: list[dict[str, Any]]) -> Any:
    """Rows as chart data: stored in the chart, no limit on their number, no NaN among them.

    A plain dict, because Altair checks every row of its own ``InlineData`` against a schema,
    seconds for a large grid.
    """
    return {"values": [{k: _plain(v) for k, v in row.items()} for row in rows]}


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
