"""Loss and accuracy of a model in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normscope.record import Record
from normscope.subject.batch import readable_failures
from normscope.subject.data import as_source
from normscope.subject.interrupts import interruptible, safe_point
from normscope.subject.losses import right_answers
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn, as_objective
from normscope.subject.problem import check_model, model_device
from normscope.subject.process import isolated_random, measurement
from normscope.subject.reading import Source, sampled
from normscope.subject.statistics import coupling_layers, in_words
from normscope.train.modes import kept_mode
from normscope.train.options import TrainingOptions
from normscope.train.plan import model_in_words


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


@measurement
def evaluate(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """Loss and accuracy in evaluation mode (running statistics, no dropout).

    The model is left as it was found: parameters, buffers, modes and the random generators.

    Args:
        model: any module.
        data: as in ``fit``; a loader is read once.
        loss: as in ``fit``, ``"cross_entropy"`` by default.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; then there is no accuracy, and
            every batch counts by its first axis.
        outputs_fn: as in ``fit``.
        batch_size: samples at a time, 128 by default; a loader keeps its own.
        num_batches: the first so many batches in the order of ``seed``; None for all.
        seed: seed for the order, and a model that draws in evaluation mode too.

    Returns:
        Sums over samples in float64; the last, shorter batch counts by its size.
    """
    check_model(model)
    objective = as_objective(loss, loss_fn, outputs_fn, default="cross_entropy")
    options = TrainingOptions(batch_size=batch_size, num_batches=num_batches, seed=seed, epochs=1)
    return evaluation(model, as_source(data, options.reading(model, objective)), objective, seed)


def evaluation(model: nn.Module, source: Source, objective: Objective, seed: int) -> Evaluation:
    """``evaluate`` with data and loss as they are inside; random generators are the caller's."""
    device = model_device(model)
    total, hits, labels, sizes = 0.0, 0, 0, list[int]()
    with (
        kept_mode(model, training=False),
        isolated_random(seed, device),
        torch.no_grad(),
        interruptible(),
    ):
        for batch in source.epoch(0):
            safe_point()
            with readable_failures(model, batch, f"on batch {len(sizes)}"):
                outputs, targets, value = objective.evaluated(model, batch.to(device))
            known = objective.has_outputs
            size = objective.loss.num_samples(outputs) if known else max(batch.size, 1)
            total += float(value) * (1 if objective.loss.summed else size)
            right, answers = right_answers(outputs, targets)
            hits, labels = hits + right, labels + answers
            sizes.append(size)
    return Evaluation(
        loss=total / sum(sizes),
        accuracy=hits / labels if labels else None,
        num_samples=sum(sizes),
        convention={
            "model": model_in_words(model),
            "data": source.description,
            "loss": objective.loss.description,
            "statistics": _statistics(model),
            "parameters": "none: nothing is differentiated",
            **sampled(sizes),
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
