"""A progress bar for what takes over a second, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 1.0  # seconds before a bar appears


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A function to call after each of ``total`` steps; it draws a bar if they take long.

    Silent unless standard error is a terminal; a bar inside another bar is not drawn.

    Example:
        >>> with progress("products", total=2) as tick:
        ...     tick()
        ...     tick()
    """
    bar = _Bar(what, total) if sys.stderr.isatty() else None
    try:
        yield bar.tick if bar else lambda: None
    finally:
        if bar:
            with contextlib.suppress(OSError):
                bar.close()


class _Bar:
    """Starts to draw after `PATIENCE` seconds; at most one draws at a time."""

    _drawing: _Bar | None = None

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._start = time.monotonic()
        self._rich: Any = None

    def tick(self) -> None:
        self._done += 1
        late = time.monotonic() - self._start > PATIENCE
        with contextlib.suppress(OSError):  # the terminal was closed, and what is measured goes on
            if self._rich is None and _Bar._drawing is None and late:
                self._open()
            if self._rich is not None:
                self._rich.update(self._task, completed=self._done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._rich = Progress(console=Console(stderr=True), transient=True)
        self._task = self._rich.add_task(self._what, total=self._total, completed=self._done)
        self._rich.start()
        _Bar._drawing = self

    def close(self) -> None:
        if self._rich is not None:
            _Bar._drawing = None
            self._rich.stop()
