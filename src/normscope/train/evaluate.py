"""Loss and accuracy of a model in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.record import Record
from normscope.subject.grammar import as_loss
from normscope.subject.interrupts import interruptible, safe_point
from normscope.subject.process import training
from normscope.subject.random import isolated_random
from normscope.subject.statistics import coupling_layers, in_words
from normscope.train._feed import FeedOptions, as_feed
from normscope.train._objective import (
    LossFunction,
    LossObjective,
    floating_dtype,
    kept_mode,
    model_device,
    moved,
)
from normscope.train._plan import model_in_words

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, eq=False)
class Evaluation(Record):
    """How a model does on data.

    Attributes:
        loss: mean over the samples.
        accuracy: share of samples whose largest output is the label; None without labels.
        num_samples: how many were seen.
        convention: every setting that was in effect.
    """

    loss: float
    accuracy: float | None
    num_samples: int
    convention: dict[str, Any] = field(default_factory=dict, repr=False)


@training
def evaluate(
    model: nn.Module,
    data: Any,
    loss: LossFunction = "cross_entropy",
    *,
    batch_size: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Loss and accuracy in evaluation mode (running statistics, no dropout).

    The model is left as it was found: parameters, buffers, modes and the random generators.

    Args:
        model: any module.
        data: a name, a DataSet, a pair (inputs, targets) or a loader of such pairs.
        loss: as in ``fit``.
        batch_size: samples at a time, 1000 by default; a loader decides itself.
        seed: of the random generators, for a model that draws in evaluation mode too.

    Returns:
        Sums over samples in float64; the last, smaller batch counts by its size.
    """
    device = model_device(model)
    objective = LossObjective(as_loss(loss))
    options = FeedOptions(
        batch_size,
        shuffle=False,
        one_hot=objective.one_hot,
        dtype=floating_dtype(model),
        default_size=1000,
    )
    total, hits, labels, count, batches = 0.0, 0, 0, 0, 0
    with (
        kept_mode(model, training=False),
        isolated_random(seed, device),
        torch.no_grad(),
        interruptible(),
    ):
        feed = as_feed(data, options)
        for found in feed.epoch(0, 0):
            safe_point()
            batch = moved(found, device)
            outputs, value = objective.outputs_and_value(model, batch)
            size = objective.loss.num_samples(outputs)
            total += float(value) * (1 if objective.loss.summed else size)
            right, known = _right(outputs, batch[1])
            hits, labels, count = hits + right, labels + known, count + size
            batches += 1
    return Evaluation(
        loss=total / count,
        accuracy=hits / labels if labels else None,
        num_samples=count,
        convention={
            "model": model_in_words(model),
            "data": feed.description,
            "loss": objective.description,
            "statistics": _statistics(model),
            "samples": f"{count} in {batches} batch{'es' if batches > 1 else ''}",
            "seed": seed,
            "device": str(device),
        },
    )


def _statistics(model: nn.Module) -> str:
    """What batch norm did: in evaluation mode layers that store nothing use the batch's own."""
    layers = coupling_layers(model)
    bare = [name for name, layer in layers.items() if getattr(layer, "running_mean", 0) is None]
    own = f"; statistics of the batch in {', '.join(bare)}, which stores none" if bare else ""
    return in_words(model, "running") + own


def _right(outputs: Any, targets: Any) -> tuple[int, int]:
    """Right answers and number of answers; (0, 0) where the targets are no classes."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.ndim < 2:
        return 0, 0
    if targets.shape == outputs.shape and _one_hot(targets):
        targets = targets.argmax(1)
    chosen = outputs.argmax(1)
    if targets.is_floating_point() or targets.shape != chosen.shape:
        return 0, 0
    return int((chosen == targets).sum()), targets.numel()


def _one_hot(targets: Tensor) -> bool:
    bits = (targets == 0) | (targets == 1)
    return targets.shape[1] > 1 and bool(bits.all()) and bool((targets.sum(1) == 1).all())
