"""Observations, which the rules judge: parts, values over sizes, the lowest point of a grid.

An observation is a dict of plain data or numpy arrays; each rule says which names it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscope.checks import Array

DRAWS = 2000  # of a bootstrap


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
