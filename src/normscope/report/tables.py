"""Data frames as tables for a page: readable columns, no empty ones, not too long."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from normscope.report.wording import cell, column

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "table"]

ROWS = 120  # of a table in a page; the data has them all
LONG = 50  # characters of a sentence
SHORT = range(2, 7)  # rows of a table that needs no folding; one row says what the numbers say


class Table(NamedTuple):
    """A table as a page shows it.

    Attributes:
        columns: (heading, kind): ``"num"`` holds numbers, ``"long"`` sentences.
        rows: cells as text.
        total: rows that there are; more than are shown if it was cut.
        short: whether it may stand unfolded.
    """

    columns: list[tuple[str, str]]
    rows: list[list[str]]
    total: int
    short: bool


def table(frame: pd.DataFrame) -> Table | None:
    """The table of a frame; None if it has no rows."""
    frame = frame.reset_index() if frame.index.name else frame
    records = frame.to_dict("list")
    names = [name for name, values in records.items() if not _idle(str(name), values)]
    if not len(frame) or not names:
        return None
    shown = [records[name][:ROWS] for name in names]
    return Table(
        [(column(str(name)), _kind(values)) for name, values in zip(names, shown, strict=True)],
        [[cell(value) for value in row] for row in zip(*shown, strict=True)],
        len(frame),
        len(frame) in SHORT,
    )


def _idle(name: str, values: list[Any]) -> bool:
    """A column that says nothing: empty throughout, or ok for every layer."""
    return all(_empty(value) or (name == "status" and value == "ok") for value in values)


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _kind(values: list[Any]) -> str:
    known = [value for value in values if not _empty(value)]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        return "num"
    return "long" if any(len(str(value)) > LONG for value in known) else ""
