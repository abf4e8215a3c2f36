"""What a training was: was it learning, and is it still undecided?"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normscope.checks import Array
from normscope.measure.divergence import Divergence
from normscope.results.stability import StabilityTrial
from normscope.subject.batch import float_leaves
from normscope.subject.likelihoods import BernoulliLoss, CrossEntropy, SquaredLoss
from normscope.subject.losses import Loss
from normscope.train.run import Event, StopTraining

SIGMAS = 2.0  # how clearly the last losses must lie below the reference
RISE = 3.0  # how clearly the loss must be rising for a training to go on
TINY = 1e-9  # a chance level that is zero but for rounding
FEW = 4  # losses that a slope needs
HALF = 0.5  # of the fall of the best training run, from where on another one learned


def late(steps: int) -> slice:
    """The losses that tell what ``steps`` updates achieved: the last quarter of them."""
    return slice(steps + 1 - max(1, steps // 4), steps + 1)


@dataclass(frozen=True)
class Reference:
    """What the untrained model does on the batches of one seed.

    Attributes:
        initial: loss on the first batch.
        start: mean loss on the late batches.
        chance: mean loss of the best constant answer on these; NaN if unknown.
        guess: a learning rate of the right order.
    """

    initial: float
    start: float
    chance: float
    guess: float


def verdict(losses: Array, reference: Reference, *, steps: int) -> tuple[float, str]:
    """Mean of the late losses, and why that is no learning (empty if it is)."""
    found = losses[late(steps)]
    mean = float(found.mean())
    error = float(found.std(ddof=1)) / math.sqrt(len(found)) if len(found) > 2 else 0.0
    reached = f"the loss after {steps} updates, {mean:.4g} +- {error:.2g}"
    if not mean + SIGMAS * error < reference.start:
        return mean, f"{reached}, is not below the start, {reference.start:.4g}"
    if not math.isnan(reference.chance) and not mean + SIGMAS * error < reference.chance:
        return mean, f"{reached}, is not better than chance, {reference.chance:.4g}"
    return mean, ""


def against_best(trials: Sequence[StabilityTrial]) -> list[StabilityTrial]:
    """The same trials, those that came down less than half as far as the best one not learned."""
    best = max((t for t in trials if t.learned), key=_fall, default=None)
    if best is None:
        return list(trials)
    short = (
        "the loss, {:.4g}, fell less than half as far as that of the best training run, "
        f"{best.final:.4g} at lr {best.lr:.3g}"
    )
    return [
        replace(t, learned=False, reason=short.format(t.final))
        if t.learned and _fall(t) < HALF * _fall(best)
        else t
        for t in trials
    ]


def _fall(trial: StabilityTrial) -> float:
    """How far it came below start and chance."""
    return float(np.nanmin([trial.start, trial.chance])) - trial.final


class Watch:
    """A callback that ends a training once it is decided.

    After ``steps`` updates it goes on only as long as the loss rises, and either ever faster or at
    such a rate that it breaks the divergence rule within ``most`` updates: close above the limit
    the loss grows slowly, and a fixed number of updates would take such a rate for a stable one.

    Attributes:
        rising: the loss was still rising at the end.
        late: it ran out of time.
    """

    def __init__(self, steps: int, most: int, rule: Divergence, deadline: float) -> None:
        self._next = self._span = steps
        self._most, self._rule, self._deadline = most, rule, deadline
        self._losses: list[float] = []
        self.rising = self.late = False

    def __call__(self, event: Event) -> None:
        """Take note of a step; raise ``StopTraining`` if it was the last one needed."""
        if event.kind != "step":
            return
        self._losses.append(event.loss)
        if time.monotonic() > self._deadline:
            self.late = True
            raise StopTraining("out of time")
        if event.step > self._next:
            slope, bend = rise(self._losses[-max(FEW, self._span // 2) :])
            self.rising = slope > 0
            if event.step > self._most or not self._would_break(slope, bend):
                raise StopTraining("decided")
            self._next = min(self._most, self._next + max(FEW, self._span // 2))

    def _would_break(self, slope: float, bend: float) -> bool:
        """A growing part hidden under a constant one shows as a bend upwards."""
        if slope <= 0:
            return False
        left = self._most - len(self._losses)
        limit = self._rule.limit(self._losses[0])
        return bend > 0 or math.log(self._losses[-1]) + slope * left > math.log(limit)


def rise(losses: Sequence[float]) -> tuple[float, float]:
    """Growth of log loss per update, 0 unless clearly positive; and whether it bends upwards."""
    values = np.asarray(losses, np.float64)
    if len(values) < FEW or not np.isfinite(values).all() or values.min() <= 0:
        return 0.0, 0.0
    t = np.arange(len(values)) - (len(values) - 1) / 2
    y = np.log(values)
    slope = float(t @ y / (t @ t))
    rest = y - y.mean() - slope * t
    error = math.sqrt(float(rest @ rest) / (len(values) - 2) / float(t @ t))
    bend = float(rest @ (t**2 - (t**2).mean()))
    return (slope if slope > RISE * error else 0.0), bend


def chance_loss(loss: Loss, seen: list[tuple[Any, Any]]) -> float:
    """Loss of the best constant answer on pairs (outputs, targets); NaN if the loss is another.

    For cross-entropy, also of yes or no, that of the mean label, for squared loss that of the mean
    target. Where all targets are equal a constant answer is perfect, and chance says nothing: NaN
    too.
    """
    if isinstance(loss, CrossEntropy):
        found = _label_entropy(loss, seen)
    elif isinstance(loss, SquaredLoss):
        found = _scatter(loss, seen)
    elif isinstance(loss, BernoulliLoss):
        found = _coin(loss, seen)
    else:
        return math.nan
    return found if found > TINY else math.nan


def _label_entropy(loss: CrossEntropy, seen: list[tuple[Any, Any]]) -> float:
    total, count = torch.zeros(()), 0
    for outputs, targets in seen:
        logits = float_leaves(outputs)[0]
        if targets.is_floating_point():
            weights = targets.transpose(0, 1).flatten(1).sum(1)
        else:
            weights = torch.bincount(targets.flatten().long(), minlength=logits.shape[1])
        total = total + weights.double().cpu()
        count += loss.num_samples(outputs)
    share = total / total.sum()
    entropy = float(-(share * share.clamp(min=1e-300).log()).sum())
    return entropy * (count / len(seen) if loss.summed else 1.0)


def _scatter(loss: SquaredLoss, seen: list[tuple[Any, Any]]) -> float:
    batches = [[leaf.double() for leaf in loss.compared(*pair)] for pair in seen]
    means = [torch.cat(column).mean(0) for column in zip(*batches, strict=True)]
    values = [
        loss.value([m.expand_as(leaf) for m, leaf in zip(means, batch, strict=True)], batch)
        for batch in batches
    ]
    return float(torch.stack(values).mean())


def _coin(loss: BernoulliLoss, seen: list[tuple[Any, Any]]) -> float:
    share = torch.cat([targets.double() for _, targets in seen]).mean(0).clamp(1e-12, 1 - 1e-12)
    values = [loss.value(share.logit().expand_as(t), t.double()) for _, t in seen]
    return float(torch.stack(values).mean())
