"""The layers of a network by number."""

from __future__ import annotations

from typing import Any

from torch import nn

from normscope.subject.graph import Layer, graph_on


def numbered_layers(model: nn.Module, example: Any = None) -> dict[int, tuple[str, nn.Module]]:
    """Layer number -> name and layer, counted from 1 along the longest path to the last layer.

    The number is the depth in the graph: projections on shortcuts, parallel branches and gates are
    no further steps. In a CIFAR ResNet of depth 6n + 2 layer 1 is the stem, block t owns layers 2t
    and 2t + 1, the linear layer is 6n + 2.

    Args:
        model: any network.
        example: a batch of what it takes; None tries inputs of fitting sizes.
    """
    graph = graph_on(model, example)
    path: list[Layer] = [graph.last] if graph.last is not None else []
    for layer in sorted(graph.layers, key=lambda layer: -layer.depth):
        nearer = path and layer.depth < path[-1].depth and not layer.side
        if nearer and graph.flow.depends(path[-1].nodes[0], layer.nodes[0]):
            path.append(layer)
    frames, nodes = graph.record.frames, graph.flow.nodes
    return {x.depth: (x.name, frames[nodes[x.nodes[0]].frame].module) for x in reversed(path)}
