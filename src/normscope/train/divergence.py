"""When a training counts as diverged: the same rule as along a path of a landscape."""

from normscope.measure.divergence import Divergence

__all__ = ["Divergence"]
