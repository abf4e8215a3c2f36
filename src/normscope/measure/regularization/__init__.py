"""How strongly batch norm regularizes a network, layer by layer and batch size by batch size."""

from normscope.measure.regularization.measurement import bn_regularization
from normscope.measure.regularization.strength import decay_strengths

__all__ = ["bn_regularization", "decay_strengths"]
