"""What a sweep runs: a function, its settings, and a lasting name for each trial."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.messages import kind_of
from normscope.registry import near_match

FORMAT = 1  # of the files of a store
OWN = "checkpoint"  # the argument that the engine gives, to functions that have it
Settings = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """A pure function of plain settings that returns a ``Record`` or a dict of plain values.

    Attributes:
        function: called with the settings of a trial as keywords. If it has an argument
            ``checkpoint`` it is given a file for its own state there, or None.
        version: to be changed when the function computes something else; other trials follow.
        fingerprint: what a machine must have in common with the driver's to run trials, beside
            versions: a function of the settings of one trial that returns a dict.
    """

    function: Callable[..., Any]
    version: int | str = 1
    fingerprint: Callable[[Settings], dict[str, Any]] | None = None

    @property
    def name(self) -> str:
        """Module and name of the function; the name of the file for that of a script."""
        module = self.function.__module__
        if module == "__main__":
            module = Path(getattr(sys.modules["__main__"], "__file__", "") or "main").stem
        return f"{module}:{self.function.__qualname__}"

    @property
    def source(self) -> str:
        """A checksum of the text of the function; empty if there is no text."""
        try:
            return digest(inspect.getsource(self.function))
        except (OSError, TypeError):
            return ""

    @property
    def takes_checkpoint(self) -> bool:
        """Whether the function keeps its state in a file."""
        return OWN in inspect.signature(self.function).parameters

    def check(self, settings: Settings) -> None:
        """Refuse settings that the function does not know, or lacks."""
        parameters = inspect.signature(self.function).parameters.values()
        known = [p.name for p in parameters if p.name != OWN and p.kind not in (_VARS, _WORDS)]
        for name in settings:
            if name == OWN or (name not in known and not any(p.kind is _WORDS for p in parameters)):
                raise InputError(f"{self.name} has no setting {name!r}. {near_match(name, known)}")
        needed = [p.name for p in parameters if p.default is p.empty and p.name in known]
        missing = [name for name in needed if name not in settings]
        if missing:
            raise InputError(f"{self.name} needs the setting {missing[0]!r}. Give it a value.")


_VARS, _WORDS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD


def as_trial(function: Callable[..., Any] | Trial, version: int | str | None = None) -> Trial:
    """A function as a trial; one without a name is refused."""
    trial = function if isinstance(function, Trial) else Trial(function, version or 1)
    if not callable(trial.function) or not hasattr(trial.function, "__qualname__"):
        raise InputError(f"sweep runs a function. Got {kind_of(trial.function)}.")
    if "<lambda>" in trial.function.__qualname__:
        raise InputError("A trial is known by the name of its function. Got a lambda: use def.")
    return trial


@dataclass(frozen=True, eq=False)
class Plan:
    """All trials of a sweep.

    Attributes:
        function: name of the function.
        version: version of the function.
        source: checksum of its text, to warn of a change.
        rows: the settings of each trial, in the order given.
    """

    function: str
    version: str
    source: str
    rows: tuple[Settings, ...]
    made_by: str = field(default=__version__)

    @cached_property
    def trials(self) -> dict[str, Settings]:
        """Settings by key, in the order in which trials are run: fixed, and as if shuffled."""
        keyed = sorted((self.key_of(row), place) for place, row in enumerate(self.rows))
        return {key: self.rows[place] for key, place in keyed}

    @cached_property
    def keys(self) -> list[str]:
        """The key of each row, in the order given."""
        return [self.key_of(row) for row in self.rows]

    def key_of(self, settings: Settings) -> str:
        """The name of one trial: equal settings, equal function, equal name."""
        return digest(f"{self.function}@{self.version}:{canonical(settings)}")

    @cached_property
    def identity(self) -> str:
        """The name of the whole plan."""
        return digest("\n".join(self.trials))

    def shard(self, number: int, count: int) -> list[str]:
        """Every ``count``-th key of the whole plan, from ``number`` (from 1) on."""
        return list(self.trials)[number - 1 :: count]

    @property
    def varying(self) -> list[str]:
        """The settings that differ between trials."""
        names = dict.fromkeys(name for row in self.rows for name in row)
        first = self.rows[0]
        return [n for n in names if any(n not in r or _differ(r[n], first[n]) for r in self.rows)]

    def to_json(self) -> str:
        """The text of plan.json; what all trials share stands there once."""
        varying = self.varying
        common = {name: value for name, value in self.rows[0].items() if name not in varying}
        head = {"format": FORMAT, "normscope": self.made_by, "function": self.function}
        head |= {"version": self.version, "source": self.source, "identity": self.identity}
        rows = [[name in row, row.get(name)] for row in self.rows for name in varying]
        return json.dumps(head | {"common": common, "varying": varying, "rows": _packed(rows)})

    @classmethod
    def from_json(cls, text: str | bytes, path: Path) -> Plan:
        """The plan in a file; one of another format is refused."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise InputError(
                    f"{path} was made by normscope {data.get('normscope')} in format "
                    f"{data['format']}. This one ({__version__}) reads format {FORMAT}: use the "
                    "version that made it, or another folder."
                )
            rows = _unpacked(data["rows"], data["varying"], data["common"])
            head = {name: data[name] for name in ("function", "version", "source")}
            plan = cls(**head, rows=tuple(rows), made_by=data["normscope"])
            whole = plan.identity == data["identity"]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} is no plan of a sweep ({kind_of(error)}: {error}). Name another folder."
            ) from None
        if not whole:
            raise InputError(f"{path} is damaged: its trials do not give its checksum.")
        return plan

    def difference(self, other: Plan) -> str:
        """What distinguishes ``other`` from this plan, in words; empty if nothing does."""
        if self.identity == other.identity:
            return ""
        for name in ("function", "version"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} {getattr(self, name)} there, {getattr(other, name)} here"
        for name in dict.fromkeys([*self.rows[0], *other.rows[0]]):
            there, here = (_values(plan.rows, name) for plan in (self, other))
            if there != here:
                return f"{name}: {_shown(there)} there, {_shown(here)} here"
        return f"{len(self.rows)} trials there, {len(other.rows)} here"


def make_plan(
    trial: Trial,
    settings: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    seeds: int | Iterable[int] | None = None,
) -> Plan:
    """The plan of a function over a grid or a list of settings."""
    rows = grid(settings, seeds)
    for row in rows if not isinstance(settings, Mapping) else rows[:1]:
        trial.check(row)
    plan = Plan(trial.name, str(trial.version), trial.source, tuple(rows))
    if len(plan.trials) < len(rows):
        seen: set[str] = set()
        twice = next(row for key, row in zip(plan.keys, rows, strict=True) if _again(key, seen))
        raise InputError(f"Two trials have the same settings: {twice}. Remove the duplicate.")
    return plan


def grid(
    settings: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    seeds: int | Iterable[int] | None = None,
) -> list[Settings]:
    """Every combination of the values given as lists, or the settings themselves if listed.

    Example:
        >>> grid({"lr": [0.1, 1.0], "width": 8}, seeds=2)[-1]
        {'lr': 1.0, 'width': 8, 'seed': 1}
    """
    if isinstance(settings, Mapping):
        axes = {str(name): _axis(name, value) for name, value in settings.items()}
        rows = [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
    else:
        listed: list[Any] = list(settings) if _is_several(settings) else [settings]
        for row in listed:
            if not isinstance(row, Mapping):
                raise InputError(f"settings are a dict, or a list of dicts. Got {kind_of(row)}.")
        rows = [{str(k): _plain(k, v) for k, v in row.items()} for row in listed]
    if seeds is not None:
        numbers: Iterable[int] = (
            [checked_count(seed, "each of seeds", least=0) for seed in seeds]
            if not isinstance(seeds, int) and _is_several(seeds)
            else range(checked_count(seeds, "seeds"))
        )
        if any("seed" in row for row in rows):
            raise InputError("seed is given both as a setting and by seeds=. Give one of them.")
        rows = [row | {"seed": seed} for row in rows for seed in numbers]
    if not rows:
        raise InputError("A sweep needs at least one trial. Got a grid without points.")
    return rows


def canonical(settings: Settings) -> str:
    """One text for equal settings, whatever their order."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """A short checksum; two of a million trials share one with a chance below 1e-12."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _is_several(value: Any) -> bool:
    return not isinstance(value, str | Mapping) and hasattr(value, "__iter__")


def _axis(name: str, value: Any) -> list[Any]:
    values = [_plain(name, item) for item in (value if _is_several(value) else [value])]
    if not values:
        raise InputError(f"{name} has no value, so that there is no trial. Give at least one.")
    return values


def _plain(name: str, value: Any) -> Any:
    """A value that JSON gives back as it was."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"The setting {name} must be finite. Got {value!r}.")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    raise InputError(
        f"Settings are numbers, words, None or lists of these, so that they can be stored. Got "
        f"{kind_of(value)} for {name!r}."
    )


def _differ(one: Any, other: Any) -> bool:
    """1, 1.0 and True differ, and so do 0.0 and -0.0: the function may tell them apart."""
    return one is not other and repr(one) != repr(other)


def _again(key: str, seen: set[str]) -> bool:
    known = key in seen
    seen.add(key)
    return known


def _packed(cells: list[list[Any]]) -> list[Any]:
    """Values as they are, those that are missing in a row as an empty object."""
    return [value if there else {} for there, value in cells]


def _unpacked(cells: list[Any], names: list[str], common: Settings) -> list[Settings]:
    if not names:
        return [dict(common)]
    rows = (cells[i : i + len(names)] for i in range(0, len(cells), len(names)))
    return [
        common | {n: v for n, v in zip(names, row, strict=True) if not isinstance(v, dict)}
        for row in rows
    ]


def _values(rows: Sequence[Settings], name: str) -> list[Any]:
    return list(dict.fromkeys(json.dumps(row[name]) for row in rows if name in row))


def _shown(values: list[Any]) -> str:
    if not values:
        return "not set"
    return values[0] if len(values) == 1 else f"{len(values)} values, {values[0]} ... {values[-1]}"
