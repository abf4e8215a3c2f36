"""Second moments as plain sums, for those that are not centred."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from normscope.measure.probes.spectra import moment_spectrum, rounding_share
from normscope.results.eigenvalues import MomentSpectrum

STRIPS = 8  # at most: only the upper triangle is computed, strip by strip
FEW = 2  # rows are kept as long as there are at most d / FEW
LARGEST = 4096  # d: eigenvalues of a full matrix of that size take about a minute of one core
STRIP = 96  # least width of a strip: thinner ones are slower than what they save


class RawMoment:
    """E[v v^T] over rows, summed over batches in float64.

    Nothing is subtracted, so nothing cancels; ``SecondMoment`` is for covariances. As long as the
    rows are few against their length d they are kept themselves, and the spectrum is that of the
    smaller Gram matrix; beyond ``LARGEST`` there is no other way.

    Attributes:
        count: rows seen.
        size: d.
    """

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self._few: list[Tensor] = []  # (d, n) each
        self._sum: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Take in rows (..., d)."""
        # Channels first: maps then keep their order in memory, and sequences are only a view.
        columns = rows.movedim(-1, 0).reshape(rows.shape[-1], -1).to(torch.float64)
        self.size = len(columns)
        self.count += columns.shape[1]
        if self._sum is None and self.count <= self.size // FEW:
            self._few.append(columns)
            return
        self._few.append(columns)
        self._settle()

    def add_sum(self, gram: Tensor, count: int) -> None:
        """Take in the sum of v v^T over ``count`` rows."""
        self.size = len(gram)
        if self._few:
            self._settle()
        self._sum = gram if self._sum is None else self._sum + gram
        self.count += count

    @property
    def too_large(self) -> bool:
        """Whether the matrix is too large to be diagonalized in reasonable time."""
        return self.size > LARGEST and self.count > self.size // FEW

    def _settle(self) -> None:
        """Put the rows that were kept into the sum; of a matrix too large keep nothing."""
        kept, self._few = self._few, []
        if self.too_large:
            return
        if self._sum is None:
            shape = (self.size, self.size)
            self._sum = torch.zeros(shape, dtype=torch.float64, device=kept[0].device)
        for columns in kept:
            add_gram(self._sum, columns)

    def matrix(self, *, centred: bool = False) -> Tensor:
        """E[v v^T], (d, d)."""
        assert not centred
        if self._few:
            self._settle()
        assert self._sum is not None
        upper = self._sum.triu() / self.count
        return upper + upper.triu(1).T

    def spectrum(self, signals: torch.dtype) -> MomentSpectrum:
        """All d eigenvalues; ``signals`` is the type in which the rows were computed."""
        if not self._few:
            return moment_spectrum(self.matrix(), signals=signals)
        columns = torch.cat(self._few, dim=1)
        values = torch.linalg.eigvalsh(columns.T @ columns / self.count).flip(0).cpu().numpy()
        padded = np.concatenate([values, np.zeros(self.size - len(values))])
        return MomentSpectrum.of(padded, rtol=rounding_share(self.size, signals))


def add_gram(total: Tensor, columns: Tensor) -> None:
    """Add V V^T for V (d, n), on and above the diagonal (by strips, so a little below too)."""
    size = len(total)
    step = max(STRIP, -(-size // STRIPS))
    for start in range(0, size, step):
        stop = min(start + step, size)
        total[start:stop, start:].addmm_(columns[start:stop], columns[start:].T)
