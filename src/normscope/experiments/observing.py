"""What experiments observe and draw: parts, pairs of runs, values over sizes, panels of arms.

An observation may hold numpy arrays: ``reproduce.outcome`` makes plain data of them once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.experiments.experiment import Experiment, Scale, Table, curve, every_value
from normscope.results.panel import Curve, Panel

__all__ = [
    "Curve", "Experiment", "Panel", "Scale", "Table", "arm_bars", "arm_curves", "by_seed",
    "columns", "curve", "every_value", "exact", "fitted_minimum", "over_sizes", "paired", "parts",
    "slopes", "training_panel",
]  # fmt: skip

DRAWS = 2000  # of a bootstrap
Arm = Mapping[str, Any]
Value = str | Callable[[Mapping[str, Any]], Any]  # a name of the trial's values, or a function


def parts(groups: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """An observation with a part for each group.

    Args:
        groups: by name the values, one for each run, or a whole observation as a dict.
        more: what every part has too, such as ``expected=0.0`` or ``threshold=1.0``.
    """
    named = {k: v if isinstance(v, Mapping) else {"values": v} for k, v in groups.items()}
    return {"parts": {k: {**v, **more} for k, v in named.items()}}


def columns(values: Any, names: Sequence[str], **more: Any) -> dict[str, Any]:
    """An observation with a part for each column of an array (runs, names)."""
    return parts(dict(zip(names, np.asarray(values).T, strict=True)), **more)


def over_sizes(sizes: Sequence[int], groups: Sequence[Any], theory: Any) -> dict[str, Any]:
    """An observation of the rule ``formula``.

    Args:
        sizes: widths, batch sizes or numbers of samples.
        groups: for each size the values of its networks.
        theory: one number, one for each size, or a function of the size.
    """
    expected = [float(theory(n)) for n in sizes] if callable(theory) else theory
    return {"sizes": sizes, "values": [np.asarray(group).tolist() for group in groups],
            "theory": np.broadcast_to(np.asarray(expected, float), len(sizes))}  # fmt: skip


def exact(value: Any, expected: Any, remainder: float | None = None) -> dict[str, Any]:
    """An observation of the rule ``number`` that is not random."""
    made = {"mean": float(value), "se": 0.0, "n": 1, "expected": float(expected)}
    return made if remainder is None else made | {"remainder": remainder}


def paired(table: Table, value: Value, a: Arm, b: Arm, *, log10: bool = False) -> Array:
    """Values of the runs of arm ``a`` less those of arm ``b``, seed by seed.

    Args:
        table: all runs; each arm has one run of a seed.
        value: a name of the trial's values, or a function of them, such as
            ``lambda run: run["test"][-1]``.
        a: settings that the runs of an arm share.
        b: settings of the other arm.
        log10: differences of logarithms.
    """
    first, second = (by_seed(table, value, arm) for arm in (a, b))
    if first.keys() != second.keys():
        raise InputError(
            f"The arms {dict(a)} and {dict(b)} have the seeds {[*first]} and {[*second]}. Only "
            "runs of the same seed can be compared in pairs."
        )
    with np.errstate(divide="ignore", invalid="ignore"):  # a diverged run may be infinite
        left, right = (np.asarray([v[s] for s in first], float) for v in (first, second))
        return np.asarray(np.log10(left) - np.log10(right) if log10 else left - right)


def by_seed(table: Table, value: Value, arm: Arm) -> dict[int, Any]:
    """Values of the runs of an arm, by seed."""
    chosen = table.where(**arm).rows
    get = value if callable(value) else lambda run: run[value]
    found = {settings["seed"]: get(run) for settings, run in chosen}
    if not found or len(found) < len(chosen):
        raise InputError(
            f"{len(chosen)} runs with {len(found)} seeds have the settings {dict(arm)}. An arm has "
            "one run of each seed: name the settings that tell its runs from others."
        )
    return found


def fitted_minimum(
    rates: Any, losses: Any, unit: Any = 1.0, *, ceiling: float = math.inf, remainder: float = 0.0
) -> dict[str, Any]:
    """log2 of the rate with the lowest mean loss, in a unit, as an observation of ``within``.

    It is the lowest point of the parabola in log2 of the rate through the lowest mean and its two
    neighbours. If a run at a neighbour diverges there is no parabola, and the interval reaches from
    one neighbour to the other. At an end of the grid there is no value. The interval is that of a
    bootstrap over the seeds, 2.5 to 97.5 %, which is too narrow for few seeds; a resampled minimum
    at an end of the grid leaves that side open.

    Args:
        rates: growing.
        losses: (rates, seeds); infinite where a run diverged. Then no run at this rate counts.
        unit: one number, or one for each seed; their geometric mean is taken.
        ceiling: no value unless all seeds are below this loss, such as that of a constant answer.
        remainder: added to the interval on both sides: how well the unit is known.
    """
    place, table = np.log2(np.asarray(rates, float)), np.asarray(losses, float)
    n, stable = table.shape[1], np.isfinite(table).all(1)
    even = np.full((1, n), 1 / n)
    drawn = np.random.default_rng(0).multinomial(n, even[0], DRAWS) / n
    weights = np.concatenate([even, drawn]).T
    means = np.where(stable[:, None], np.where(stable[:, None], table, 0.0) @ weights, np.inf)
    shift = np.log2(np.broadcast_to(np.asarray(unit, float), n)) @ weights
    low, middle, high = np.array([_lowest(place, mean) for mean in means.T]).T - shift
    tail = DRAWS // 40
    ends = [np.sort(low[1:])[tail] - remainder, np.sort(high[1:])[-1 - tail] + remainder]
    value, why = middle[0], ""
    if not np.isfinite(value):
        why = "the lowest loss is at an end of the grid" if np.isfinite(shift[0]) else "no unit"
    elif table[np.argmin(means[:, 0])].max() >= ceiling:
        value, why = math.nan, f"the lowest loss is not below {ceiling:.3g} in every run"
    return {"value": float(value), "interval": ends, "n": n, "why": why}


def _lowest(x: Array, y: Array) -> tuple[float, float, float]:
    """The place of the minimum between two others; an end of the grid is open on one side."""
    k = int(np.argmin(y))
    if k in (0, len(x) - 1):
        return (x[k - 1], math.nan, math.inf) if k else (-math.inf, math.nan, x[min(1, len(x) - 1)])
    if not np.isfinite(y[k - 1] + y[k + 1]):
        return x[k - 1], x[k], x[k + 1]
    first, second = np.diff(y[k - 1 : k + 2]) / np.diff(x[k - 1 : k + 2])
    bend = (second - first) / (x[k + 1] - x[k - 1])
    vertex = (x[k - 1] + x[k]) / 2 - first / (2 * bend)
    return vertex, vertex, vertex


def slopes(x: Sequence[float] | Array, rows: Any) -> Array:
    """Slope of a straight line through each row of values at the places x."""
    return np.asarray(np.polyfit(np.asarray(x, float), np.asarray(rows, float).T, 1)[0])


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
