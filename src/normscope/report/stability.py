"""Charts of how large a learning rate may be."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.messages import counted
from normscope.report.style import (
    PALETTE,
    inline,
    log_axis,
    named_scale,
    plain_axis,
    positive,
    tips,
)
from normscope.results.stability import LRRange, StabilityBound, StabilityLimit

WIDTH, HEIGHT = 520, 320
COLOURS = {"learned": PALETTE[2], "did not learn": PALETTE[4], "diverged": PALETTE[1]}
NAMES = {"diverges": "diverges", "does-not-learn": "does not learn", "leaves": "leaves"}
TINTS = {"diverges": PALETTE[1], "does-not-learn": PALETTE[4], "leaves": PALETTE[3]}


def stability_chart(limit: StabilityLimit) -> Any:
    """Loss at the end of each training over its learning rate, with the intervals."""
    rows = _trial_rows(limit)
    lrs = [row["lr"] for row in rows] + [b for b in (limit.low, limit.high) if positive(b)]
    x = {"title": "learning rate", **log_axis(lrs)}
    y = {"title": "loss after the training", **loss_axis([row["loss"] for row in rows])}
    points = outcome_points(rows, x, y, "lr:Q", "seed:N", "outcome:N", size=70)
    layers = [*_bands(limit, x), *_levels(limit, rows, y), points]
    bound = limit.bound
    rate = f"{bound.lr:.3g}" if bound.closed else _shown(bound)
    title = f"Limit of the learning rate: {rate} ({NAMES[bound.criterion]})"
    heading = alt.Title(title, subtitle=_notes(limit))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


def range_chart(found: LRRange) -> Any:
    """Losses of the growing learning rate, their fit, and the suggestion with its interval."""
    rows: list[dict[str, Any]] = [
        {"lr": float(lr), "loss": float(loss), "fitted": float(fit) if math.isfinite(fit) else None}
        for lr, loss, fit in zip(found.lrs, found.losses, found.fitted, strict=True)
        if math.isfinite(loss)
    ]
    x = {"title": "learning rate", **log_axis(row["lr"] for row in rows)}
    y = {"title": "loss", **loss_axis([row["loss"] for row in rows])}
    base = alt.Chart(inline(rows)).encode(x=alt.X("lr:Q", **x))
    told = tips("lr:Q", "loss:Q", "fitted:Q", form=".4g")
    dots = base.mark_point(filled=True, size=22, opacity=0.55, color=PALETTE[0])
    line = base.transform_filter("datum.fitted != null").mark_line(strokeWidth=2, color=PALETTE[0])
    layers = [
        dots.encode(y=alt.Y("loss:Q", **y), tooltip=told),
        line.encode(y=alt.Y("fitted:Q", **y)),
    ]
    if found.ok:
        ends = found.low, found.high
        layers = [*rate_band(found.suggestion, ends, x, opacity=0.18), *layers]
    notes = [f"{found.rule}; turn {found.turn:.3g}" if found.ok else found.reason]
    shown = f"Suggested learning rate {found.suggestion:.3g}" if found.ok else "No suggestion"
    title = alt.Title(shown, subtitle=notes)
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=title)


def _trial_rows(limit: StabilityLimit) -> list[dict[str, Any]]:
    """One row per trial; a loss that is not finite is drawn above all others."""
    finite = [t.final for t in limit.trials if positive(t.final)]
    top = 10 * max(finite, default=1.0)
    return [
        {"lr": t.lr, "seed": t.seed, "outcome": t.outcome, "final": f"{t.final:.4g}"}
        | {"updates": t.updates, "reason": t.reason}
        | {"loss": t.final if math.isfinite(t.final) else top}
        for t in limit.trials
    ]


def _bands(limit: StabilityLimit, x: dict[str, Any]) -> list[Any]:
    """The intervals, with edges: a narrow one would not be seen."""
    first, last = x["scale"].domain
    layers = []
    for bound in limit.bounds:
        colour = TINTS[bound.criterion]
        if bound.low == 0 and bound.high == math.inf:
            continue
        row = {"low": max(bound.low, first), "high": min(bound.high, last), "lr": _shown(bound)}
        base = alt.Chart(inline([row | {"criterion": NAMES[bound.criterion]}]))
        told = tips("criterion:N", "lr:N limit")
        band = base.mark_rect(opacity=0.2, color=colour)
        layers.append(band.encode(x=alt.X("low:Q", **x), x2="high:Q", tooltip=told))
        edge = base.mark_rule(color=colour, strokeWidth=1.5)
        layers += [edge.encode(x=alt.X(f"{end}:Q", **x), tooltip=told) for end in ("low", "high")]
    return layers


def _levels(limit: StabilityLimit, rows: list[dict[str, Any]], y: dict[str, Any]) -> list[Any]:
    """Where the losses started, and chance."""
    if not limit.trials:
        return []
    last = max(row["lr"] for row in rows)
    first = limit.trials[0]
    levels = [("start", first.start), ("chance", first.chance)]
    found = [{"level": v, "what": w, "lr": last} for w, v in levels if positive(v)]
    base = alt.Chart(inline(found)).encode(y=alt.Y("level:Q", **y))
    rules = base.mark_rule(strokeDash=[5, 4], strokeWidth=1.2)
    return [rules.encode(tooltip=tips("what:N", "level:Q", form=".4g"))]


def rate_band(
    lr: float, ends: tuple[float, float], x: dict[str, Any], *, opacity: float
) -> list[Any]:
    """A learning rate as a line in the band of its interval; ``x`` is the axis."""
    base = alt.Chart(inline([{"low": ends[0], "high": ends[1], "lr": lr}]))
    band = base.mark_rect(opacity=opacity, color=PALETTE[2])
    told = tips("low:Q", "high:Q", "lr:Q", form=".4g")
    return [
        band.encode(x=alt.X("low:Q", **x), x2="high:Q", tooltip=told),
        base.mark_rule(color=PALETTE[2], strokeWidth=2).encode(x=alt.X("lr:Q", **x), tooltip=told),
    ]


def outcome_points(
    rows: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], *fields: str, **mark: Any
) -> Any:
    """Training runs by learning rate and loss, in the colour and shape of their outcome.

    ``fields`` are said of a point before its loss, updates and reason.
    """
    shapes = dict(zip(COLOURS, ("circle", "square", "triangle-up"), strict=True))
    common = ("final:N loss", alt.Tooltip("updates:Q"), "reason:N")
    marks = alt.Chart(inline(rows)).mark_point(filled=True, opacity=0.9, **mark)
    return marks.encode(
        x=alt.X("lr:Q", **x),
        y=alt.Y("loss:Q", **y),
        color=alt.Color("outcome:N", title=None, scale=named_scale(COLOURS)),
        shape=alt.Shape("outcome:N", title=None, scale=named_scale(shapes)),
        tooltip=tips(*fields, *common, form=".4g"),
    )


def loss_axis(losses: list[float]) -> dict[str, Any]:
    """A log axis if all losses are positive."""
    return log_axis(losses) if all(map(positive, losses)) else plain_axis()


def _shown(bound: StabilityBound) -> str:
    return f"{bound.low:.3g} to {bound.high:.3g}"


def _notes(limit: StabilityLimit) -> list[str]:
    seeds = len({trial.seed for trial in limit.trials})
    shown = "; ".join(f"{NAMES[b.criterion]} {_shown(b)}" for b in limit.bounds)
    made = f"{counted(len(limit.trials), 'training')}, {counted(seeds, 'seed')}"
    notes = [f"{shown}; {made}; dashed: start and chance"]
    return notes + [f"{NAMES[b.criterion]}: {b.reason}" for b in limit.bounds if b.reason]
