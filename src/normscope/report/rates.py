"""All learning rates that an examination knows of, on one axis."""

from __future__ import annotations

from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.report.learning_rate import NAMES, TINTS, rate_intervals
from normscope.report.style import NEUTRAL, PALETTE, inline, log_axis, positive
from normscope.results import Evidence, Examination

WIDTH, ROW = 480, 34
YOURS = "your learning rate"
SOURCES = {  # quantity at the head of an examination -> name of its line
    "recommended learning rate": "recommended",
    "local threshold of the learning rate": "threshold",
    "stops learning above": "does-not-learn",
    "diverges at": "diverges",
}
RULES = {
    "theory": "2 (1 + momentum) / predicted λ_max, scaled to the loss",
    "recommended": "training runs on copies at several learning rates",
    "threshold": "2 (1 + momentum) / λ_max of the loss",
    "does-not-learn": "training runs on copies, by bisection",
    "diverges": "training runs on copies, by bisection",
}


def rates_chart(examination: Examination) -> Any:
    """The rate asked about as a line through the thresholds and limits that were found."""
    rows = [*_theory(examination), *_found(examination)]
    lr = examination.convention.get("lr")
    if not rows:
        raise InputError("There is nothing to draw: no learning rate was found.")
    own = [{"name": YOURS, "lr": lr, "low": lr, "high": lr, "rule": "as given"}] if lr else []
    rows += [row | {"colour": PALETTE[3]} for row in own]
    ends = [row[key] for row in rows for key in ("low", "high", "lr")]
    x = {"title": "learning rate", **log_axis(ends)}
    layers = [rate_intervals(rows, x)]
    if lr:
        line = alt.Chart(inline([{"lr": lr}])).mark_rule(color=PALETTE[3], strokeDash=[5, 4])
        layers.insert(0, line.encode(x=alt.X("lr:Q", **x)))
    momentum = examination.convention.get("momentum")
    notes = [f"momentum {momentum:g}"] if momentum else []
    heading = alt.Title("Learning-rate limits", subtitle=notes)
    return alt.layer(*layers).properties(width=WIDTH, height=ROW * len(rows), title=heading)


def _theory(examination: Examination) -> list[dict[str, Any]]:
    comparison = examination.measurements.get("comparison")
    predicted = getattr(comparison, "loss_predicted", None)
    if predicted is None or not positive(predicted):
        return []
    lr = 2 * (1 + float(examination.convention.get("momentum") or 0.0)) / predicted
    return [_row("theory", lr, lr, lr)]


def _found(examination: Examination) -> list[dict[str, Any]]:
    known = {SOURCES[n.quantity]: n for n in examination.numbers if n.quantity in SOURCES}
    return [_row(name, *_interval(known[name])) for name in NAMES if _drawable(known.get(name))]


def _drawable(number: Evidence | None) -> bool:
    return number is not None and any(map(positive, (number.value, number.low, number.high)))


def _interval(number: Evidence) -> tuple[float, float, float]:
    """Value and ends; an end that is open or not known is drawn at the other."""
    ends = [end for end in (number.low, number.high) if positive(end)] or [number.value]
    value = number.value if positive(number.value) else ends[0]
    return value, ends[0], ends[-1]


def _row(name: str, lr: float, low: float, high: float) -> dict[str, Any]:
    return {"name": NAMES[name], "lr": lr, "low": low, "high": high, "rule": RULES[name]} | {
        "colour": TINTS.get(name, NEUTRAL if name == "theory" else PALETTE[0])
    }
