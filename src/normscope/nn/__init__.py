"""Real layers and networks: norms, builders, the papers' architectures."""

from normscope.nn.build import build
from normscope.nn.init import INITS, gaussian, initialize
from normscope.nn.norm import (
    NORMS,
    BatchNorm,
    GroupNorm,
    LayerNorm,
    PopulationNorm,
    PopulationRefresher,
    RMSNorm,
    make_norm,
    norm_after,
    refresh_population,
    unit_weights,
)
from normscope.nn.zoo import ZOO, Design, network

__all__ = [
    "INITS",
    "NORMS",
    "ZOO",
    "BatchNorm",
    "Design",
    "GroupNorm",
    "LayerNorm",
    "PopulationNorm",
    "PopulationRefresher",
    "RMSNorm",
    "build",
    "gaussian",
    "initialize",
    "make_norm",
    "network",
    "norm_after",
    "refresh_population",
    "unit_weights",
]
