"""A panel of a figure: what was measured and what theory says, as data of a chart."""

from __future__ import annotations

from dataclasses import dataclass

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
