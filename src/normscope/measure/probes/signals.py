"""Activations and gradients of one and the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from normscope.measure.probes.activations import BINS, ActivationProbe
from normscope.measure.probes.gradients import GradientProbe
from normscope.measure.probes.run import Layers, run_probes
from normscope.results.activations import Activations
from normscope.results.gradients import Gradients
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.reading import NUM_BATCHES


class Signals(NamedTuple):
    """What went forward, and what came back."""

    activations: Activations
    gradients: Gradients


def signals(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
    histogram: int = BINS,
    quantities: str | Sequence[str] = ("alignment",),
    class_layer: str | int | None = None,
) -> Signals:
    """``activations`` and ``gradients`` from one forward and one backward pass of each batch.

    With ``quantities=("alignment", "classes")`` these are all of Bjorck's figures of a network at
    initialization. The arguments are those of the two functions.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        >>> found = signals(net, (torch.ones(5, 3).double(), torch.zeros(5).long()),
        ...                 "cross_entropy")
        >>> found.activations, found.gradients
        (Activations(3 signals, 5 samples), Gradients(2 layers, 5 samples))
    """
    forward = ActivationProbe(histogram=histogram)
    backward = GradientProbe(quantities=quantities, class_layer=class_layer)
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed)
    passes = run_probes(problem, [forward, backward], num_batches, statistics, layers)
    return Signals(forward.result(passes), backward.result(passes, 1))
