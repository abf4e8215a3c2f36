"""Panels of the runs of a sweep: a curve or a bar for each arm, with intervals over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscope.results.panel import Curve, Panel, curve
from normscope.sweeps.table import Arm, Table, Value, by_seed


def arm_curves(
    table: Table, value: Value, arms: Mapping[str, Arm], x: Sequence[Any] | None = None, *,
    log: bool = False, style: str = "points",
) -> tuple[Curve, ...]:  # fmt: skip
    """A curve for each arm: the mean over its seeds with intervals of two standard errors.

    Args:
        table: all runs.
        value: name or function of what is drawn: a list for each run.
        arms: settings of the arms, by their name in the legend.
        x: places on the horizontal axis; 0, 1, 2, ... by default.
        log: geometric means, for a logarithmic axis.
        style: as in ``Curve``.
    """
    made = []
    for name, arm in arms.items():
        rows = np.asarray([*by_seed(table, value, arm).values()], float).T
        made.append(curve(name, range(len(rows)) if x is None else x, rows, log=log, style=style))
    return tuple(made)


def training_panel(
    table: Table, title: str, arms: Mapping[str, Arm], value: Value = "losses", *,
    x: str = "update", y: str = "cross-entropy of the mini-batch", places: Any = None,
    log: bool = False, note: str = "",
) -> Panel:  # fmt: skip
    """A number over training, a curve for each arm; the training loss if nothing else is said."""
    curves = arm_curves(table, value, arms, places, log=log)
    return Panel(title, x, y, curves, log_y=log, note=note)


def arm_bars(
    table: Table, title: str, arms: Mapping[str, Arm], value: Value, y: str, *, x: str = "network",
    printed: Mapping[str, float] | None = None, log: bool = False, note: str = "",
) -> Panel:  # fmt: skip
    """One number for each arm with its interval, beside what the paper prints."""
    groups = [[*by_seed(table, value, arm).values()] for arm in arms.values()]
    curves = [curve("measured", [*arms], groups, log=log)]
    if printed:
        curves.append(curve("paper", [*printed], [*printed.values()], style="dashed"))
    return Panel(title, x, y, tuple(curves), log_y=log, note=note)
