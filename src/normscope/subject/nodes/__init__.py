"""A module as the list of nodes that the theory reads."""

from normscope.subject.nodes.given import nodes_and_data
from normscope.subject.nodes.reading import ModuleNodes, module_nodes
from normscope.subject.nodes.weights import LayerWeights

__all__ = ["LayerWeights", "ModuleNodes", "module_nodes", "nodes_and_data"]
