"""One driver per shard: locks that the kernel releases when their holder dies.

They save work and are never what makes a store correct: trials are pure functions, and each journal
has one writer. So where a file system has no locks a sweep runs without them, and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

import filelock

from normscope.errors import InputError, NormscopeError
from normscope.files import write_atomically
from normscope.sweeps.store import FULL, Store, writing

PATIENCE = 10.0  # seconds that a status waits for drivers that are taking their locks
QUEUE = 120.0  # seconds that a driver waits: of an array of thousands all begin at once


class BusyError(NormscopeError):
    """Another driver is at work on the same trials."""


def checked_shard(shard: str | tuple[int, int] | None) -> tuple[int, int] | None:
    """``"2/8"`` as (2, 8): the second of eight parts of a sweep."""
    if shard is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", shard.strip()) if isinstance(shard, str) else None
    parts: Any = match.groups() if match else shard
    try:
        number, count = map(int if match else index, parts)
    except (TypeError, ValueError):
        number = count = 0
    if not 1 <= number <= count:
        raise InputError(f"A shard is i/n with i from 1 to n, such as 2/8. Got {shard!r}.")
    return number, count


def shard_name(shard: tuple[int, int] | None) -> str:
    """How files of a shard are called."""
    return "all" if shard is None else f"{shard[0]}of{shard[1]}"


@contextlib.contextmanager
def driving(store: Store, shard: tuple[int, int] | None, *, lock: bool = True) -> Iterator[None]:
    """A span in which this process is the only driver of its shard.

    Refused while another one drives the same shard, or shards of another number, or the whole.
    """
    if not lock:
        yield
        return
    try:
        mine = _taken(store.locks, shard_name(shard))
    except (OSError, NotImplementedError) as error:
        if getattr(error, "errno", None) in FULL:
            with writing(store.folder, 0):
                raise
        if isinstance(error, filelock.Timeout):
            raise BusyError(f"{store.locks} is held by another process. Try again.") from None
        warnings.warn(
            f"The file system of {store.folder} has no locks ({error}): nothing prevents two "
            "drivers from running the same trials. The results are safe all the same.",
            stacklevel=2,
        )
        yield
        return
    try:
        yield
    finally:
        mine.release()


def drivers(store: Store) -> list[dict[str, object]]:
    """Who is at work in this folder: shard, host, pid and start of each."""
    if not store.locks.is_dir():
        return []
    try:
        with _lock(store.locks / "guard", PATIENCE):
            names = [n for n in _names(store.locks) if _try(store.locks, n, keep=False) is None]
            return [{"shard": name, **_holder(store.locks, name)} for name in names]
    except (OSError, NotImplementedError):  # no locks here, or no right to take them
        return []


def _taken(folder: Path, name: str) -> filelock.BaseFileLock:
    """The lock of this shard, taken; whoever takes one holds the guard meanwhile."""
    count = name.partition("of")[2]
    with _lock(folder / "guard", QUEUE):
        for other in _names(folder):
            together = other != name and count and other.partition("of")[2] == count
            if not together and _try(folder, other, keep=False) is None:
                raise BusyError(_refusal(folder, name, other))
        mine = _try(folder, name, keep=True)
        if mine is None:
            raise BusyError(_refusal(folder, name, name))
        about = {"host": socket.gethostname(), "pid": os.getpid()}
        about["start"] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        try:
            write_atomically(folder / f"{name}.json", json.dumps(about))
        except BaseException:
            mine.release()
            raise
    return mine


def _lock(path: Path, timeout: float) -> filelock.BaseFileLock:
    return filelock.FileLock(path, timeout=timeout, fallback_to_soft=False, thread_local=False)


def _try(folder: Path, name: str, *, keep: bool) -> filelock.BaseFileLock | None:
    lock = _lock(folder / f"{name}.lock", 0)
    try:
        lock.acquire()
    except filelock.Timeout:
        return None
    if not keep:
        lock.release()
    return lock


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.lock"))


def _holder(folder: Path, name: str) -> dict[str, object]:
    try:
        found: dict[str, object] = json.loads((folder / f"{name}.json").read_text())
    except (OSError, ValueError):
        found = {"host": "unknown", "pid": "unknown", "start": "unknown"}
    return found


def _refusal(folder: Path, name: str, other: str) -> str:
    about = _holder(folder, other)
    what = "the whole sweep" if other == "all" else f"shard {other.replace('of', '/')}"
    who = f"process {about['pid']} on {about['host']}, since {about['start']}"
    why = "" if other == name else " Shards of another number, or the whole, must wait for it."
    return f"Another driver is at work on {what} in {folder.parent}: {who}.{why}"
