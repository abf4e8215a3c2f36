"""One record of one forward pass, and the structure of the network that it shows."""

from normscope.subject.graph.examples import graph_on
from normscope.subject.graph.graph import Graph, Layer
from normscope.subject.graph.reading import read_graph
from normscope.subject.graph.steps import DROPS, Step, called_activation, steps_of

__all__ = [
    "DROPS",
    "Graph",
    "Layer",
    "Step",
    "called_activation",
    "graph_on",
    "read_graph",
    "steps_of",
]
