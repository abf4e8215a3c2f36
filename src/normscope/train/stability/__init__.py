"""The largest learning rate a network bears, found by training copies of it."""

from normscope.train.stability.limit import max_stable_lr

__all__ = ["max_stable_lr"]
