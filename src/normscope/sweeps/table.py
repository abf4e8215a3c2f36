"""The finished trials of a sweep by their settings, and pairs of runs with the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.record import plain_values
from normscope.sweeps.api import Sweep

Arm = Mapping[str, Any]
Value = str | Callable[[Mapping[str, Any]], Any]  # a name of the trial's values, or a function


class Table:
    """The finished trials of a sweep: settings and values, in the order of the plan."""

    def __init__(self, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        self.rows = list(rows)

    @classmethod
    def of(cls, found: Sweep) -> Table:
        """The table of a sweep."""
        lines = {line["key"]: line for line in found.lines() if line["record"] is not None}
        keyed = (lines[key] for key in found.plan.keys if key in lines)
        return cls([(line["settings"], plain_values(line["record"])) for line in keyed])

    def __iter__(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **settings: Any) -> Table:
        """The rows with these settings."""
        return Table([r for r in self.rows if all(r[0].get(k) == v for k, v in settings.items())])

    def __call__(self, name: str, **settings: Any) -> Array:
        """The values of one name, a row for each trial with these settings."""
        chosen = self.where(**settings)
        if not chosen.rows:
            raise InputError(f"No trial has the settings {settings}.")
        return np.asarray([values[name] for _, values in chosen.rows])

    def values_of(self, setting: str) -> list[Any]:
        """The different values of a setting, in their order."""
        return list(dict.fromkeys(row[0][setting] for row in self.rows if setting in row[0]))

    @property
    def names(self) -> list[str]:
        """The names that every trial returned."""
        return list(self.rows[0][1])


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
