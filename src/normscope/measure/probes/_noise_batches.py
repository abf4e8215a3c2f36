"""Batches drawn anew from the samples of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.seeds import numpy_generator
from normscope.subject.batch import Batch

__all__ = ["Pool"]


class Pool:
    """All samples of some batches, from which batches of any size are drawn.

    Attributes:
        size: samples in it.
    """

    def __init__(self, batches: Iterable[Batch]) -> None:
        held = list(batches)
        leaves, self._form = pytree.tree_flatten((held[0].inputs, held[0].targets))
        rows = [pytree.tree_leaves((b.inputs, b.targets)) for b in held]
        self._first = held[0]
        self.size = sum(batch.size for batch in held)
        self._columns: list[Any] = [
            torch.cat([row[i] for row in rows]) if _is_sampled(leaf, held[0].size) else leaf
            for i, leaf in enumerate(leaves)
        ]
        if self.size == 0 or not any(_is_sampled(c, self.size) for c in self._columns):
            raise InputError(
                "Batches cannot be drawn anew: no tensor in a batch has one row per sample. Put "
                "tensors with the samples on their first axis into the batches."
            )

    def draws(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        """``count`` independent batches of ``size`` different samples each."""
        for index in range(count):
            generator = numpy_generator(seed, "batch", size, index)
            rows = generator.choice(self.size, size, replace=False)
            yield self._batch(torch.from_numpy(np.sort(rows)))

    def _batch(self, rows: Tensor) -> Batch:
        leaves = [c[rows.to(c.device)] if _is_sampled(c, self.size) else c for c in self._columns]
        inputs, targets = pytree.tree_unflatten(leaves, self._form)
        return replace(self._first, inputs=inputs, targets=targets, constants=None)


def _is_sampled(leaf: Any, size: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == size
