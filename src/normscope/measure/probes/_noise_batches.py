"""Batches drawn anew from the samples of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from normscope.errors import InputError
from normscope.seeds import numpy_generator
from normscope.subject.batch import Batch, joined


class Pool:
    """All samples of some batches, from which batches of any size are drawn.

    Attributes:
        size: samples in it.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._all = joined(list(batches))
        self.size = self._all.size
        if self.size == 0:
            raise InputError(
                "Batches cannot be drawn anew: no tensor in a batch has one row per sample. Put "
                "tensors with the samples on their first axis into the batches."
            )

    def draws(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        """``count`` independent batches of ``size`` different samples each."""
        for index in range(count):
            generator = numpy_generator(seed, "batch", size, index)
            rows = generator.choice(self.size, size, replace=False)
            yield self._all.rows(torch.from_numpy(np.sort(rows)))
