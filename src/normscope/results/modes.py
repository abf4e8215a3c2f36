"""The loss in train and in evaluation mode, and the statistics that norms keep for the latter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from normscope.record import Record
from normscope.results.base import Drawable, listed

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Score(Record):
    """How the network does on some batches in one mode.

    Attributes:
        loss: mean over the samples.
        accuracy: share of right answers; NaN where the targets are no classes.
        num_samples: samples seen.
    """

    loss: float
    accuracy: float = NAN
    num_samples: int = 0

    def __str__(self) -> str:
        share = "" if math.isnan(self.accuracy) else f" (accuracy {self.accuracy:.3g})"
        return f"{self.loss:.3g}{share}"


@dataclass(frozen=True, eq=False)
class NormModes(Record):
    """One layer that keeps running statistics.

    Attributes:
        name: name of the layer.
        kind: its class.
        mean_gap: root mean square over channels of (mean of the batches - running mean) / running
            deviation; NaN if no pass reached the layer.
        variance_ratio: geometric mean over channels of the variance of the batches / running
            variance, each with the layer's eps.
        variance_gap: how far the two are apart, as a factor from 1 on: root mean square of the
            logarithm over channels, where opposite deviations do not cancel.
        updates: batches behind the running statistics; -1 if that is not known.
        momentum: weight of the newest batch in them; NaN for a plain average of all batches.
        initial: share of their initial values (mean 0, variance 1) that they still hold: 1 before
            the first update, (1 - momentum)^updates after; 0 if it is not known.
        frozen: whether it uses them in training too.
        affine: whether it has a scale or a shift.
        trainable: whether one of these is trained.
        values: numbers that each statistic of a batch is made of.
    """

    name: str
    kind: str
    mean_gap: float = NAN
    variance_ratio: float = NAN
    variance_gap: float = NAN
    updates: int = -1
    momentum: float = NAN
    initial: float = 0.0
    frozen: bool = False
    affine: bool = True
    trainable: bool = True
    values: int = 0

    @property
    def used(self) -> bool:
        """Whether a pass reached it."""
        return self.values > 0


@dataclass(frozen=True, eq=False, repr=False)
class Modes(Drawable):
    """The loss by mode, on the same batches.

    The chart: the losses side by side; below, how far running statistics are from those of the
    batches.

    Attributes:
        train: as it is trained: statistics of each batch, dropout on.
        batch: statistics of each batch, no dropout; the same as ``train`` where nothing is drawn.
        running: evaluation mode: running statistics, no dropout; None if it cannot be run in it.
        recomputed: evaluation mode with running statistics made again by one pass over the batches
            in train mode; None without layers that keep them.
        thawed: as ``train``, with the norms that are in evaluation mode put into train mode; None
            if there are none.
        eval_running: evaluation mode on the evaluation data; None if there is none.
        eval_recomputed: the same with statistics made again on the evaluation data.
        norms: the layers that keep running statistics.
        coupled: how many layers normalize over the batch.
        evaluating: whether the model was in evaluation mode when it was handed over.
        shift: distance of the means of the evaluation data's inputs from those of the data, in
            deviations of the data; NaN if that is not known.
        scale_shift: variance of the inputs of the evaluation data / of the data.
        reason: why it could not be run in evaluation mode; empty if it could.
        convention: what was measured and how.
    """

    train: Score
    batch: Score
    running: Score | None = None
    recomputed: Score | None = None
    thawed: Score | None = None
    eval_running: Score | None = None
    eval_recomputed: Score | None = None
    norms: tuple[NormModes, ...] = ()
    coupled: int = 0
    evaluating: bool = False
    shift: float = NAN
    scale_shift: float = NAN
    reason: str = ""
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def live(self) -> tuple[NormModes, ...]:
        """The layers in use that update their running statistics in training."""
        return tuple(norm for norm in self.norms if norm.used and not norm.frozen)

    @property
    def frozen(self) -> tuple[NormModes, ...]:
        """The layers in use that take running statistics in training too."""
        return tuple(norm for norm in self.norms if norm.used and norm.frozen)

    @property
    def scores(self) -> dict[str, Score]:
        """What was measured, in words."""
        norms = bool(self.norms) or self.coupled > 0
        live = "batch statistics" if norms else "train mode"
        kept = "running statistics" if norms else "evaluation mode"
        drawn = self.batch != self.train
        found = {
            f"{live}, dropout on" if drawn else live: self.train,
            f"{live}, no dropout" if drawn else live: self.batch,
            kept: self.running,
            "recomputed statistics": self.recomputed,
            "batch statistics in the frozen norms too": self.thawed,
            f"{kept}, eval_data": self.eval_running,
            "recomputed statistics, eval_data": self.eval_recomputed,
        }
        return {name: score for name, score in found.items() if score is not None}

    def to_frame(self) -> pd.DataFrame:
        """One row per layer that keeps running statistics."""
        columns = ["name", "kind", "mean_gap", "variance_ratio", "variance_gap", "updates"]
        columns += ["momentum", "initial", "frozen", "affine", "trainable", "values"]
        return listed(self.norms, *columns)

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"loss, {name}: {score}" for name, score in self.scores.items()]
        return "\n".join([*lines, *([self.reason] if self.reason else [])])

    def __repr__(self) -> str:
        kept = "unknown" if self.running is None else str(self.running)
        return f"Modes(batch {self.batch}, running {kept})"
