"""Where readings go: memory, a file of JSON lines, TensorBoard, or any object that writes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from normscope.errors import InputError
from normscope.registry import Registry
from normscope.results.monitor import Reading, Series


@runtime_checkable
class Sink(Protocol):
    """Anything that takes readings; ``flush()`` and ``close()`` are called if it has them."""

    def write(self, reading: Reading) -> None:
        """Write one reading to the sink."""


class MemorySink:
    """Keeps every reading, 16 bytes each, for ``Monitor.result()``."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[array[int], array[float]]] = {}

    def write(self, reading: Reading) -> None:
        """Keep the reading in memory."""
        key = (reading.layer, reading.quantity)
        steps, values = self._kept.setdefault(key, (array("q"), array("d")))
        steps.append(reading.step)
        values.append(reading.value)

    def series(self) -> tuple[Series, ...]:
        """What was kept, in the order first seen."""
        return tuple(
            Series(layer, quantity, np.array(steps, np.int64), np.array(values, np.float64))
            for (layer, quantity), (steps, values) in self._kept.items()
        )


class JsonlSink:
    """One JSON object a line, appended and flushed after each step that is recorded.

    ``MonitorLog.from_jsonl`` reads it back.

    Args:
        path: the file; its folder is made. Lines are added to a file that exists.
    """

    def __init__(self, path: str | os.PathLike[str] = "normscope-monitor.jsonl") -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"The jsonl sink cannot write to {str(path)!r}: {error}. Choose another file."
            ) from error

    def write(self, reading: Reading) -> None:
        """Append the reading as one line of JSON."""
        self._file.write(reading.to_json() + "\n")

    def flush(self) -> None:
        """Let other programs see what was written."""
        self._file.flush()

    def close(self) -> None:
        """Close the file if it is open."""
        self._file.close()


class TensorBoardSink:
    """Scalars under ``normscope/<quantity>/<layer>``.

    Args:
        target: a folder, a ``SummaryWriter`` of your own (left open), or None for ``runs/``.
    """

    def __init__(self, target: Any = None) -> None:
        self._own = not hasattr(target, "add_scalar")
        self._writer = _summary_writer(target) if self._own else target

    def write(self, reading: Reading) -> None:
        """Add the reading as a scalar."""
        self._writer.add_scalar(reading.tag, reading.value, reading.step)

    def flush(self) -> None:
        """Write what is pending."""
        self._writer.flush()

    def close(self) -> None:
        """Close the writer, if it was opened here."""
        if self._own:
            self._writer.close()


def _summary_writer(folder: Any) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "The sink 'tensorboard' needs the package tensorboard, which cannot be imported "
            f"({error}). Install it (pip install tensorboard), or use 'jsonl' or 'memory'."
        ) from error
    return SummaryWriter(log_dir=folder)


# name -> sink(target); a target follows the name after a colon
SINKS: Registry[Callable[..., Any]] = Registry(
    "sink", {"memory": MemorySink, "jsonl": JsonlSink, "tensorboard": TensorBoardSink}
)


def as_sinks(sinks: Any) -> list[Sink]:
    """The sinks that a user named: ``"jsonl:run.jsonl"``, objects with ``write``, or several."""
    several = sinks if isinstance(sinks, Sequence) and not isinstance(sinks, str) else [sinks]
    if not several:
        raise InputError("sinks is empty: every reading would be lost. Leave it out for 'memory'.")
    return [_sink(sink) for sink in several]


def _sink(sink: Any) -> Sink:
    if isinstance(sink, str):
        name, _, target = sink.partition(":")
        make = SINKS[name]
        if target and make is MemorySink:
            raise InputError(f"The sink 'memory' takes no target. Got {sink!r}.")
        made: Sink = make(target) if target else make()
        return made
    if isinstance(sink, type) or not isinstance(sink, Sink):
        raise InputError(
            f"A sink is a name ({', '.join(SINKS)}; a target follows after a colon, as in "
            f"'jsonl:run.jsonl') or an object with write(reading). Got {sink!r}."
        )
    return sink
