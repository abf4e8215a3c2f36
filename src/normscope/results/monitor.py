"""What a monitor saw of a training."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.errors import InputError
from normscope.record import Record
from normscope.registry import near_match
from normscope.results.base import DataFrame, Drawable, framed


@dataclass(frozen=True, eq=False)
class Reading(Record):
    """One number at one step: what a sink is given.

    Attributes:
        step: optimizer steps made before the one it belongs to, from 0.
        layer: as in ``named_modules()``; empty for a number of the whole network.
        quantity: such as ``"gradient_norm"``.
        value: a float; NaN and infinity are results.
    """

    step: int
    layer: str
    quantity: str
    value: float

    @property
    def tag(self) -> str:
        """``normscope/<quantity>/<layer>``, as dashboards group it."""
        return "/".join(part for part in ("normscope", self.quantity, self.layer) if part)


@dataclass(frozen=True, eq=False, repr=False)
class Series(Record):
    """One quantity of one layer over training."""

    layer: str
    quantity: str
    steps: NDArray[np.int64]  # (n,)
    values: Array  # (n,)

    def __repr__(self) -> str:
        where = f" of {self.layer}" if self.layer else ""
        return f"Series({self.quantity}{where}, {len(self.steps)} steps)"


@dataclass(frozen=True, eq=False)
class Trouble(Record):
    """A probe or sink that did not do its work: what became of it, and why.

    Attributes:
        name: name of the probe or sink.
        status: ``"skipped"`` or ``"failed"``.
        reason: in words.
    """

    name: str
    status: str
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class MonitorLog(Drawable):
    """All readings of a monitor, one series per layer and quantity, in the order first seen.

    The chart: one panel per quantity, one line per layer.

    Attributes:
        series: the readings.
        num_steps: optimizer steps that were watched.
        every: steps between two readings.
        troubles: probes and sinks that failed or were left out.
        meaning: what each quantity is, in words.
        convention: every setting that was in effect; empty for a log made of single readings.
    """

    series: tuple[Series, ...]
    num_steps: int
    every: int
    troubles: tuple[Trouble, ...] = ()
    meaning: dict[str, str] = field(default_factory=dict)
    convention: dict[str, Any] = field(default_factory=dict)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Names of the quantities, in the order first seen."""
        return tuple(dict.fromkeys(s.quantity for s in self.series))

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in the order first seen; empty for the whole network."""
        return tuple(dict.fromkeys(s.layer for s in self.series))

    def of(self, quantity: str, layer: str | None = None) -> Series:
        """The series of one quantity; ``layer`` may be left out where there is only one."""
        found = [s for s in self.series if s.quantity == quantity]
        if not found:
            hint = near_match(str(quantity), list(self.quantities))
            raise InputError(f"Nothing was recorded under {quantity!r}. {hint}")
        names = [s.layer for s in found]
        if layer is None and len(found) == 1:
            return found[0]
        if layer not in names:
            hint = near_match(str(layer), names)
            raise InputError(f"{quantity!r} was not recorded for layer {layer!r}. {hint}")
        return found[names.index(layer)]

    def to_frame(self) -> DataFrame:
        """A long table: step, layer, quantity, value."""
        columns = {
            "step": np.concatenate([s.steps for s in self.series] or [np.zeros(0, int)]),
            "layer": [s.layer for s in self.series for _ in s.steps],
            "quantity": [s.quantity for s in self.series for _ in s.steps],
            "value": np.concatenate([s.values for s in self.series] or [np.zeros(0)]),
        }
        return framed(columns)

    def summary(self) -> str:
        """A line for each quantity: its middle over layers at the first and the last reading."""
        count = sum(len(s.steps) for s in self.series)
        lines = [
            f"{count} readings of {len(self.series)} series over {self.num_steps} optimizer "
            f"steps, one in {self.every}"
        ]
        for quantity in self.quantities:
            lines.append(f"  {quantity}: {self._course(quantity)}{self._said(quantity)}")
        lines += [f"  {t.status}: {t.name}: {t.reason}" for t in self.troubles]
        return "\n".join(lines)

    def _course(self, quantity: str) -> str:
        found = [s for s in self.series if s.quantity == quantity]
        first = float(np.median([s.values[0] for s in found]))
        last = float(np.median([s.values[-1] for s in found]))
        text = f"{first:.3g} -> {last:.3g}"
        if len(found) == 1:
            return text
        ends = np.array([s.values[-1] for s in found])
        if not np.isfinite(ends).all():
            return f"{text} (not finite in {int((~np.isfinite(ends)).sum())} layers)"
        top = found[int(np.argmax(ends))]
        return f"{text} (middle of {len(found)} layers; largest {ends.max():.3g} in {top.layer!r})"

    def _said(self, quantity: str) -> str:
        return f"; {self.meaning[quantity]}" if quantity in self.meaning else ""

    @classmethod
    def from_readings(
        cls, readings: Iterable[Reading], *, num_steps: int | None = None, every: int = 1
    ) -> MonitorLog:
        """The log of single readings, in the order given."""
        kept: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for reading in readings:
            key = (reading.layer, reading.quantity)
            kept.setdefault(key, []).append((reading.step, reading.value))
        series = tuple(
            Series(layer, quantity, *_columns(points)) for (layer, quantity), points in kept.items()
        )
        last = max((int(s.steps.max()) for s in series), default=-1)
        return cls(series, last + 1 if num_steps is None else num_steps, every)

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str]) -> MonitorLog:
        """The log that a jsonl sink wrote; a last line that was cut off is left out."""
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        readings = []
        for number, line in enumerate(lines, start=1):
            try:
                readings.append(Reading.from_dict(json.loads(line)))
            except json.JSONDecodeError:
                if number < len(lines):
                    raise InputError(
                        f"Line {number} of {path} is no JSON: {line[:60]!r}."
                    ) from None
        if not readings:
            raise InputError(f"{path} holds no readings. Was the training ended before its first?")
        return cls.from_readings(readings)

    def __repr__(self) -> str:
        return f"MonitorLog({len(self.series)} series, {self.num_steps} steps)"


def _columns(points: list[tuple[int, float]]) -> tuple[NDArray[np.int64], Array]:
    steps, values = zip(*points, strict=True)
    return np.array(steps, np.int64), np.array(values, np.float64)
