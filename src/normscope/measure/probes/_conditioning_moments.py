"""Second moments as plain sums, for those that are not centred."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["RawMoment", "add_gram"]

STRIPS = 8  # at most: only the upper triangle is computed, strip by strip
STRIP = 96  # least width of a strip: thinner ones are slower than what they save


class RawMoment:
    """E[v v^T] over rows, summed over batches in float64.

    Nothing is subtracted, so nothing cancels; ``SecondMoment`` is for covariances.

    Attributes:
        count: rows seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (..., d)."""
        # Channels first: maps then keep their order in memory, and sequences are only a view.
        columns = rows.movedim(-1, 0).reshape(rows.shape[-1], -1).to(torch.float64)
        if self.count == 0:
            size = len(columns)
            self._sum = torch.zeros(size, size, dtype=torch.float64, device=rows.device)
        add_gram(self._sum, columns)
        self.count += columns.shape[1]

    def add_sum(self, gram: Tensor, count: int) -> None:
        """Take in the sum of v v^T over ``count`` rows."""
        self._sum = gram if self.count == 0 else self._sum + gram
        self.count += count

    def matrix(self, *, centred: bool = False) -> Tensor:
        """E[v v^T], (d, d)."""
        assert not centred
        upper = self._sum.triu() / self.count
        return upper + upper.triu(1).T


def add_gram(total: Tensor, columns: Tensor) -> None:
    """Add V V^T for V (d, n), on and above the diagonal (by strips, so a little below too)."""
    size = len(total)
    step = max(STRIP, -(-size // STRIPS))
    for start in range(0, size, step):
        stop = min(start + step, size)
        total[start:stop, start:].addmm_(columns[start:stop], columns[start:].T)
