"""A model with its data and its loss: what every function of (model, data, loss) is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.seeds import checked_seed
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.data import as_source
from normscope.subject.graph import Graph, read_graph
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn, as_objective
from normscope.subject.parameters import computed_dtype, floating_dtype
from normscope.subject.reading import Listed, Reading, Source
from normscope.subject.session import original_module
from normscope.subject.usable import check_usable


@dataclass(frozen=True, eq=False)
class Problem:
    """What is examined.

    Attributes:
        model: as given, without a compiled or parallel wrapper.
        source: the batches.
        objective: the loss and how a batch is run.
        seed: seed for the order of the data, and what the model draws.
        graph: graph of the model, where it was read before.
    """

    model: nn.Module
    source: Source
    objective: Objective
    seed: int
    graph: Graph | None = None


def as_problem(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    *,
    default: str | None = None,
    required: bool = True,
    exact: bool = False,
) -> Problem:
    """Check and gather what a measurement takes; see ``as_source`` and ``as_objective``.

    ``data`` may be a problem that was gathered before: it is taken as it is.
    """
    if isinstance(data, Problem):
        return data
    check_model(model)
    module = original_module(model)
    objective = as_objective(loss, loss_fn, outputs_fn, default=default, required=required)
    dtype = floating_dtype(module)
    reading = Reading(
        batch_size,
        seed=checked_seed(seed),
        pairs=objective.pairs,
        dtype=None if dtype is None else computed_dtype(dtype),
        exact=exact,
    )
    source = Listed(data, reading) if exact and isinstance(data, list) else as_source(data, reading)
    return Problem(module, source, objective, reading.seed)


def graph_of(problem: Problem, batch: Batch) -> Graph:
    """The graph of the model: the one that was read before, or that of a pass of ``batch``."""
    if problem.graph is not None:
        return problem.graph
    model, objective = problem.model, problem.objective
    device, dtype = model_device(model), floating_dtype(model)

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype if leaf.is_floating_point() else None, copy=True)

    with readable_failures(model, batch, "to see its layers"):
        return read_graph(
            model, lambda: objective.run(model, pytree.tree_map(placed, batch.inputs))
        )


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be used, or is spread over several devices."""
    check_usable(model)
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) > 1:
        raise InputError(
            f"The parameters are spread over {', '.join(sorted(devices))}; one vector of all of "
            "them needs one device. Move the model with model.to(device)."
        )


def model_device(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")
