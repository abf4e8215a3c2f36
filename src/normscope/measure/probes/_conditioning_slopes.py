"""What is sent back through a network: slopes of each example's own loss, for chosen labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure.probes.probe import Pass
from normscope.registry import Registry
from normscope.subject.batch import float_leaves
from normscope.subject.losses import Loss, flat
from normscope.subject.roots import OutputRoot

PASSES = 2_000  # backward passes per batch that kind="true" makes without complaint

LABELS = {
    "empirical": "labels of the data (second moment of the gradients, 'empirical Fisher')",
    "sampled": "one label per example drawn from the model (unbiased for the Fisher matrix)",
    "true": "expectation over the model's own labels, exact (Fisher matrix)",
}

Slopes = Iterator[list[Tensor]]
Maker = Callable[[Pass, np.random.Generator], Slopes]


def _empirical(run: Pass, generator: np.random.Generator) -> Slopes:
    if run.targets is None:
        raise InputError(
            "kind='empirical' takes the labels of the data, and the data has none. Pass "
            "(inputs, targets), or kind='sampled' or 'true'."
        )
    slope = run.objective.loss.slope(run.outputs, run.targets)
    yield _shaped(slope * _example_scale(run), run.outputs)


def _sampled(run: Pass, generator: np.random.Generator) -> Slopes:
    loss = run.objective.loss
    loss.check(run.outputs, run.targets)
    with torch.no_grad():
        root = loss.sampled_root(run.outputs, generator)
        columns = root.spread(torch.ones(1, root.size, **_like(run.outputs)))[0]
    yield _shaped(columns * _example_scale(run) ** 0.5, run.outputs)


def _true(run: Pass, generator: np.random.Generator) -> Slopes:
    """Columns of the root S of the Fisher matrix of the outputs, one output entry at a time.

    Where samples do not meet, the same entry of all samples goes back in one pass; where batch
    statistics tie them together, each sample's needs its own.
    """
    loss = run.objective.loss
    loss.check(run.outputs, run.targets)
    with torch.no_grad():
        root = _root(loss, run.outputs)
        slots = _slots(run)
        # Rows of all passes are averaged, and a sum over passes is wanted.
        factor = (len(slots) * _example_scale(run)) ** 0.5
    for slot in slots:
        unit = torch.zeros(1, root.size, **_like(run.outputs))
        unit[0, slot] = factor
        yield _shaped(root.spread(unit)[0].detach(), run.outputs)


def _example_scale(run: Pass) -> float:
    """From the loss of the batch to that of one example: the number of examples, 1 for a sum.

    The loss of an example with several labels is the mean of theirs.
    """
    loss = run.objective.loss
    labels = loss.num_samples(run.outputs) / max(run.batch.size, 1)
    return 1 / (loss.share(run.outputs) * labels)


def _root(loss: Loss, outputs: Any) -> OutputRoot:
    root = loss.root(outputs)
    if root is None:
        raise InputError(
            f"kind='true' needs a loss that names a distribution of labels, and "
            f"{loss.description} names none. Use kind='empirical', or loss='mse' or "
            "'cross_entropy'."
        )
    return root


def _slots(run: Pass) -> list[Tensor]:
    """Entries of the flat outputs that one pass sends back."""
    entries = flat(run.outputs).numel()
    index = torch.arange(entries, device=flat(run.outputs).device)
    slots: list[Tensor] = []
    if run.function.coupled:
        slots = list(index[:, None])
    else:
        for part, leaf in zip(_split(index, run.outputs), float_leaves(run.outputs), strict=True):
            table = part.reshape(leaf.shape[0] if leaf.ndim else 1, -1)
            slots += list(table.T)
    if len(slots) > PASSES:
        tied = " (one per sample and output: batch statistics tie the samples together)"
        raise InputError(
            f"kind='true' needs {len(slots)} backward passes for each batch"
            f"{tied if run.function.coupled else ''}, above {PASSES}. Use kind='sampled', whose "
            "mean is the same, smaller batches, or statistics='frozen'."
        )
    return slots


def _like(outputs: Any) -> dict[str, Any]:
    first = float_leaves(outputs)[0]
    return {"dtype": first.dtype, "device": first.device}


def _split(vector: Tensor, outputs: Any) -> list[Tensor]:
    return list(vector.split_with_sizes([leaf.numel() for leaf in float_leaves(outputs)]))


def _shaped(slope: Tensor, outputs: Any) -> list[Tensor]:
    parts = zip(_split(slope, outputs), float_leaves(outputs), strict=True)
    return [part.reshape(leaf.shape).to(leaf) for part, leaf in parts]


KINDS: Registry[Maker] = Registry(
    "kind of labels", {"empirical": _empirical, "sampled": _sampled, "true": _true}
)
