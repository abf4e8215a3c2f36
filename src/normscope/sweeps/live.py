"""How a sweep is getting on, while it runs."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

EVERY = 30.0  # seconds between two lines where there is no terminal


class Live:
    """A bar on a terminal, else a line now and then; on standard error."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.began_with = total, done, done
        self.failed = self.diverged = self.deaths = 0
        self._began = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Live:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, TextColumn

            text = TextColumn("{task.description}")
            columns = Progress.get_default_columns()[1:3]
            self._bar = Progress(text, *columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self.line(), total=self.total, completed=self.done)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, *, failed: bool, diverged: bool) -> None:
        """One more trial has come to an end."""
        self.done += 1
        self.failed += failed
        self.diverged += diverged
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, description=self.line())
        elif time.monotonic() - self._said > EVERY:
            self._said = time.monotonic()
            with contextlib.suppress(OSError):  # the reader is gone, or the disk of the log is full
                sys.stderr.write(self.line() + "\n")

    def line(self) -> str:
        """How many, how fast, how long still."""
        spent = time.monotonic() - self._began
        fresh = self.done - self.began_with
        parts = [f"{self.done} of {self.total} trials"]
        if fresh:
            left = (self.total - self.done) * spent / fresh
            rate = 60 * fresh / spent
            shown = f"{rate:.0f}" if rate > 100 else f"{rate:.3g}"
            parts += [f"{shown} a minute", f"{duration(left)} left"]
        parts += [f"{self.diverged} diverged"] * bool(self.diverged) + [f"{self.failed} failed"]
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in the units that one would say it in.

    Example:
        >>> duration(42), duration(5000), duration(200000)
        ('42 s', '83 min', '56 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
