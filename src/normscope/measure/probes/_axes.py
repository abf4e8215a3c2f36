"""Which axis of a signal counts the samples: the one that is shorter when fewer are run."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.measure.probes.capture import Capture, Watcher
from normscope.measure.probes.sites import Site
from normscope.subject.batch import Batch
from normscope.subject.functional import ModelFunction
from normscope.subject.graph import Graph

FEW = 2  # samples of the trial pass: batch norm takes no single one


class _Shapes(Watcher):
    def __init__(self) -> None:
        self.turned: dict[str, bool] = {}

    def entering(self, site: Site, x: Tensor) -> None:
        if x.ndim > 2 and (x.shape[0] == FEW) != (x.shape[1] == FEW):
            self.turned[site.name] = x.shape[1] == FEW

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """The axes are those of what went in."""


def positions_first(function: ModelFunction, batch: Batch, graph: Graph | None) -> dict[str, bool]:
    """By site of a signal of three axes or more, from a pass over few samples of ``batch``.

    Empty where no signal has positions, or where the model takes no other number of samples.
    """
    nodes = graph.record.nodes if graph is not None else None
    if batch.size <= FEW or (nodes and all(len(n.shape) < 3 for n in nodes if n.floating)):
        return {}
    watcher = _Shapes()
    try:
        with function.open(), torch.no_grad(), Capture(function.model, watcher, graph):
            function(function.values, batch.part(0, FEW))
    except Exception:
        return {}
    return watcher.turned
