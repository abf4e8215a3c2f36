"""Batches one after the other from whatever a user calls data, never all in memory."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.data import DataSet, load_data
from normscope.errors import InputError
from normscope.messages import kind_of
from normscope.subject.batch import NO_BATCHES, Batch, owned_batch
from normscope.subject.loaders import items_of, reading

__all__ = ["BATCH_SIZE", "Stream", "as_stream", "is_pair"]

BATCH_SIZE = 128  # of a data set, which has none of its own


@dataclass(frozen=True)
class Stream:
    """Checked batches in a fixed order.

    Attributes:
        source: the items; iterating over it may draw from the global generators.
        split: an item is (inputs, targets), not one thing for ``loss_fn``.
        total: number of batches, None if unknown.
    """

    source: Iterable[Any]
    split: bool
    total: int | None

    def batches(self, device: torch.device) -> Generator[Batch, None, None]:
        """The batches; all random generators are as they were once it is used up or closed."""
        seen = False
        with reading(self.source, device):
            for index, item in enumerate(items_of(self.source)):
                seen = True
                yield owned_batch(item, index, split=self.split)
        if not seen:
            raise InputError(NO_BATCHES)


def as_stream(data: Any, *, split: bool, one_hot: bool, dtype: torch.dtype, seed: int) -> Stream:
    """The batches of ``data``.

    Args:
        data: the name of a data set, a ``DataSet``, one pair (inputs, targets), or a loader.
        split: whether items are (inputs, targets).
        one_hot: give the labels of a data set as rows with a single 1.
        dtype: of a data set's images.
        seed: of a data set's order.
    """
    if isinstance(data, str):
        data = load_data(data, "train")
    if isinstance(data, DataSet):
        rest = len(data) % BATCH_SIZE
        data = data.to(dtype=dtype).batches(
            min(BATCH_SIZE, len(data)), seed=seed, one_hot=one_hot, drop_last=rest == 1 < len(data)
        )
    elif is_pair(data):
        data = [data]
    if isinstance(data, Tensor | np.ndarray | dict) or not isinstance(data, Iterable):
        raise InputError(
            "data must be a loader, a pair (inputs, targets), a DataSet or the name of one. Got "
            f"{kind_of(data)}; one batch without targets is [(inputs, None)]."
        )
    return Stream(data, split, len(data) if isinstance(data, Sized) else None)


def is_pair(data: Any) -> bool:
    """Whether ``data`` is one batch (inputs, targets)."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    if isinstance(data, tuple):
        return not any(_is_batch(part) for part in data)
    return isinstance(data[0], Tensor | np.ndarray) and isinstance(data[1], Tensor | np.ndarray)


def _is_batch(part: Any) -> bool:
    """Whether ``part`` looks like (inputs, targets), so that a tuple of two is two batches."""
    leaves = pytree.tree_leaves(part)
    several = isinstance(part, tuple | list) and len(part) == 2
    return several and all(isinstance(leaf, Tensor) for leaf in leaves) and _labels(part[1])


def _labels(tensor: Any) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_floating_point()
