"""Real layers and networks: norms, builders, transforms, the papers' architectures."""

from normscope.nn.build import build
from normscope.nn.describe import Description, describe
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
from normscope.nn.transforms import (
    TRANSFORMS,
    Transform,
    apply_transform,
    parse_transform,
    undo_transform,
)
from normscope.nn.zoo import ZOO, Design, network, numbered_layers

__all__ = [
    "INITS",
    "NORMS",
    "TRANSFORMS",
    "ZOO",
    "BatchNorm",
    "Description",
    "Design",
    "GroupNorm",
    "LayerNorm",
    "PopulationNorm",
    "PopulationRefresher",
    "RMSNorm",
    "Transform",
    "apply_transform",
    "build",
    "describe",
    "gaussian",
    "initialize",
    "make_norm",
    "network",
    "norm_after",
    "numbered_layers",
    "parse_transform",
    "refresh_population",
    "undo_transform",
    "unit_weights",
]
