"""What a training did: events as they happen, and the record it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, framed

INTERRUPTED = "interrupted from the keyboard"  # the reason of what Ctrl-C ended


class StopTraining(Exception):  # noqa: N818 - a signal, not an error
    """Raised by a callback to end the training after the step it was told of."""


@dataclass(frozen=True, eq=False)
class Event(Record):
    """Something that happened in a training, given to every callback.

    Attributes:
        kind: ``"start"`` once, before the first update, ``"step"`` after each update, ``"epoch"``
            after each epoch, ``"divergence"`` in place of the update that is not made, ``"done"``
            once at the end.
        step: number of updates made so far; ``losses[step - 1]`` led to the latest one.
        epoch: the epoch, from 0.
        loss: loss of the mini-batch before its update; the mean over the epoch for ``"epoch"``;
            NaN for ``"start"``.
        lr: learning rate of the first parameter group.
        outcome: for ``"done"``, how it ended.
        validation_loss: for ``"epoch"``, that of the ``validation`` data of ``fit``; otherwise NaN.
        validation_accuracy: the same; NaN without labels.
    """

    kind: str
    step: int
    epoch: int
    loss: float
    lr: float
    outcome: str = ""
    validation_loss: float = math.nan
    validation_accuracy: float = math.nan


@dataclass(frozen=True, eq=False)
class Validation(Record):
    """Loss and accuracy on the validation data, one entry per epoch, (epochs,) each.

    Attributes:
        epoch: the epoch, from 0.
        step: number of updates made by then.
        loss: mean over the samples.
        accuracy: share of right answers; NaN without labels.
    """

    epoch: Array
    step: Array
    loss: Array
    accuracy: Array


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Record):
    """The record of one training.

    ``losses[k]`` is the mini-batch loss (without penalty) after k updates, computed on the batch
    that update k + 1 uses. A diverged run ends with the loss that broke the rule.

    Attributes:
        losses: mini-batch losses, (steps,) or (updates + 1,) if diverged.
        lrs: learning rate of each.
        outcome: ``"finished"``, ``"diverged"``, ``"stopped"`` (by a callback) or ``"interrupted"``.
        diverged_at: number of updates made when divergence was seen; None otherwise.
        reason: the outcome in words where it is not plain.
        updates: number of updates made.
        seconds: time spent, summed over resumed parts.
        convention: every setting that was in effect.
        events: all events but those of kind ``"start"`` and ``"step"``.
    """

    losses: Array
    lrs: Array
    outcome: str
    diverged_at: int | None
    reason: str
    updates: int
    seconds: float
    convention: dict[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()

    @property
    def diverged(self) -> bool:
        """Whether the loss broke the divergence rule."""
        return self.outcome == "diverged"

    @property
    def initial_loss(self) -> float:
        """Loss of the first mini-batch; NaN if there was none."""
        return float(self.losses[0]) if len(self.losses) else float("nan")

    @property
    def final_loss(self) -> float:
        """Loss of the last mini-batch; NaN if there was none."""
        return float(self.losses[-1]) if len(self.losses) else float("nan")

    @property
    def validation(self) -> Validation:
        """Loss and accuracy after every epoch; empty if ``fit`` got no ``validation`` data."""
        told = "validation" in self.convention
        rows = [e for e in self.events if e.kind == "epoch" and told]
        return Validation(
            epoch=np.array([e.epoch for e in rows], np.int64),
            step=np.array([e.step for e in rows], np.int64),
            loss=np.array([e.validation_loss for e in rows], np.float64),
            accuracy=np.array([e.validation_accuracy for e in rows], np.float64),
        )

    def updates_below(self, level: float, window: int = 1) -> int | None:
        """Updates until the mean of the latest ``window`` losses is below a level.

        None if it never is, or if the training diverged.
        """
        if self.diverged or len(self.losses) < window:
            return None
        below = np.convolve(self.losses, np.full(window, 1 / window), "valid") < level
        return int(np.argmax(below)) + window if np.any(below) else None

    def to_frame(self) -> DataFrame:
        """One row per mini-batch: loss and learning rate."""
        return framed({"loss": self.losses, "lr": self.lrs}).rename_axis("step")

    def summary(self) -> str:
        """A few lines for a terminal."""
        seen = self.validation
        last = [f"{n} {v[-1]:.4g}" for n, v in vars(seen).items() if len(v) and v[-1] == v[-1]]
        settings = ", ".join(f"{k} {v}" for k, v in self.convention.items() if v is not None)
        lines = [
            f"{self.outcome} after {self.updates} updates in {self.seconds:.1f} s: loss "
            f"{self.initial_loss:.4g} -> {self.final_loss:.4g}",
            *([self.reason] if self.reason else []),
            *([f"validation, last epoch: {', '.join(last[2:])}"] if last else []),
            settings,
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        """One line: runs are printed in loops."""
        return repr(self)

    def __repr__(self) -> str:
        return (
            f"TrainingRun({self.outcome}, {self.updates} updates, loss {self.initial_loss:.4g} -> "
            f"{self.final_loss:.4g})"
        )
