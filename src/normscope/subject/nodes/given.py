"""A module and a batch of its data, as the theory takes both."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from normscope.errors import InputError
from normscope.subject.batch import float_leaves
from normscope.subject.nodes.reading import ModuleNodes, module_nodes
from normscope.subject.parameters import Selection
from normscope.subject.problem import as_problem, graph_of
from normscope.subject.statistics import check_statistics, coupling_layers


def nodes_and_data(
    model: nn.Module,
    data: Any,
    *,
    samples: int | None = None,
    parameters: Selection = None,
    statistics: str = "batch",
    seed: int = 0,
) -> tuple[ModuleNodes, NDArray[np.float64]]:
    """The nodes of a module, and the first batch of its data: (samples, channels, sides).

    Args:
        model: any network; left as it is.
        data: whatever a measurement takes: a loader, a data set, a pair (inputs, targets).
        samples: size of the batch, of data that has no batches of its own; None is 128.
        parameters: those that F is taken over; None for all.
        statistics: what batch norm does: ``"batch"``, ``"frozen"`` or ``"running"``.
        seed: seed of the order of the data.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> read, x = nodes_and_data(net, (torch.ones(5, 3, 2, 2), None))
        >>> x.shape, len(read.graph.nodes)
        ((5, 12), 4)
    """
    problem = as_problem(model, data, batch_size=samples, seed=seed, required=False)
    model = problem.model
    check_statistics(model, statistics)
    (batch,) = problem.source.stream(1)
    leaves = float_leaves(batch.inputs)
    if len(leaves) != 1:
        raise InputError(
            f"A batch has {len(leaves)} floating-point inputs. The theory is about networks of "
            "one; measure this one instead (fisher, top_eigenvalues)."
        )
    coupled = coupling_layers(model)
    if batch.size < 2 and coupled and statistics != "running":
        raise InputError(
            f"The batch has one sample, but {next(iter(coupled))!r} normalizes over the batch: its "
            "statistics need two samples or more. Use larger batches, or statistics='running'."
        )
    graph = graph_of(problem, batch)
    read = module_nodes(
        model, batch.inputs, parameters=parameters, statistics=statistics, graph=graph
    )
    return read, read.arranged(leaves[0].detach().double().cpu().numpy())
