"""An experiment: one run that many claims read, at three scales."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.experiments.claim import paper_file
from normscope.registry import check_choice
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
    panels: Callable[[Table], Iterable[Panel]] = _no_panels
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
        check_choice(f"scale of {self.id}", scale, self.scales)
        return self.scales[scale]


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments by id, in the order of the papers.

    The file of a paper declares them. The module has the same name, or is a family's.
    """
    found: dict[str, Experiment] = {}
    for paper in PAPERS:
        package = importlib.import_module(f"normscope.experiments.{paper}")
        modules = [info.name for info in pkgutil.iter_modules(package.__path__)]
        declared = paper_file(paper).get("experiment", {})
        own = {name for name in modules if not name.startswith("_")}
        if silent := own - {name.replace("-", "_") for name in declared}:
            raise InputError(
                f"{paper} has no experiment for its module {min(silent)!r}. Declare it in "
                f"claims.toml: [experiment.{min(silent).replace('_', '-')}]"
            )
        for name in sorted(declared):
            given = {"module": name.replace("-", "_"), **declared[name]}
            check_choice(f"module of {paper}/{name}", given["module"], modules)
            module = importlib.import_module(f"{package.__name__}.{given.pop('module')}")
            found[f"{paper}/{name}"] = declared_experiment(f"{paper}/{name}", vars(module), given)
    return found


def declared_experiment(name: str, module: Mapping[str, Any], given: dict[str, Any]) -> Experiment:
    """The experiment of a module: its ``trial``, ``observe`` and ``panels``.

    The file of the paper says the rest: ``title``, ``version`` and ``hours``, a table for each
    scale (``paper = "desk"`` if the desk scale is the authors' own), ``all`` for settings of every
    scale, ``panels`` for arguments of that function.
    """
    common, own = given.pop("all", {}), given.get("paper") == "desk"
    rows = {scale: given.pop(scale) for scale in SCALES if scale in given}
    more = {key: module[key] for key in ("observe", "panels") if key in module}
    if options := given.pop("panels", {}):
        more["panels"] = partial(module["panels"], **options)
    for key in given:
        check_choice(f"key of {name}", key, ("title", "version", "hours"))
    if "title" not in given or not rows:
        raise InputError(f"{name} lacks {'a scale' if 'title' in given else repr('title')}.")
    if lacking := [key for key, row in rows.items() if row != "desk" and "seconds" not in row]:
        raise InputError(f"{name}: its scale {lacking[0]!r} lacks 'seconds', what it costs.")
    scales = {scale: _scale(common | row, module) for scale, row in rows.items() if row != "desk"}
    return Experiment(trial=module["trial"], scales=scales, own_scale=own, id=name, **given, **more)


def _scale(row: dict[str, Any], module: Mapping[str, Any]) -> Scale:
    """A scale as a table of settings, in which lists are axes of a grid.

    ``"@NAME"`` is the constant of the module, ``"@none"`` is None. ``grids`` lists several grids,
    each with settings and perhaps ``seeds`` of its own; ``needs`` names data sets of the user's
    folder.
    """
    seconds, needs, several = row.pop("seconds"), row.pop("needs", ()), row.pop("grids", [{}])
    settings = []
    for one in several:
        axes = {name: _constant(value, module) for name, value in (row | one).items()}
        seeds = axes.pop("seeds", None)
        settings += grid(axes, seeds)
    return Scale(settings, None, seconds, tuple(needs))


def _constant(value: Any, module: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_constant(one, module) for one in value]
    if value == "@none":
        return None
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    names = [name for name in module if name.isupper()]
    check_choice(f"constant of {module['__name__']}", value[1:], names)
    found = module[value[1:]]
    return found if isinstance(found, str) else list(found)
