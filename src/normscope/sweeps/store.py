"""The folder of a sweep: a plan, journals that only ever grow, checkpoints.

Nothing here is ever changed once written. A driver writes one journal of its own, so that no kill
and no second driver can harm what is there; whoever reads takes the union of all journals.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.errors import InputError, NormscopeError
from normscope.files import sync_folder, write_atomically
from normscope.sweeps.plan import Plan, digest

MARK = ',"checksum":"'
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what a full or read-only disk says


class StoreError(NormscopeError, OSError):
    """The folder of a sweep cannot be written; what was saved stays saved."""


@dataclass(frozen=True)
class Place:
    """Where a line stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True)
class Entry:
    """One line of a journal: what a trial gave.

    Attributes:
        key: name of the trial.
        checksum: checksum of key, settings, status, record and error.
        failed: whether it failed.
        seconds: how long it took.
        content: the line, as data.
        place: where it stands.
    """

    key: str
    checksum: str
    failed: bool
    seconds: float
    content: dict[str, Any]
    place: Place


@dataclass
class Union:
    """What all journals say together.

    Attributes:
        done: for each finished trial the line that counts.
        failed: for each trial that only failed, its latest line.
        conflicts: trials whose records differ, with both lines.
        bad: lines that cannot be used; their trials run again.
        torn: journals whose last line was cut off by a kill.
        foreign: lines of trials that are not in the plan.
        diverged: trials whose record says so.
        seconds: spent on the lines that count.
    """

    done: dict[str, Place] = field(default_factory=dict)
    failed: dict[str, Place] = field(default_factory=dict)
    conflicts: list[tuple[str, Place, Place]] = field(default_factory=list)
    bad: list[Place] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    foreign: int = 0
    diverged: int = 0
    seconds: float = 0.0


class Store:
    """The folder of one sweep."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise InputError(f"A sweep is kept in a folder of its own. Got {folder!r}.")
        self.folder = Path(folder)

    @property
    def records(self) -> Path:
        """Folder of the journals."""
        return self.folder / "records"

    @property
    def checkpoints(self) -> Path:
        """States of trials that are under way."""
        return self.folder / "checkpoints"

    @property
    def locks(self) -> Path:
        """Who is at work."""
        return self.folder / "locks"

    def plan(self) -> Plan:
        """The plan in the folder."""
        path = self.folder / "plan.json"
        try:
            return Plan.from_json(path.read_bytes(), path)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"{self.folder} is no folder of a sweep: it has no plan.json."
            ) from None
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from None

    def prepare(self, plan: Plan) -> str:
        """Write the plan, or compare it with the one that is there.

        Returns:
            A warning if the text of the function has changed; empty otherwise.

        Raises:
            InputError: the folder holds another sweep, or something else.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder} is a file. Give the sweep a folder of its own.")
        path = self.folder / "plan.json"
        if not path.exists():
            others = self.folder.is_dir() and any(
                p.suffix != ".part" for p in self.folder.iterdir()
            )
            if others and not path.exists():  # it may have appeared meanwhile
                raise InputError(f"{self.folder} holds other files. Give the sweep its own folder.")
            with writing(self.folder, 0):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, plan.to_json(), once=True)
        there = self.plan()
        if difference := there.difference(plan):
            raise InputError(
                f"{self.folder} holds another sweep ({difference}). Use another folder, or the "
                "settings of the first."
            )
        with writing(self.folder, 0):
            for folder in (self.records, self.checkpoints, self.locks):
                folder.mkdir(exist_ok=True)
        if there.source and plan.source and there.source != plan.source:
            return (
                f"The text of {plan.function} has changed since {self.folder} was begun, but not "
                "its version: finished trials are kept. Give it another version= and folder if it "
                "computes something else."
            )
        return ""

    def entries(self) -> Iterator[Entry | Place | str]:
        """Every line of every journal, oldest journal first.

        A bad line is given as its place, a last line that was cut off as the name of its file.
        """
        for path in sorted(self.records.glob("*.jsonl"), key=_start):
            # a driver that ends without a result removes its journal
            with contextlib.suppress(FileNotFoundError), path.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    if not line.endswith(b"\n"):
                        yield path.name
                    else:
                        yield _parsed(line, Place(path.name, number))

    def union(self, plan: Plan) -> Union:
        """What all journals say; of two lines of one trial the first counts."""
        found, checksums = Union(), dict[str, str]()
        for entry in self.entries():
            if isinstance(entry, str):
                found.torn.append(entry)
            elif isinstance(entry, Place):
                found.bad.append(entry)
            elif entry.key not in plan.trials:
                found.foreign += 1
            elif entry.failed:
                found.failed[entry.key] = entry.place
            elif entry.key not in found.done:
                found.done[entry.key] = entry.place
                checksums[entry.key] = entry.checksum
                found.diverged += bool((entry.content["record"] or {}).get("diverged"))
                found.seconds += entry.seconds
            elif checksums[entry.key] != entry.checksum:
                found.conflicts.append((entry.key, found.done[entry.key], entry.place))
        found.failed = {k: place for k, place in found.failed.items() if k not in found.done}
        return found

    def lines(self, found: Union) -> Iterator[dict[str, Any]]:
        """The lines that count, as data."""
        counting = {(p.file, p.line) for p in (*found.done.values(), *found.failed.values())}
        for entry in self.entries():
            if isinstance(entry, Entry) and (entry.place.file, entry.place.line) in counting:
                yield entry.content


class Journal:
    """The file that one start of a driver writes to."""

    def __init__(self, store: Store, shard: str) -> None:
        seconds, rest = divmod(time.time_ns(), 10**9)
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
        start = f"{moment}.{rest:09d}-{os.getpid()}-{secrets.token_hex(3)}"
        self.path = store.records / f"{shard}.{start}.jsonl"
        self.written = 0
        with writing(store.folder, 0):
            how = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
            self._file = os.open(self.path, how, 0o666)
            sync_folder(store.records)

    def write(self, lines: list[str]) -> None:
        """Append lines; when this returns they are on the disk."""
        data = memoryview("".join(line + "\n" for line in lines).encode())
        with writing(self.path.parent.parent, self.written):
            whole = os.fstat(self._file).st_size
            try:
                while data:
                    data = data[os.write(self._file, data) :]
                os.fsync(self._file)
            except OSError:
                with contextlib.suppress(OSError):  # half a line would only be skipped later
                    os.ftruncate(self._file, whole)
                raise
        self.written += len(lines)

    def close(self) -> None:
        """Close the file; an empty one is removed, if the disk still lets us."""
        with contextlib.suppress(OSError):  # every line was synced, or its failure told
            os.close(self._file)
            if not self.written:
                self.path.unlink()


def line_of(
    key: str, settings: dict[str, Any], record: str | None, error: str | None, about: dict[str, Any]
) -> str:
    """One line of a journal; ``record`` is JSON already."""
    head = json.dumps({"key": key, "settings": settings, "status": "failed" if error else "done"})
    body = f'{head[:-1]}, "record": {record or "null"}, "error": {json.dumps(error)}'
    return f'{body}{MARK}{digest(body)}","about":{json.dumps(about)}}}'


def _parsed(line: bytes, place: Place) -> Entry | Place:
    try:
        text = line.decode()
        body, mark, rest = text.rpartition(MARK)
        checksum = rest[: rest.index('"')]
        if not mark or digest(body) != checksum:
            return place
        content = json.loads(text)
        failed, seconds = content["status"] == "failed", float(content["about"]["seconds"])
        return Entry(content["key"], checksum, failed, seconds, content, place)
    except (ValueError, KeyError, TypeError):
        return place


def _start(path: Path) -> tuple[str, str]:
    """Journals by the moment they were begun."""
    return path.name.partition(".")[2], path.name


@contextlib.contextmanager
def writing(folder: Path, written: int) -> Iterator[None]:
    """A span in which a failure to write is told as what it is."""
    try:
        yield
    except NormscopeError:
        raise
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be written: {error.strerror or error}. {written} trials of this "
            "start are saved, and all of earlier ones. Make room or make it writable, then run the "
            "same command again: it goes on from there."
        ) from error
