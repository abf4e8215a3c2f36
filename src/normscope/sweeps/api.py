"""A sweep as a user calls it, and what it gives."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from normscope.checks import checked_count, checked_number, checked_target
from normscope.errors import InputError
from normscope.files import write_atomically
from normscope.record import Record
from normscope.registry import check_choice
from normscope.results.base import DataFrame, framed
from normscope.sweeps.driver import Driver
from normscope.sweeps.executors import Executor, Processes, Serial, usable_cores
from normscope.sweeps.live import Live, duration
from normscope.sweeps.locks import checked_shard, drivers, driving, shard_name
from normscope.sweeps.plan import Plan, Settings, Trial, as_trial, make_plan
from normscope.sweeps.running import Task
from normscope.sweeps.store import Journal, Store, Union

EXECUTORS = ("processes", "serial", "ray")
SHOWN = 5  # lines of each kind of trouble in a summary


def sweep(
    function: Callable[..., Any] | Trial,
    settings: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    output: str | os.PathLike[str],
    seeds: int | Iterable[int] | None = None,
    version: int | str = 1,
    executor: str = "processes",
    workers: int | None = None,
    shard: str | tuple[int, int] | None = None,
    retry_failed: bool = False,
    fail_fast: bool = False,
    max_failures: int | None = None,
    lock: bool = True,
    address: str = "local",
    cpus_per_trial: float = 1,
    gpus_per_trial: float = 0,
) -> Sweep:
    """Run ``function`` with every combination of settings; a folder keeps what is finished.

    The same call made again runs only what is missing, whatever ended the first one. A trial is
    known by its settings and by name and ``version`` of the function. A trial that raises is
    recorded as failed, with its traceback, and the sweep goes on.

    Args:
        function: at the top level of a module; called with the settings as keywords, and returns a
            ``Record`` or a dict of plain values. It must depend on its settings alone. If it has
            an argument ``checkpoint`` it gets a file to keep its state in, or None.
        settings: a dict, in which a list is an axis of the grid, or a list of dicts.
        output: folder of the sweep. It may hold this sweep only.
        seeds: the setting ``seed``: 0 to one less than this number, or these.
        version: version of the function; another version makes other trials.
        executor: ``"processes"`` on this machine, ``"serial"`` in this process, or ``"ray"``.
        workers: number of processes, each with one thread; by default one for each core.
            1 is ``"serial"``.
        shard: ``"i/n"`` runs only every n-th trial, for n drivers on one folder.
        retry_failed: run failed trials again.
        fail_fast: stop at the first failed trial.
        max_failures: stop after so many.
        lock: refuse a second driver of the same trials.
        address: where the Ray cluster is: ``"auto"``, ``"host:port"``, or ``"local"`` for one on
            this machine.
        cpus_per_trial: cores that Ray reserves for a trial; also its number of threads.
        gpus_per_trial: GPUs that Ray reserves for a trial; fractions are allowed.

    Returns:
        All that is in the folder, also from earlier calls.

    Example:
        >>> import tempfile
        >>> def area(width, height):
        ...     return {"area": width * height}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = sweep(area, {"width": [1, 2], "height": 3}, output=folder, workers=1)
        ...     found.to_frame()["area"].tolist()
        [3, 6]
    """
    check_choice("executor", executor, EXECUTORS)
    trial, part = as_trial(function, version), checked_shard(shard)
    plan, store = make_plan(trial, settings, seeds), Store(output)
    count = usable_cores() if workers is None else checked_count(workers, "workers")
    most = 1 if fail_fast else max_failures
    if most is not None:
        checked_count(most, "max_failures")
    for name, amount in (("cpus_per_trial", cpus_per_trial), ("gpus_per_trial", gpus_per_trial)):
        if checked_number(amount, name) < 0:
            raise InputError(f"{name} must be a number from 0. Got {amount!r}.")
    if warning := store.prepare(plan):
        warnings.warn(warning, stacklevel=2)
    with driving(store, part, lock=lock):
        found = store.union(plan)
        mine = list(plan.trials) if part is None else plan.shard(*part)
        ended = found.done if retry_failed else found.done | found.failed
        missing = [key for key in mine if key not in ended]
        if missing:
            threads = max(1, int(cpus_per_trial)) if executor == "ray" else 1
            task = Task.of(trial, store.checkpoints, threads)
            journal = Journal(store, shard_name(part))
            runner: Executor | None = None
            try:
                if executor == "ray":
                    from normscope.sweeps.cluster import Ray

                    runner = Ray(
                        task, address, workers if address == "local" else None,
                        (cpus_per_trial, gpus_per_trial), trial, plan.rows[0],
                    )  # fmt: skip
                elif executor == "serial" or count == 1:
                    runner = Serial(task)
                else:
                    runner = Processes(task, min(count, len(missing)))
                with Live(len(mine), len(mine) - len(missing)) as live:
                    Driver(plan, store, journal, live).run(missing, runner, max_failures=most)
            finally:
                if runner is not None:
                    runner.close()
                journal.close()
    return Sweep(store)


class Sweep:
    """What is in the folder of a sweep; it may still be running."""

    def __init__(self, folder: str | os.PathLike[str] | Store) -> None:
        self.store = folder if isinstance(folder, Store) else Store(folder)
        self.plan: Plan = self.store.plan()

    @cached_property
    def found(self) -> Union:
        """What the journals say."""
        return self.store.union(self.plan)

    @property
    def missing(self) -> int:
        """Trials that are still to run."""
        return len(self.plan.rows) - len(self.found.done) - len(self.found.failed)

    @property
    def complete(self) -> bool:
        """Whether every trial is done."""
        return len(self.found.done) == len(self.plan.rows)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Key, settings, status, record, error and about of every trial, as plain data."""
        return self.store.lines(self.found)

    def records(self) -> dict[str, Record]:
        """The records of finished trials by key; the module that defines them must be imported."""
        lines = ((line["key"], line["record"]) for line in self.lines() if line["record"])
        return {key: Record.from_dict(record) for key, record in lines if "type" in record}

    def errors(self) -> dict[str, str]:
        """Why trials failed, by key."""
        if not self.found.failed:
            return {}
        return {line["key"]: line["error"] for line in self.lines() if line["error"]}

    def to_frame(self) -> DataFrame:
        """One row per trial that has ended, in the order of the plan: settings, numbers, status."""
        rows = {line["key"]: _row(line) for line in self.lines()}
        ordered = [rows[key] for key in self.plan.keys if key in rows]
        names = dict.fromkeys(name for row in ordered for name in row)
        last = [name for name in ("status", "error") if name in names]
        return framed(ordered, columns=[*(n for n in names if n not in last), *last])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """The table as a file, atomically."""
        target = checked_target(os.fspath(path))
        write_atomically(target, self.to_frame().to_csv(index=False, na_rep="nan"))

    def __repr__(self) -> str:
        return f"Sweep({self._head()})"

    def _head(self) -> str:
        found = self.found
        head = f"{len(found.done)} of {len(self.plan.rows)} trials done "
        return (
            head + f"({found.diverged} diverged), {len(found.failed)} failed, {self.missing} to run"
        )

    def summary(self) -> str:
        """How far it is, and what is wrong."""
        found = self.found
        lines = [self._head(), f"{self.plan.function}, version {self.plan.version}"]
        if found.done:
            mean = found.seconds / len(found.done)
            left = f"; what is missing takes {duration(mean * self.missing)} of one worker"
            lines.append(f"{mean:.3g} s a trial" + left * bool(self.missing))
        lines += [
            f"running: {who['shard']}, process {who['pid']} on {who['host']}, since {who['start']}"
            for who in drivers(self.store)
        ]
        return "\n".join([*lines, *self.trouble()])

    def trouble(self) -> list[str]:
        """What a reader should know of the journals, and the first errors."""
        found = self.found
        differ = [f"trial {key}: {a} and {b}" for key, a, b in found.conflicts]
        return [
            *_some("records that differ; the first counts", differ),
            *_some("lines that cannot be read; their trials run again", map(str, found.bad)),
            *([f"{found.foreign} lines of trials that are not in the plan"] * bool(found.foreign)),
            *_some("failed", [_last(error, key) for key, error in self.errors().items()]),
        ]


def _some(what: str, lines: Iterable[str]) -> list[str]:
    listed = list(lines)
    if not listed:
        return []
    more = [f"  and {len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
    return [f"{len(listed)} {what}:", *(f"  {line}" for line in listed[:SHOWN]), *more]


def _last(error: str, key: str) -> str:
    return f"trial {key}: {error.strip().splitlines()[-1]}"


def _row(line: dict[str, Any]) -> Settings:
    error = (line["error"] or "").strip().splitlines()[-1:]
    row = line["settings"]
    made = _flat(line["record"] or {})
    row = row | {f"record.{name}" if name in row else name: value for name, value in made}
    return row | {"status": line["status"], "error": "".join(error)}


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The plain values of a record; arrays and lists are left out."""
    for name, value in record.items():
        if isinstance(value, dict) and "$float" in value:
            yield prefix + name, float(value["$float"])
        elif isinstance(value, dict) and "$array" not in value:
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, dict | list) and not (name == "type" and not prefix):
            yield prefix + name, value
