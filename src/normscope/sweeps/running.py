"""One trial in whatever process it runs: what goes in, and what comes back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.errors import InputError, NormscopeError
from normscope.messages import kind_of
from normscope.record import Record
from normscope.sweeps.plan import OWN, Settings, Trial
from normscope.sweeps.store import FULL

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, eq=False)
class Values(Record):
    """What a function returned as a dict."""

    values: dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """What came back from one attempt at a trial.

    Attributes:
        key: name of the trial.
        record: as JSON, if it was done.
        error: traceback, if it failed.
        died: how its process ended, if it did not come back.
        begun: whether its process had begun; if not, the trial is not to blame.
        full: a disk was full or read-only: a fault of the machine, not of the trial.
        about: time, host and versions.
    """

    key: str
    record: str | None = None
    error: str | None = None
    died: str | None = None
    begun: bool = True
    full: bool = False
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What a worker needs to run any trial of a sweep.

    Attributes:
        function: itself, or pickled.
        checkpoints: folder for the states of trials, where the worker sees it; None for no states.
        threads: threads of a trial.
    """

    function: Callable[..., Any] | bytes
    checkpoints: str | None = None
    threads: int = 1

    @classmethod
    def of(cls, trial: Trial, checkpoints: Path, threads: int = 1) -> Task:
        """The task of a trial."""
        folder = str(checkpoints.resolve()) if trial.takes_checkpoint else None
        return cls(trial.function, folder, threads)

    def portable(self, dumps: Callable[[Any], bytes] = pickle.dumps) -> Task:
        """The same for other processes: what they cannot import fails as a trial does."""
        file = getattr(sys.modules["__main__"], "__file__", None)
        typed = getattr(self.function, "__module__", "") == "__main__" and not (
            file and os.path.isfile(file)
        )
        try:
            if typed and dumps is pickle.dumps:  # Ray sends the function itself
                raise pickle.PicklingError("it was defined in an interactive session")
            return dataclasses.replace(self, function=dumps(self.function))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"The function cannot be given to another process ({error}). Define it at the top "
                "level of a module, or pass workers=1."
            ) from None

    def __call__(self, key: str, settings: Settings) -> Finished:
        """Run one trial; whatever it raises is told."""
        began, used = time.monotonic(), time.process_time()
        record = error = None
        full = False
        try:
            with limited_threads(self.threads), no_terminal():
                function = self.function
                if isinstance(function, bytes):
                    function = pickle.loads(function)
                    began = time.monotonic()  # the imports of a new process are no part of a trial
                record = _as_json(function(**settings, **self._state(key)))
        except (Exception, SystemExit) as failure:
            error = traceback.format_exc()
            full = isinstance(failure, OSError) and failure.errno in FULL
        about: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
        about |= {"seconds": round(time.monotonic() - began, 4), "time": round(time.time(), 3)}
        about["cpu_seconds"] = round(time.process_time() - used, 4)
        about["versions"] = versions()
        return Finished(key, record, error, full=full, about=about)

    def _state(self, key: str) -> dict[str, Any]:
        if self.checkpoints is None:
            return {}
        folder = Path(self.checkpoints)
        return {OWN: folder / key if folder.is_dir() else None}


def versions() -> dict[str, str]:
    """What results may depend on."""
    found = {"normscope": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "numpy"):
        if name in sys.modules:
            found[name] = str(sys.modules[name].__version__)
    return found


@contextlib.contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """A span in which torch and numpy compute with so many threads: sums depend on their number."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(count)))  # for libraries that are loaded later
    torch: Any = sys.modules.get("torch")
    used = torch.get_num_threads() if torch else count
    try:
        with _libraries().limit(limits=count):
            if used != count:
                torch.set_num_threads(count)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if used != count:
            torch.set_num_threads(used)


@cache
def _libraries() -> Any:
    """The libraries of this process that compute with threads, such as numpy's BLAS."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def no_terminal() -> Iterator[None]:
    """A span without progress bars of the trials: there may be many of them at a time."""
    with (
        contextlib.redirect_stdout(_Plain(sys.stdout)),
        contextlib.redirect_stderr(_Plain(sys.stderr)),
    ):
        yield


class _Plain:
    """A stream that is no terminal."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def begin_worker(ready: Any) -> None:
    """What a child process does first: say that it runs, and end as soon as its driver has."""
    ready.value = 1
    os.environ.update(dict.fromkeys(THREADS, "1"))
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _as_json(result: Any) -> str:
    if isinstance(result, dict):
        result = Values(result)
    if not isinstance(result, Record):
        raise NormscopeError(
            f"A trial returns a Record or a dict of plain values. Got {kind_of(result)}."
        )
    data = result.to_dict()
    return json.dumps(data["values"] if isinstance(result, Values) else data, allow_nan=False)
