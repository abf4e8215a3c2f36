"""How each kind of node transforms K and Theta."""

from normscope.theory.graph.rules import layers as layers
from normscope.theory.graph.rules import norms as norms
from normscope.theory.graph.rules import pooling as pooling
from normscope.theory.graph.rules import streams as streams
from normscope.theory.graph.rules.registry import Run as Run
from normscope.theory.graph.rules.registry import merged as merged
from normscope.theory.graph.rules.registry import register_node as register_node
from normscope.theory.graph.rules.registry import rule_of as rule_of
