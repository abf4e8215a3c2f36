"""A panel of a figure: what was measured and what theory says, as data of a chart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from normscope.results.base import Drawable

STYLES = ("points", "line", "dashed", "band", "heat")


@dataclass(frozen=True, eq=False)
class Curve(Drawable):
    """One curve of a panel.

    Attributes:
        name: in the legend.
        x: places on the horizontal axis; numbers, or names for bars and categories.
        y: values.
        low: lower ends of the intervals; empty for none.
        high: upper ends of the intervals; empty for none.
        style: ``"points"`` for measurements (joined if there are many and x ascends), ``"line"`` or
            ``"dashed"`` for theory and what the paper prints, ``"band"`` for a region from low to
            high; ``"heat"`` is that of a ``HeatMap``.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: str = "points"


@dataclass(frozen=True, eq=False)
class HeatMap(Curve):
    """Cells of a panel with a logarithmic vertical axis, by colour.

    Attributes:
        z: positive values; a cell is left white where it is not finite. Those with the same x are
            a column, and every column may have places y of its own.
    """

    style: str = "heat"
    z: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Panel(Drawable):
    """One panel of a figure of a paper, as we measured it.

    Attributes:
        title: as the paper's figure is known.
        x: label of the horizontal axis, with its unit.
        y: label of the vertical axis.
        curves: curves and points.
        log_x: logarithmic horizontal axis.
        log_y: logarithmic vertical axis.
        note: one sentence on what to see.
    """

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


def curve(name: str, x: Any, groups: Any, *, style: str = "points", log: bool = False) -> Curve:
    """Means over the last axis of ``groups`` with intervals of two standard errors.

    Args:
        name: in the legend.
        x: places on the horizontal axis.
        groups: for each place the values of its networks or seeds, or one value.
        style: as in ``Curve``.
        log: geometric means and intervals, for a logarithmic axis.
    """
    rows = [np.atleast_1d(np.asarray(group, float)) for group in groups]
    rows = [np.log10(row) for row in rows] if log else rows
    middle = np.array([row.mean() for row in rows])
    half = [2 * row.std(ddof=1) / np.sqrt(len(row)) if len(row) > 1 else np.nan for row in rows]
    ends = np.array([middle, middle - half, middle + half])
    ends = 10**ends if log else ends
    known = bool(np.all(np.isfinite(ends[1:])))
    y, low, high = (tuple(float(v) for v in end) for end in ends)
    plain = tuple(v if isinstance(v, str) else float(v) for v in x)
    return Curve(name, plain, y, low if known else (), high if known else (), style)
