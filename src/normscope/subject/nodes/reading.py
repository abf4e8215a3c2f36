"""Reading a module as the list of nodes that the theory takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from normscope.errors import InputError, TheoryError
from normscope.record import Record
from normscope.subject.graph import Graph, graph_on
from normscope.subject.nodes.walk import Walk
from normscope.subject.nodes.weights import LayerWeights, ranked
from normscope.subject.parameters import Selection, select_parameters
from normscope.subject.statistics import frozen_norms
from normscope.theory.graph import nodes as theory

SHOWN = 4  # names in one flag


@dataclass(frozen=True, eq=False)
class ModuleNodes(Record):
    """A module as the theory reads it.

    Attributes:
        graph: its nodes.
        weights: variance of each layer's weights, and whether they look like independent draws.
        flags: where the module is not what the theory is about.
        channels_last: whether the last axis of the data holds its channels, not the second.
    """

    graph: theory.Graph
    weights: tuple[LayerWeights, ...]
    flags: tuple[str, ...]
    channels_last: bool = False

    def arranged(self, data: NDArray[Any]) -> NDArray[np.float64]:
        """Samples as the theory takes them: (samples, channels, sides)."""
        x = np.asarray(data, dtype=np.float64)
        if self.channels_last:
            x = np.moveaxis(x, -1, 1)
        size = self.graph.shapes[self.graph.nodes[0].name]
        if math.prod(x.shape[1:]) != math.prod(size):
            raise InputError(
                f"The data has samples of shape {x.shape[1:]}, but the network was read with "
                f"{size}. Pass data of one shape."
            )
        return x.reshape(len(x), *size)


def module_nodes(
    model: nn.Module,
    example: Any,
    *,
    parameters: Selection = None,
    statistics: str = "batch",
    graph: Graph | None = None,
) -> ModuleNodes:
    """Read a module as nodes of the theory, or say which part of it has no rule.

    It is run once on ``example``, in evaluation mode; nothing is changed. Variances are mean
    squares of its own weights.

    Args:
        model: any network.
        example: a batch of what it takes, at least two samples.
        parameters: those that F is taken over, as a measurement takes them; None for all.
        statistics: what batch norm will use: ``"batch"``, ``"frozen"`` or ``"running"``.
        graph: what ``graph_on(model, example)`` gave, if it was read before.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        >>> [type(node).__name__ for node in module_nodes(net, torch.zeros(4, 8)).graph.nodes]
        ['Input', 'Dense', 'BatchNorm', 'Activate', 'Dense']
    """
    read = graph_on(model, example) if graph is None else graph
    names = frozenset(select_parameters(model, parameters).names)
    frozen = frozenset(frozen_norms(model))
    failures: list[TheoryError] = []
    for channels_last in (False, True):
        walk = Walk(model, read, names, frozen)
        try:
            found = walk.run(channels_last=channels_last)
        except TheoryError as error:
            failures.append(error)
            continue
        weights = ranked(walk.weights)
        used = statistics == "running" or bool(frozen)
        flags = (*_flags(weights), *_changed(walk.changed, stored=used), *walk.flags)
        return ModuleNodes(found, weights, flags, channels_last)
    raise failures[0]


def _flags(weights: tuple[LayerWeights, ...]) -> list[str]:
    flags = []
    orthogonal = [read.name for read in weights if read.orthogonal]
    if orthogonal:
        flags.append(
            f"The weights of {_listed(orthogonal)} are orthogonal; the theory takes independent "
            "weights of the same variance."
        )
    for read in weights:
        if read.doubt is not None and not read.orthogonal:
            others = [r.name for r in weights if r.doubt and not r.orthogonal and r is not read]
            also = f" (also those of {_listed(others)})" if others else ""
            flags.append(
                f"The weights of {read.name} look trained{also}: {read.doubt}. The theory is about "
                "independent random weights around zero, as at initialization."
            )
            break
    return flags


def _changed(changed: dict[str, list[str]], *, stored: bool) -> list[str]:
    """What training has made of the norms."""
    flags = []
    if names := changed.get("gamma"):
        flags.append(
            f"gamma of {_listed(names)} differs from channel to channel, as in a trained network; "
            "its root mean square is used."
        )
    if names := changed.get("beta"):
        flags.append(
            f"beta of {_listed(names)} is not 0, as in a trained network; the theory takes 0."
        )
    if stored and (names := changed.get("stored")):
        flags.append(
            f"The stored statistics of {_listed(names)} differ from channel to channel; their "
            "averages are used."
        )
    return flags


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - SHOWN} more layers" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
