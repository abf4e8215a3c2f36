"""Chart of a trial: the loss of copies, update by update, at the user's rate and at others."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from normscope.errors import InputError
from normscope.messages import counted
from normscope.report.style import (
    COLOURS,
    NEUTRAL,
    inline,
    legend,
    log_axis,
    number_label,
    tips,
    whole_axis,
)
from normscope.results.trial import Rung, Trial

WIDTH, HEIGHT = 560, 190
TOP = 3.0  # times the loss at the start, or the constant's: higher ones are drawn there
WIDE = 8.0  # ratio of losses above which their axis is logarithmic


def trial_chart(found: Trial) -> Any:
    """The loss of each copy before every update, and that of the best constant prediction."""
    known = [v for v in (found.before, found.constant) if math.isfinite(v)]
    top = TOP * max(map(abs, known), default=math.inf)
    rows = [row for rung in _drawn(found) for row in _rows(found, rung, top)]
    if not rows:
        raise InputError("There is nothing to draw: no update was made.")
    names = list(dict.fromkeys(row["rate"] for row in rows))
    losses = [row["loss"] for row in rows]
    line = found.constant if math.isfinite(found.constant) else None
    ends = losses + ([] if line is None else [line])
    wide = min(ends) > 0 and max(ends) > WIDE * min(ends)
    axis = log_axis(ends) if wide else {"axis": alt.Axis(labelExpr=number_label(), tickCount=5)}
    y = alt.Y("loss:Q", title="loss", **axis)
    x = alt.X("update:Q", title="update", **whole_axis(0, max(row["update"] for row in rows)))
    colours = dict(zip(names, COLOURS, strict=False))
    base = alt.Chart(inline(rows)).encode(
        x=x, y=y, color=legend(alt.Color, "rate:N", colours, sort=names, orient="right"),
        tooltip=tips("rate:N", alt.Tooltip("update:Q", format="d"), "loss:Q"),
    )  # fmt: skip
    layers = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=18, opacity=1)]
    if line is not None:
        layers = [*_constant(line, y), *layers]
    return alt.layer(*layers).properties(
        width=WIDTH, height=HEIGHT, title=alt.Title("Loss in the trial", subtitle=_notes(found))
    )  # fmt: skip


def rate_in_words(found: Trial, rung: Rung) -> str:
    """``lr 0.2``; the share of the user's rates where an optimizer has several."""
    lr = found.lr if found.lr is not None else found.assumed
    if lr is not None:
        return f"lr {lr * rung.factor:.3g}"
    return "your rates" if rung.factor == 1 else f"your rates × {rung.factor:g}"


def _drawn(found: Trial) -> list[Rung]:
    """The longest trial of each rate: it begins like the shorter ones."""
    longest = [found.rung(rung.factor, longest=True) for rung in found.rungs]
    return list({rung.factor: rung for rung in longest if rung is not None}.values())


def _rows(found: Trial, rung: Rung, top: float) -> list[dict[str, Any]]:
    losses = [*rung.path[: rung.updates], rung.after] if rung.path else [rung.before, rung.after]
    places = range(len(losses)) if rung.path else (0, rung.updates)
    rate, rows = rate_in_words(found, rung), list[dict[str, Any]]()
    for place, loss in zip(places, losses, strict=True):
        # What is too high to be drawn runs along the upper edge; what is not finite ends there.
        rows.append({"rate": rate, "update": place, "loss": float(loss) if loss <= top else top})
        if not math.isfinite(loss):
            break
    return rows


def _constant(loss: float, y: Any) -> list[Any]:
    base = alt.Chart(inline([{"loss": loss, "name": "best constant prediction"}]))
    text = base.mark_text(align="right", dx=-4, dy=-7, fontSize=11)
    return [
        base.mark_rule(color=NEUTRAL, strokeDash=[5, 4]).encode(y=y),
        text.encode(x=alt.value("width"), y=y, text="name:N"),
    ]


def _notes(found: Trial) -> list[str]:
    gone = [
        f"{rate_in_words(found, rung)}: NaN or infinite after {counted(rung.updates, 'update')}"
        for rung in _drawn(found)
        if rung.diverged
    ]
    return ["; ".join(gone)] if gone else []
