"""What results share beyond a record: a chart, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from normscope.checks import Array
from normscope.record import Record
from normscope.render import chart_of

if TYPE_CHECKING:
    import pandas as pd

DataFrame: TypeAlias = "pd.DataFrame"  # its name alone: pandas takes long to import


class Drawable(Record):
    """A record with a chart."""

    def chart(self, **options: Any) -> Any:
        """What the class says of its chart, as an Altair chart; ``options`` of the drawing."""
        return chart_of(self, **options)


def standard_error_of(per_run: Array, alone: float = np.nan) -> Array:
    """Of the mean over axis 0; ``alone`` for one run, which says nothing of its own error."""
    if len(per_run) == 1:
        return np.full(per_run.shape[1:], alone)
    error: Array = per_run.std(axis=0, ddof=1) / np.sqrt(len(per_run))
    return error


def framed(data: Any, **options: Any) -> DataFrame:
    """A table; pandas is imported only when one is asked for."""
    import pandas as pd

    return pd.DataFrame(data, **options)


def listed(items: Iterable[object], *names: str) -> DataFrame:
    """A table with one row per item and one column per attribute."""
    return framed([[getattr(item, name) for name in names] for item in items], columns=list(names))


def ranked(columns: dict[str, Any], name: str = "rank") -> DataFrame:
    """A table whose rows are numbered from 1."""
    return framed(columns, index=range(1, len(next(iter(columns.values()))) + 1)).rename_axis(name)


def digits(value: float) -> str:
    """Three digits that count: 2.30, 0.00412, 16.3, 1230; an exponent where zeros would hide it."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{float(f'{value:.3g}'):.0f}"
