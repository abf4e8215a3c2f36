"""Chart of a recommended learning rate: the training runs behind it, the limits below."""

from __future__ import annotations

from typing import Any

import altair as alt

from normscope.report.stability import loss_axis, outcome_points, rate_band
from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, positive, tips
from normscope.results.learning_rate import TITLES, LRAdvice
from normscope.results.stability import StabilityTrial

WIDTH, HEIGHT, ROW = 520, 260, 26
NAMES = {"recommended": "recommended", **TITLES}
TINTS = {"recommended": PALETTE[2], "diverges": PALETTE[1], "does-not-learn": PALETTE[4]}


def advice_chart(advice: LRAdvice) -> Any:
    """Losses of all training runs over the learning rate, with recommendation and limits."""
    rows = _runs(advice)
    bounds = _bounds(advice)
    ends = [row[key] for row in bounds for key in ("low", "high", "lr")]
    x = {"title": "learning rate", **log_axis([row["lr"] for row in rows] + ends)}
    shown = f"Recommended learning rate {advice.lr:.3g}" if advice.ok else "No recommendation"
    notes = [_wrapped(advice.reason)] if advice.reason else []
    heading = alt.Title(shown, subtitle=[line for note in notes for line in note])
    return alt.vconcat(
        _losses(advice, rows, x).properties(width=WIDTH, height=HEIGHT),
        rate_intervals(bounds, x).properties(width=WIDTH, height=ROW * len(bounds)),
        title=heading,
        spacing=18,
    )


def _runs(advice: LRAdvice) -> list[dict[str, Any]]:
    """One row per training; a loss that is not finite is drawn above all others."""
    first = advice.limit.trials if advice.limit is not None else ()
    both = [("bisection", trial) for trial in first] + [("race", trial) for trial in advice.race]
    top = 10 * max((t.start for _, t in both if positive(t.start)), default=1.0)
    return [_training(kind, trial, top) for kind, trial in both]


def _training(kind: str, trial: StabilityTrial, top: float) -> dict[str, Any]:
    return {
        "lr": trial.lr,
        "loss": min(trial.score, top),
        "final": f"{trial.score:.4g}",
        "outcome": trial.outcome,
        "kind": f"{kind}, {trial.updates} updates" if kind == "race" else kind,
        "size": 110 if kind == "race" else 40,
        "updates": trial.updates,
        "reason": trial.reason,
    }


def _losses(advice: LRAdvice, rows: list[dict[str, Any]], x: dict[str, Any]) -> Any:
    y = {"title": "mean loss over the second half", **loss_axis([row["loss"] for row in rows])}
    x = x | {"title": None}
    points = outcome_points(rows, x, y, "kind:N training", "lr:Q")
    points = points.encode(size=alt.Size("size:Q", scale=None))
    first = advice.race[0].seed if advice.race else 0
    race = [
        {"lr": t.lr, "loss": t.score} for t in advice.race if t.seed == first and positive(t.score)
    ]
    line = (
        alt.Chart(inline([row for row in race if row["loss"] <= max(r["loss"] for r in rows)]))
        .mark_line(color=NEUTRAL, strokeWidth=1.2)
        .encode(x=alt.X("lr:Q", **x), y=alt.Y("loss:Q", **y))
    )
    ends = advice.low, advice.high
    band = rate_band(advice.lr, ends, x, opacity=0.15) if advice.ok else []
    return alt.layer(*band, line, points)


def _bounds(advice: LRAdvice) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    if advice.ok:
        rows.append(
            {"name": NAMES["recommended"], "lr": advice.lr, "low": advice.low}
            | {"high": advice.high, "rule": advice.rule, "colour": TINTS["recommended"]}
        )
    for bound in advice.bounds:
        if not (positive(bound.low) or positive(bound.high)):
            continue
        ends = [end for end in (bound.low, bound.high) if positive(end)]
        lr = bound.lr if positive(bound.lr) else ends[0]
        rows.append(
            {"name": NAMES[bound.name], "lr": lr, "low": ends[0], "high": ends[-1]}
            | {"rule": bound.rule, "colour": TINTS.get(bound.name, PALETTE[0])}
        )
    return rows


def rate_intervals(rows: list[dict[str, Any]], x: dict[str, Any]) -> Any:
    """One line per learning rate, each with its interval, in the order of ``rows``.

    A row has a name, lr, low, high, the rule behind it and a colour; ``x`` is the axis.
    """
    y = alt.Y("name:N", title=None, sort=[row["name"] for row in rows])
    colour = alt.Color("colour:N", scale=None)
    told = tips("name:N bound", "lr:Q", "low:Q", "high:Q", "rule:N", form=".4g")
    base = alt.Chart(inline(rows)).encode(y=y, color=colour, tooltip=told)
    bar = base.mark_bar(height=8, opacity=0.45).encode(x=alt.X("low:Q", **x), x2="high:Q")
    return bar + base.mark_tick(thickness=3, height=18).encode(x=alt.X("lr:Q", **x))


def _wrapped(text: str, width: int = 95) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
