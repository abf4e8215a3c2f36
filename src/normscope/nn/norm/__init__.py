"""Normalization layers, right in every derivative."""

from normscope.nn.norm.batch import BatchNorm
from normscope.nn.norm.channel import PARTS, ChannelNorm
from normscope.nn.norm.kinds import NORMS, NormKind, make_norm, named_kind, norm_after
from normscope.nn.norm.population import PopulationNorm, PopulationRefresher, refresh_population
from normscope.nn.norm.sample import GroupNorm, LayerNorm, RMSNorm
from normscope.nn.norm.weight import UnitWeight, unit_weights

__all__ = [
    "NORMS",
    "PARTS",
    "BatchNorm",
    "ChannelNorm",
    "GroupNorm",
    "LayerNorm",
    "NormKind",
    "PopulationNorm",
    "PopulationRefresher",
    "RMSNorm",
    "UnitWeight",
    "make_norm",
    "named_kind",
    "norm_after",
    "refresh_population",
    "unit_weights",
]
