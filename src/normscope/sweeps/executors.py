"""Where trials run: one contract, and the two executors that need nothing but this machine."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from normscope.errors import NormscopeError
from normscope.sweeps.plan import Settings
from normscope.sweeps.running import Finished, Task, begin_worker

STARTS = 8  # processes in a row that may end before they begin, until the sweep is given up


class Executor(ABC):
    """Runs trials; whatever happens to one of them, it comes back as a ``Finished``."""

    @property
    @abstractmethod
    def free(self) -> int:
        """How many trials can be submitted now."""

    @abstractmethod
    def submit(self, key: str, settings: Settings) -> None:
        """Begin a trial."""

    @abstractmethod
    def finished(self, seconds: float) -> list[Finished]:
        """Trials that have come back; waits so long for the first one."""

    @abstractmethod
    def close(self) -> None:
        """End all trials under way, and leave no process behind."""


class Serial(Executor):
    """In this process, one after the other."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._waiting: deque[tuple[str, Settings]] = deque()

    @property
    def free(self) -> int:
        """One, unless a trial waits."""
        return 1 - len(self._waiting)

    def submit(self, key: str, settings: Settings) -> None:
        """Note the trial."""
        self._waiting.append((key, settings))

    def finished(self, seconds: float) -> list[Finished]:
        """Run the trial that waits."""
        return [self._task(*self._waiting.popleft())] if self._waiting else []

    def close(self) -> None:
        """Nothing is left."""
        self._waiting.clear()


class Processes(Executor):
    """In child processes of this machine, each with a pool of its own.

    A pool shares its pipes and their locks among its workers: one that is killed while it holds a
    lock, or in the middle of a message, can block all others. With one worker per pool it can harm
    only itself, and after a death the pool is thrown away.
    """

    def __init__(self, task: Task, workers: int) -> None:
        self._task = task.portable()
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Slot | None] = [None] * workers
        self._running: dict[concurrent.futures.Future[Finished], tuple[str, _Slot]] = {}
        self._stillborn = 0

    @property
    def free(self) -> int:
        """Workers without a trial."""
        return len(self._idle)

    def submit(self, key: str, settings: Settings) -> None:
        """Give the trial to a worker; one that was killed while it waited is replaced."""
        slot = self._idle.pop()
        try:
            future = slot.pool.schedule(self._task, args=[key, settings]) if slot else None
        except RuntimeError:
            future = None
        if slot is None or future is None:
            _discard(slot)
            slot = _Slot(self._context)
            future = slot.pool.schedule(self._task, args=[key, settings])
        self._running[future] = key, slot

    def finished(self, seconds: float) -> list[Finished]:
        """What came back; the worker of a trial that did not is replaced."""
        if not self._running:
            time.sleep(seconds)
        first = concurrent.futures.FIRST_COMPLETED
        done, _ = concurrent.futures.wait(list(self._running), seconds, first)
        return [self._outcome(future) for future in done]

    def close(self) -> None:
        """End all workers."""
        slots = [*self._idle, *(slot for _, slot in self._running.values())]
        for slot in slots:
            _discard(slot)
        self._idle, self._running = [], {}

    def _outcome(self, future: concurrent.futures.Future[Finished]) -> Finished:
        from pebble import ProcessExpired

        key, slot = self._running.pop(future)
        try:
            outcome = future.result()
        except (ProcessExpired, BrokenProcessPool) as error:
            _discard(slot)
            self._idle.append(None)
            begun = bool(slot.begun.value)
            self._stillborn = 0 if begun else self._stillborn + 1
            if self._stillborn >= STARTS:
                raise NormscopeError(
                    "Worker processes end before they begin; their own messages are above. A "
                    "script that sweeps needs `if __name__ == '__main__':` around the call, and "
                    "the function must be one that another process can import."
                ) from error
            return Finished(key, died=_end(getattr(error, "exitcode", None)), begun=begun)
        except Exception as error:  # such as a result that cannot be sent
            outcome = Finished(key, error=f"{type(error).__name__}: {error}")
        self._idle.append(slot)
        return outcome


class _Slot:
    """A pool of one worker, and whether it ever began."""

    def __init__(self, context: Any) -> None:
        from pebble import ProcessPool

        self.begun = context.RawValue("b", 0)
        self.pool: Any = ProcessPool(1, 0, begin_worker, (self.begun,), context)


def _discard(slot: _Slot | None) -> None:
    if slot is not None:
        slot.pool.stop()
        slot.pool.join()


def _end(code: int | None) -> str:
    if code is None:
        return "its process ended"
    return f"its process was killed by signal {-code}" if code < 0 else f"it ended with code {code}"


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
