"""When a loss counts as diverged, in a training or along a path."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.errors import InputError


@dataclass(frozen=True)
class Divergence:
    r"""The loss is not finite, or above a limit that grows with where it started.

    .. math:: L_t > \max(\text{floor}, \text{factor} \cdot L_0)

    Bjorck et al. (2018) use a mini-batch loss above 1000; deep unnormalized networks can start
    above it, hence the second term.
    """

    floor: float = 1e3
    factor: float = 10.0

    def __post_init__(self) -> None:
        if not (self.floor > 0 and self.factor > 0):
            raise InputError(
                f"Divergence needs a floor and a factor above 0. Got floor={self.floor!r}, "
                f"factor={self.factor!r}."
            )

    def limit(self, initial: float) -> float:
        """The largest loss that is not divergence, for a training that began at ``initial``."""
        return max(self.floor, self.factor * initial) if math.isfinite(initial) else self.floor

    def reason(self, loss: float, initial: float) -> str:
        """Why ``loss`` is divergence, in words; empty if it is not."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        limit = self.limit(initial)
        return f"the loss {loss:.4g} is above {limit:.4g}" if loss > limit else ""
