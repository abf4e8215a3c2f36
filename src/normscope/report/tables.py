"""Data frames as tables for a page: few readable columns, not too long, all of it as CSV."""

from __future__ import annotations

import base64
import math
from typing import Any, NamedTuple

from normscope.report.wording import cell, column
from normscope.results.base import DataFrame

ROWS = 120  # of a table in a page; the data has them all
COLUMNS = 8  # of a table in a page
DATA = 200_000  # bytes of CSV that a page holds of one table
LONG = 50  # characters above which words are a sentence
UNKNOWN = {"updates": -1}  # what stands for a number that is not known
SHORT = range(2, 7)  # rows of a table that needs no folding; one row says what the numbers say


class Table(NamedTuple):
    """A table as a page shows it.

    Attributes:
        columns: (heading, kind): ``"num"`` holds numbers.
        rows: cells as text.
        sentences: (heading, text) to stand below each row; in a column they would make it high.
        total: rows that there are; more than are shown if it was cut.
        short: whether it may stand unfolded.
        left: how many columns only the data has.
        data: all rows and columns as CSV, in base64; empty if that is too long for a page.
    """

    columns: list[tuple[str, str]]
    rows: list[list[str]]
    sentences: list[list[tuple[str, str]]]
    total: int
    short: bool
    left: int
    data: str


def table(frame: DataFrame) -> Table | None:
    """The table of a frame; None if it has no rows."""
    frame = frame.reset_index() if frame.index.name else frame
    records = {str(name): _known(str(name), v) for name, v in frame.to_dict("list").items()}
    told = {name: v[:ROWS] for name, v in records.items() if not _idle(name, v)}
    if not len(frame) or not told:
        return None
    first, *others = told  # the first says what the row is about, and stays
    wordy = [name for name in others if _wordy(told[name])]
    brief = _chosen({name: v for name, v in told.items() if name not in wordy})
    places = range(len(told[first]))
    return Table(
        [(column(name), "num" if _numeric(told[name]) else "") for name in brief],
        [[cell(told[name][i]) for name in brief] for i in places],
        [[(column(n), cell(told[n][i])) for n in wordy if not _empty(told[n][i])] for i in places],
        len(frame),
        len(frame) in SHORT,
        len(told) - len(brief) - len(wordy),
        _data(frame),
    )


def _chosen(columns: dict[str, list[Any]]) -> list[str]:
    """The columns that are shown: the first, then those that differ from row to row."""
    first, *others = columns
    same = [name for name in others if len(set(map(cell, columns[name]))) == 1]
    ranked = [first, *(name for name in others if name not in same), *same][:COLUMNS]
    return [name for name in columns if name in ranked]


def _data(frame: DataFrame) -> str:
    text = frame.to_csv(index=False, float_format="%.6g").encode()
    return base64.b64encode(text).decode() if len(text) <= DATA else ""


def _known(name: str, values: list[Any]) -> list[Any]:
    return [math.nan if value == UNKNOWN.get(name) else value for value in values]


def _idle(name: str, values: list[Any]) -> bool:
    """A column that says nothing: empty throughout, or ok for every layer."""
    return all(_empty(value) or (name == "status" and value == "ok") for value in values)


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _numeric(values: list[Any]) -> bool:
    known = [value for value in values if not _empty(value)]
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)


def _wordy(values: list[Any]) -> bool:
    """Whether some are sentences; a long name has no spaces."""
    return any(len(text) > LONG and " " in text for text in map(cell, values))
