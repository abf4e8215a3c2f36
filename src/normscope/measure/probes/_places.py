"""Where the calls of a pass stand in the graph of the network."""

from __future__ import annotations

from collections import Counter

from normscope.subject.graph.graph import Graph, Layer
from normscope.subject.graph.record import Key
from normscope.subject.norms import NormCard


class Places:
    """What a graph knows of the calls that are seen when the network runs again.

    Attributes:
        calls: call of a function -> depth of what it gives.
        layers: call of a function -> the layers whose weights act in it.
        frames: (module, number of its call) -> depth of what it gives.
        weights: (parameter, whether it is looked up) -> its layer.
        cards: name -> card of the norms.
    """

    def __init__(self, graph: Graph | None) -> None:
        self.calls: dict[Key, int] = {}
        self.layers: dict[Key, list[Layer]] = {}
        self.frames: dict[tuple[str, int], int] = {}
        self.weights: dict[tuple[str, bool], Layer] = {}
        self.cards: dict[str, NormCard] = {}
        if graph is None:
            return
        record, visits = graph.record, Counter[str]()
        self.calls = graph.calls()
        for node, layer in graph.of_node.items():
            if (call := record.nodes[node].call) >= 0:
                found = self.layers.setdefault(record.calls[call].key, [])
                if layer not in found:
                    found.append(layer)
        for frame in record.frames:
            visits[frame.path] += 1
            depth = max((graph.depth[i] for i in frame.outputs), default=0)
            self.frames[frame.path, visits[frame.path]] = depth
        for layer in graph.layers:
            for name in layer.parameters:
                self.weights.setdefault((name, layer.kind == "embedding"), layer)
        self.cards = {norm.name: norm.card for norm in graph.norms if norm.card is not None}
