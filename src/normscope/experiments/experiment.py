"""An experiment: one run that many claims read, at three scales."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.results.ledger import PAPERS
from normscope.results.panel import Panel
from normscope.sweeps import Plan, Table, Trial
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

    A module of the folder of a paper is one if it has a ``TITLE``; its id is made of the names of
    folder and module.
    """
    found: dict[str, Experiment] = {}
    for paper in PAPERS:
        package = importlib.import_module(f"normscope.experiments.{paper}")
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            if one := experiment_of(vars(module)):
                name = f"{paper}/{info.name.replace('_', '-')}"
                found[name] = replace(one, id=name)
    return found


def experiment_of(module: Mapping[str, Any]) -> Experiment | None:
    """The experiment that a module defines by its names; None for a module that is none.

    They are ``TITLE``, ``trial``, the scales ``SMOKE``, ``DESK`` and ``PAPER`` (``DESK = PAPER =``
    for one whose desk scale is the authors' own), and where there is something to say ``observe``,
    ``panels``, ``HOURS`` and ``VERSION``. A module of a family has an ``EXPERIMENT`` made for it.
    """
    if "TITLE" not in module:
        return module.get("EXPERIMENT")
    scales = {name: module[name.upper()] for name in SCALES if name.upper() in module}
    own = scales.get("paper") is scales.get("desk")
    if own:
        del scales["paper"]
    names = ("observe", "panels", "HOURS", "VERSION")
    more = {name.lower(): module[name] for name in names if name in module}
    return Experiment(module["TITLE"], module["trial"], scales, own_scale=own, **more)
