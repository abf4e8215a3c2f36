"""The largest stable learning rate of a network, found by training copies of it."""

from normscope.train.stability.limit import max_stable_lr

__all__ = ["max_stable_lr"]
