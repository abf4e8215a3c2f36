"""An experiment: one run that many claims read, at three scales."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError
from normscope.record import plain_values
from normscope.registry import near_match
from normscope.results.ledger import PAPERS
from normscope.results.panel import Curve, Panel
from normscope.sweeps import Plan, Sweep, Trial
from normscope.sweeps.plan import grid, make_plan

SCALES = ("smoke", "desk", "paper")
Grid = Mapping[str, Any] | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Scale:
    """What an experiment runs at one scale.

    Attributes:
        settings: what its trials run with: a dict in which lists are axes of a grid, or a list.
        seeds: number of seeds, or the seeds; None for a trial that takes no seed.
        seconds: CPU-seconds of the whole run on one core, as measured.
        data: data sets that it reads from the user's folder.
    """

    settings: Grid = field(default_factory=dict)
    seeds: int | Sequence[int] | None = None
    seconds: float = 1.0
    data: tuple[str, ...] = ()


class Table:
    """The finished trials of an experiment: settings and values, in the order of the plan."""

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


def every_value(table: Table) -> dict[str, Any]:
    """Each name a trial returned as an observation with one value for each trial.

    A value that is a dict is an observation already; of several trials the lists are joined.
    """
    made: dict[str, Any] = {}
    for name in table.names:
        values = [row[1][name] for row in table.rows]
        made[name] = _joined(values) if isinstance(values[0], dict) else {"values": values}
    return made


def _joined(values: list[dict[str, Any]]) -> dict[str, Any]:
    if len(values) == 1:
        return values[0]
    if "parts" in values[0]:
        return {"parts": {k: _joined([v["parts"][k] for v in values]) for k in values[0]["parts"]}}
    kinds = ("error", "values", "holds", "intervals")
    joined = {k: [x for v in values for x in np.atleast_1d(v[k]).tolist()]
              if k != "intervals" else [x for v in values for x in v[k]]
              for k in values[0] if k in kinds}  # fmt: skip
    return values[0] | joined


def _no_panels(table: Table) -> list[Panel]:
    return []


@dataclass(frozen=True)
class Experiment:
    """One run that many claims read.

    Attributes:
        title: what it does, in a line.
        trial: a pure function of plain settings, which returns a dict of plain values: numbers,
            lists, numpy arrays, dicts of these. Runs in a process of its own.
        scales: what it runs at ``"smoke"`` (seconds, embedded or generated data), ``"desk"``
            (minutes) and ``"paper"`` (the authors' own). Without ``"desk"`` its claims are blocked
            by scale. Leave ``"paper"`` out where ``own_scale`` is true.
        observe: from the table of all trials to observations by name, as plain data (see rules).
        panels: charts like the paper's.
        own_scale: whether the desk scale is the authors' own.
        hours: GPU-hours of the paper scale, if no desk can run it.
        version: to be changed when the trial computes something else.
    """

    title: str
    trial: Callable[..., dict[str, Any]]
    scales: Mapping[str, Scale]
    observe: Callable[[Table], Mapping[str, Any]] = every_value
    panels: Callable[[Table], Sequence[Panel]] = _no_panels
    own_scale: bool = False
    hours: float | None = None
    version: int = 1
    id: str = ""

    def plan(self, scale: str) -> Plan:
        """The trials at a scale."""
        chosen = self.at(scale)
        return make_plan(Trial(self.trial, self.version), grid(chosen.settings, chosen.seeds))

    def at(self, scale: str) -> Scale:
        """Settings and cost at a scale; the paper's own may be those of the desk."""
        if scale == "paper" and self.own_scale and "paper" not in self.scales:
            scale = "desk"
        if scale not in self.scales:
            raise InputError(
                f"{self.id} has no scale {scale!r}. {near_match(scale, [*self.scales])}"
            )
        return self.scales[scale]


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by id, in the order of the papers.

    A module of the folder of a paper that defines ``EXPERIMENT`` is one; its id is made of the
    names of folder and module.
    """
    found: dict[str, Experiment] = {}
    for paper in PAPERS:
        package = importlib.import_module(f"normscope.experiments.{paper}")
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            if hasattr(module, "EXPERIMENT"):
                name = f"{paper}/{info.name.replace('_', '-')}"
                object.__setattr__(module.EXPERIMENT, "id", name)
                found[name] = module.EXPERIMENT
    return found


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
