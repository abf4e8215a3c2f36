"""The only reader of data: whatever a user calls data becomes batches in a seeded order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, TensorDataset

from normscope.data import Batches, DataSet, StreamedData, load_data
from normscope.errors import InputError
from normscope.messages import kind_of
from normscope.subject.batch import plain
from normscope.subject.reading import Listed, Reading, Source
from normscope.subject.sources import Loaded, Replayed, Rows, Samples, Streamed


def as_source(data: Any, reading: Reading) -> Source:
    """The batches that ``data`` means: the same for every function of the library.

    Args:
        data: the name of a data set, a ``DataSet`` or its batches, a pair of tensors (a data set of
            rows), a torch ``Dataset`` of samples, one dict (one batch), or anything that gives
            batches: a DataLoader, a list, a generator.
        reading: how it is read.
    """
    if isinstance(data, Source):
        return data
    source = _source(load_data(data) if isinstance(data, str) else data, reading)
    if source.own_batches and reading.batch_size is not None:
        raise InputError(
            f"batch_size={reading.batch_size} cannot be set here: {kind_of(data)} brings its own "
            "batches. Set it there, or pass a data set or a pair of tensors."
        )
    return source


def _source(data: Any, reading: Reading) -> Source:
    if isinstance(data, Batches):
        return _own_batches(data, reading)
    if isinstance(data, DataSet):
        return _rows(data, data.labels, reading, repr(data))
    if reading.augment is not None:
        raise InputError("augment= works on a DataSet. Wrap the tensors: DataSet(x, labels).")
    if isinstance(data, TensorDataset):
        return Rows(data.tensors, reading)
    if isinstance(data, Dataset) or hasattr(data, "column_names"):  # that of Hugging Face
        return Samples(data, reading)
    if isinstance(data, Mapping):
        return Listed([data], reading)
    if _is_pair(data, reading):
        return Rows(tuple(data), reading)
    if isinstance(data, tuple) and len(data) > 2 and all(isinstance(t, Tensor) for t in data):
        raise InputError(
            f"data is a tuple of {len(data)} tensors. Write several inputs as ((first, second), "
            "targets), and several batches as a list."
        )
    if isinstance(data, Tensor | np.ndarray) or not isinstance(data, Iterable):
        raise InputError(
            "data must be a loader, a torch Dataset, a pair (inputs, targets), a DataSet or the "
            f"name of one. Got {kind_of(data)}{_hint(data)}"
        )
    return Listed(data, reading) if isinstance(data, list | tuple) else Loaded(data, reading)


def _hint(data: Any) -> str:
    called = callable(data) and not isinstance(data, Tensor)
    return ": call it." if called else "; inputs without targets are (inputs, None)."


def repeatable(data: Any, num_batches: int | None = None) -> Any:
    """Data that can be read many times: of what can be read only once, its first batches."""
    if isinstance(data, str):
        return load_data(data)
    return Replayed(data, num_batches) if isinstance(data, Iterator) else data


def _rows(data: DataSet, targets: Tensor, reading: Reading, words: str) -> Rows:
    kind = Streamed if isinstance(data, StreamedData) else Rows
    return kind((data.images, targets), reading, words)


def _own_batches(batches: Batches, reading: Reading) -> Source:
    """The batches that ``DataSet.batches`` made, as a loader's."""
    own = replace(
        reading,
        batch_size=batches.batch_size,
        seed=batches.seed,
        shuffle=batches.shuffle,
        drop_last=batches.drop_last,
        augment=batches.augment,
    )
    data = batches.data
    augment = getattr(batches.augment, "__qualname__", batches.augment)
    words = (
        f"{data!r} in batches of {batches.batch_size}, seed {batches.seed}, shuffle "
        f"{batches.shuffle}, drop_last {batches.drop_last}, augment {augment}"
    )
    made = _rows(data, data.one_hot() if batches.one_hot else data.labels, own, words)
    made.own_batches = True
    return made


def _is_pair(data: Any, reading: Reading) -> bool:
    """Whether ``data`` is (inputs, targets) with one row per sample, not two batches."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    first, second = data
    if isinstance(first, Tensor | np.ndarray) and isinstance(second, Tensor | np.ndarray | None):
        return True
    if isinstance(data, list) or all(_is_batch(part) for part in data):
        return False
    return reading.pairs or not all(isinstance(part, Mapping) for part in data)


def _is_batch(part: Any) -> bool:
    """Whether ``part`` looks like (inputs, labels), so that a tuple of two is two batches."""
    if not isinstance(part, tuple | list) or len(part) != 2:
        return False
    leaves = pytree.tree_leaves(plain(part))
    labels = isinstance(leaves[-1], Tensor) and not leaves[-1].is_floating_point()
    return labels and all(isinstance(leaf, Tensor) for leaf in leaves)
