"""Ctrl-C at safe moments only, so that nothing of the user's is left half put back.

A signal handler of Python may raise an exception between any two instructions, also at the first
one of an ``__exit__`` or a ``finally``, before any of its code has run. So the code that exchanges
and restores runs under `held`, where signals are only noted, and what takes long is marked as
`interruptible`. Inside a held span an exception of a signal can start in marked code only; it
goes out through held code, which cannot be interrupted again.

Handlers are exchanged while a span is held, and never at import. Only those that could raise are:
functions of Python, not ``SIG_DFL``, ``SIG_IGN`` or handlers of other libraries. Outside the main
thread, where Python runs no handlers, both contexts do nothing.

Spans are closed in the order of ``with`` statements. So a generator may be suspended inside `held`
only as a context manager, and inside `interruptible` never, nor is an ``ExitStack`` the place for
it: the mark must stand last in a ``with`` statement of its own, or what follows could be skipped.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))
_signal: Any = importlib.import_module("_signal")  # without enums, which cost 3 us a call


class _State:
    """Of the main thread, the only one that uses it."""

    def __init__(self) -> None:
        self.depth = 0  # held spans inside each other
        self.open = False  # inside marked code: pass signals on
        self.pending: list[int] = []
        self.found: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self.exchanged: list[int] = []
        self.process = 0
        self.raised: BaseException | None = None  # by a handler, inside the present span


_state = _State()


def held() -> AbstractContextManager[None]:
    """A span in which signals are noted, and raised at its end or in the next marked code.

    Example:
        >>> try:
        ...     with held():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("nothing is lost")
        ... except KeyboardInterrupt:
        ...     print("raised at the end")
        nothing is lost
        raised at the end
    """
    return _Held()


def interruptible() -> AbstractContextManager[None]:
    """Code inside a held span that may be interrupted, as it takes long and restores nothing."""
    return _Interruptible()


def safe_point() -> None:
    """Raise now what was noted in the held span around: to be called between long steps."""
    if _state.pending:
        with _Interruptible():
            pass


def hold_rest() -> None:
    """Note signals from here to the end of the marked code around, which has a result to return.

    What is marked again may still be interrupted.
    """
    if _state.depth and _in_main_thread():
        _state.open = False


def close_interrupted() -> None:
    """Close what interrupted code has left suspended, before it is restored over.

    A context manager that is a generator may be interrupted before it was resumed. It would be
    closed together with the traceback that refers to it, at any later time, and would then
    put back what it had found.
    """
    if _state.raised is not None and _in_main_thread():
        traceback.clear_frames(_state.raised.__traceback__)
        # what was about to return is in no traceback, but behind what was called from there
        for frame, _ in traceback.walk_tb(_state.raised.__traceback__):
            with suppress(RuntimeError):  # it runs
                if frame.f_back is not None:
                    frame.f_back.clear()


class _Held(AbstractContextManager[None]):
    __slots__ = ("_active", "_open")

    def __enter__(self) -> None:
        self._active = self._open = False
        if not _in_main_thread():
            return
        if _state.depth == 0:
            _exchange()
        else:
            self._open = _state.open
            _state.open = False  # from here on nothing is raised
            _state.depth += 1
        self._active = True

    def __exit__(self, *error: object) -> None:
        if not self._active:
            return
        if _state.depth > 1:
            _state.depth -= 1
            if self._open:
                _state.open = True
                _deliver()
            return
        try:
            try:
                _put_back()
            finally:
                _deliver()
        except BaseException:
            _state.pending = []  # one more came first and is raised: none is left for later
            raise


class _Interruptible(AbstractContextManager[None]):
    __slots__ = ("_active", "_before")

    def __enter__(self) -> None:
        self._active = False
        if not _state.depth or not _in_main_thread():
            return
        self._before = _state.open
        self._active = True
        _state.open = True  # what is raised from here on closes it again, see `_note`
        _deliver()

    def __exit__(self, *error: object) -> None:
        if self._active:
            _state.open = self._before


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _exchange() -> None:
    """Put `_note` in the place of every handler that could raise."""
    try:
        _state.open, _state.exchanged, _state.process = False, [], os.getpid()
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if handler is not _note and callable(handler):
                _state.found[number] = handler
                _state.exchanged.append(number)
                _signal.signal(number, _note)
            elif handler is _note:  # somebody kept it and put it back
                _state.exchanged.append(number)
        _state.depth = 1
    except BaseException:  # a signal on the way
        _put_back()
        raise


def _put_back() -> None:
    """Each handler that was found; those that the user's code has set since then stay."""
    try:
        _state.depth, _state.open, _state.raised = 0, False, None
        for number in _state.exchanged:
            if _signal.getsignal(number) is _note:
                _signal.signal(number, _state.found[number])
    except BaseException:  # raised by a handler that is back already: the others must follow
        _put_back()
        raise


def _note(number: int, frame: FrameType | None) -> None:
    """In the place of the handlers: note the signal, or pass it on from marked code."""
    passed_on = not _state.depth or _state.open or _state.process != os.getpid()
    if not passed_on:
        if number not in _state.pending:
            _state.pending.append(number)
        return
    before, _state.open = _state.open, False  # the way out is not interrupted again
    try:
        _state.found[number](number, frame)
    except BaseException as error:
        _state.raised = error
        raise
    _state.open = before


def _deliver() -> None:
    """Send the noted signals again, all of them, whatever their handlers raise."""
    if _state.pending:
        waiting, _state.pending = _state.pending, []
        _send(waiting)


def _send(waiting: list[int]) -> None:
    if waiting:
        try:
            signal.raise_signal(waiting[0])
        finally:
            _send(waiting[1:])
