"""The loop that gives out trials and writes down what comes back."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from normscope.errors import NormscopeError
from normscope.sweeps.executors import Executor
from normscope.sweeps.live import Live
from normscope.sweeps.plan import Plan
from normscope.sweeps.running import Finished
from normscope.sweeps.store import Journal, Store, StoreError, line_of

DEATHS = 3  # of the process of a trial, until the trial is recorded as failed
WAIT = 0.5  # seconds between two looks at how it is getting on


class FailedTrialsError(NormscopeError):
    """Trials failed, and the caller asked to stop then; all results are saved."""


class Driver:
    """Runs the trials that are missing, and is the only writer of its journal."""

    def __init__(self, plan: Plan, store: Store, journal: Journal, live: Live) -> None:
        self._plan, self._store, self._journal, self._live = plan, store, journal, live
        self._deaths: Counter[str] = Counter()
        self._waiting: deque[str] = deque()

    def run(self, keys: Iterable[str], executor: Executor, *, max_failures: int | None) -> None:
        """Run all of them; an executor that loses a trial gets it again."""
        self._waiting.extend(keys)
        under_way = 0
        while self._waiting or under_way:
            while self._waiting and executor.free > 0:
                key = self._waiting.popleft()
                executor.submit(key, self._plan.trials[key])
                under_way += 1
            came = executor.finished(WAIT)
            under_way -= len(came)
            self._take(came)
            if max_failures is not None and self._live.failed >= max_failures:
                raise FailedTrialsError(
                    f"{self._live.failed} trials failed, so that the sweep stops here. `normscope "
                    f"sweep status {self._store.folder}` shows why; all results are saved."
                )

    def _take(self, came: list[Finished]) -> None:
        """Write down what came back, all of it with one wait for the disk."""
        ended = [done for done in map(self._judged, came) if done is not None]
        if written := [done for done in ended if not done.full]:
            self._journal.write([self._line(done) for done in written])
        for done in written:
            diverged = done.record is not None and bool(json.loads(done.record).get("diverged"))
            self._live.add(failed=done.error is not None, diverged=diverged)
            with contextlib.suppress(OSError):
                (self._store.checkpoints / done.key).unlink(missing_ok=True)
        for done in ended:
            if done.full:
                raise StoreError(
                    f"A trial could not write its checkpoint:\n{done.error}\nAll finished trials "
                    "are saved. Make room, then run the same command again."
                )

    def _judged(self, done: Finished) -> Finished | None:
        """What is to be written; None for a trial that is tried again."""
        if done.died is None:
            return done
        self._deaths[done.key] += done.begun
        if self._deaths[done.key] < DEATHS:
            self._waiting.append(done.key)
            return None
        error = f"The process of this trial died {DEATHS} times: {done.died}."
        return Finished(done.key, error=error, about={"seconds": 0.0})

    def _line(self, done: Finished) -> str:
        about: dict[str, Any] = done.about | {"deaths": self._deaths[done.key]}
        return line_of(done.key, self._plan.trials[done.key], done.record, done.error, about)
