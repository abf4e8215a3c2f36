"""Two examinations compared: ratios of their numbers as a chart, and the page around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from normscope.errors import InputError, NormscopeError
from normscope.files import write_atomically
from normscope.report.files import check_path
from normscope.report.html import figure, filled
from normscope.report.style import (
    NEUTRAL,
    PALETTE,
    inline,
    legend,
    log_axis,
    named_scale,
    positive,
    theme,
    tips,
)
from normscope.report.wording import wording
from normscope.results.examination_difference import ExaminationDifference, NumberChange

WIDTH, ROW = 420, 24
WHERE = {
    "larger in B": (PALETTE[1], "triangle-right"),
    "smaller in B": (PALETTE[0], "triangle-left"),
}
MOVED = ("appeared", "worse", "better", "disappeared")


def ratio_chart(found: ExaminationDifference) -> Any:
    """Every number of the measurements, second over first, on a log axis."""
    rows = [_row(n) for n in found.numbers if n.measurement and positive(n.ratio) and n.ratio != 1]
    if not rows:
        raise InputError("There is nothing to draw: no number of the two has a ratio but 1.")
    x = {"title": "B / A", **log_axis([*(row["ratio"] for row in rows), 1.0])}
    y = alt.Y(
        "name:N", title=None, sort=[row["name"] for row in rows], axis=alt.Axis(labelLimit=320)
    )
    colours, shapes = ({side: values[i] for side, values in WHERE.items()} for i in (0, 1))
    colour = legend(alt.Color, "side:N", colours, orient="top")
    base = alt.Chart(inline(rows)).encode(y=y, color=colour)
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("one:Q", **x), x2="ratio:Q")
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=alt.X("ratio:Q", **x),
        shape=alt.Shape("side:N", title=None, scale=named_scale(shapes)),
        tooltip=tips("name:N number", "first:Q", "second:Q", "ratio:Q"),
    )
    line = alt.Chart(inline([{"one": 1.0}])).mark_rule(color=NEUTRAL, strokeDash=[5, 4])
    heading = alt.Title("Numbers of B over those of A", subtitle=["1: no change"])
    return alt.layer(line.encode(x=alt.X("one:Q", **x)), bars, dots).properties(
        width=WIDTH, height=ROW * len(rows), title=heading
    )


def _row(change: NumberChange) -> dict[str, Any]:
    return {
        "name": f"{wording(change.measurement).short}: {_symbols(change.quantity)}",
        "first": change.first,
        "second": change.second,
        "ratio": change.ratio,
        "one": 1.0,
        "side": "larger in B" if change.ratio > 1 else "smaller in B",
    }


def _symbols(quantity: str) -> str:
    return quantity.replace("lambda_max", "λ_max").replace("kappa", "κ").replace("J^T J", "JᵀJ")


def save_difference(found: ExaminationDifference, path: str | Path) -> Path:
    """Write the page of a comparison to a file that ends in .html."""
    target = check_path(path, (".html",))
    write_atomically(target, difference_page(found))
    return target


def difference_page(found: ExaminationDifference) -> str:
    """One self-contained page: findings that changed, then numbers."""
    try:
        drawn = [figure(ratio_chart(found).configure(**theme()).to_dict(), "ratios")]
    except NormscopeError:  # nothing moved, or no chart can be drawn here: the table says so
        drawn = []
    groups: dict[str, list[NumberChange]] = {}
    for change in found.numbers:
        title = wording(change.measurement).title if change.measurement else "Head of the page"
        groups.setdefault(title, []).append(change)
    return filled(
        "difference.html.jinja",
        drawn,
        found=found,
        drawn=drawn,
        moved=found.changed(*MOVED),
        others=found.changed("same", "not judged"),
        groups=groups,
    )
