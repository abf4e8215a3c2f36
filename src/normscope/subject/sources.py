"""Where batches come from: rows of tensors, samples of a data set, or a user's loader."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, IterableDataset

from normscope.data import StreamedImages, batch_order, checksum
from normscope.errors import InputError, NormscopeError, out_of_memory
from normscope.messages import failure, kind_of
from normscope.seeds import child_seed
from normscope.subject.batch import Batch, check_finite, checked_batch, plain
from normscope.subject.process import (
    loader_generators,
    read_generators,
    reseed,
    write_generators,
)
from normscope.subject.reading import NO_BATCHES, Reading, Source

CPU = torch.device("cpu")  # loaders draw there


class Rows(Source):
    """Tensors of one row per sample, in any nested structure, such as (inputs, targets)."""

    checked = True

    def __init__(self, tree: Any, reading: Reading, description: str = "") -> None:
        super().__init__(reading)
        self._tree = plain(tree)
        leaves = [leaf for leaf in pytree.tree_leaves(self._tree) if leaf is not None]
        other = next((leaf for leaf in leaves if not isinstance(leaf, Tensor)), None)
        if other is not None or not leaves:
            raise InputError(
                "A pair of data must be tensors or numpy arrays with one row per sample, or nested "
                f"structures of them. Found {kind_of(other)} in it: use torch.as_tensor, or pass a "
                "list of batches."
            )
        rows = [len(leaf) if leaf.ndim else 0 for leaf in leaves]
        if 0 in rows:
            raise InputError("The data is empty: it must have at least one sample.")
        if len(set(rows)) != 1:
            raise InputError(
                "Inputs and targets must have one row per sample. Got first axes "
                f"of length {' and '.join(map(str, dict.fromkeys(rows)))}. Cut them to the same "
                "samples; two batches without targets are [(first, None), (second, None)]."
            )
        check_finite(self._tree, "the data")
        shapes = " and ".join(str(tuple(t.shape[1:])) for t in leaves)
        self._begin(leaves, description or f"{rows[0]} samples, {shapes}")

    def _begin(self, parts: Sequence[Tensor | StreamedImages], description: str) -> None:
        self._tensors, self._rows, self.description = parts, len(parts[0]), description
        self.per_epoch = self._limited(len(self._order(0)))

    def _order(self, epoch: int) -> tuple[Tensor, ...]:
        r = self.reading
        return batch_order(
            self._rows, r.size, seed=r.seed, epoch=epoch, shuffle=r.shuffle, drop_last=r.drop_last
        )

    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """The rows of each batch."""
        for place, rows in enumerate(self._order(epoch)[start:], start):
            yield self._item(rows, epoch, place)

    def _item(self, rows: Tensor, epoch: int, place: int) -> Any:
        item = pytree.tree_map(lambda t: None if t is None else t[rows.to(t.device)], self._tree)
        augment = self.reading.augment
        if augment is None:
            return item
        return augment(item[0], child_seed(self.reading.seed, "batch", epoch, place)), *item[1:]

    def fingerprint(self) -> str:
        """A checksum of all tensors."""
        value = 0
        for tensor in self._tensors:
            value = checksum(tensor, value)
        return f"{value:08x}"

    def smallest(self) -> Batch | None:
        """The last batch of an epoch, which is the smallest."""
        return list(self.epoch(0, (self.per_epoch or 1) - 1))[-1]


class Streamed(Rows):
    """The rows of a ``StreamedData``, which are read from its files as batches need them."""

    def __init__(self, tree: Any, reading: Reading, description: str = "") -> None:
        Source.__init__(self, reading)
        self._tree = tree
        self._begin(tree, description)


class Loaded(Source):
    """Anything that can be iterated over: a DataLoader, a list of batches, a generator.

    A resumed epoch is iterated from its beginning, and the batches already used are passed over.
    """

    own_batches = True

    def __init__(self, loader: Iterable[Any], reading: Reading) -> None:
        super().__init__(reading)
        self.once = isinstance(loader, Iterator)
        self.per_epoch = self._limited(_length(loader))
        self.description = f"{type(loader).__name__}, {_length(loader) or 'unknown'} batches"
        self.generators = loader_generators(loader)
        self._loader = (
            Replayed(loader) if isinstance(loader, Iterator) and reading.again else loader
        )

    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """What the loader gives."""
        seed = child_seed(self.reading.seed, "loader", epoch)
        return itertools.islice(_seeded_items(self._loader, seed), start, None)


class Samples(Loaded):
    """A torch ``Dataset``: its samples, put together to batches as a DataLoader does."""

    own_batches = False

    def __init__(self, dataset: Dataset[Any], reading: Reading) -> None:
        Source.__init__(self, reading)
        self._dataset = dataset
        self._count = None if isinstance(dataset, IterableDataset) else _length(dataset)
        if self._count is None and not isinstance(dataset, IterableDataset):
            raise InputError(
                f"The {type(dataset).__name__} has no length. Give it a __len__, make it an "
                "IterableDataset, or pass a DataLoader of it."
            )
        if self._count == 0:
            raise InputError(NO_BATCHES.format(f": the {type(dataset).__name__} is empty"))
        name = type(dataset).__name__
        self.description = f"{name}, {self._count or 'unknown'} samples"
        if self._count is not None:
            self.per_epoch = self._limited(len(self._order(0)))

    def _order(self, epoch: int) -> list[list[int]]:
        assert self._count is not None
        r = self.reading
        order = batch_order(
            self._count, r.size, seed=r.seed, epoch=epoch, shuffle=r.shuffle, drop_last=r.drop_last
        )
        return [rows.tolist() for rows in order]

    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """The samples in batches of the given size."""
        how: dict[str, Any] = {"batch_size": self.reading.size, "drop_last": self.reading.drop_last}
        if self._count is not None:
            how = {"batch_sampler": self._order(epoch)}
        self._loader = DataLoader(self._dataset, collate_fn=self._together, **how)
        return super().items(epoch, start)

    def smallest(self) -> Batch | None:
        """The last one, if it is of a single sample."""
        last = [] if self._count is None else self._order(0)[-1]
        if len(last) != 1 or self.reading.num_batches is not None:
            return None
        with _Generators(self.reading.seed):
            item = plain(self._together([self._dataset[last[0]]]))
        return checked_batch(item, 0, pairs=self.reading.pairs, dtype=self.reading.dtype)

    def _together(self, samples: list[Any]) -> Any:
        found = pytree.tree_leaves(plain(samples[0]))
        known = Tensor | np.ndarray | np.generic | int | float
        other = [leaf for leaf in found if not isinstance(leaf, known | str)]
        if other or not any(isinstance(leaf, known) for leaf in found):
            raise InputError(
                f"The samples of the {type(self._dataset).__name__} are not tensors: there is "
                f"{kind_of((other or found or [samples[0]])[0])} in them. Give it a transform that "
                "makes tensors, or pass a DataLoader with a collate_fn that does."
            )
        return torch.utils.data.default_collate(samples)


def _seeded_items(loader: Iterable[Any], seed: int) -> Iterator[Any]:
    """The items of a user's loader, read with global generators of their own.

    They start from ``seed`` and run only while an item is made, so that the items do not depend on
    what else draws random numbers, nor the other way round. What the loader raises is told from
    what a model raises.
    """
    generators, count = _Generators(seed), 0
    try:
        with generators:
            iterator = iter(loader)
        while True:
            with generators:
                item = next(iterator)
            yield item
            count += 1
    except StopIteration:
        return
    except Exception as error:
        if isinstance(error, NormscopeError) or out_of_memory(error):
            raise
        where = "its first batch" if count == 0 else f"batch {count}"
        raise InputError(
            f"The loader failed at {where}: {failure(error)}. Iterate over it once without "
            "normscope to see the whole traceback."
        ) from error


class _Generators:
    """The global generators of torch, numpy and Python on a course of their own."""

    def __init__(self, seed: int) -> None:
        self._states: dict[str, Any] | None = None
        self._seed = seed

    def __enter__(self) -> None:
        self._outside = read_generators(CPU)
        if self._states is None:
            reseed(self._seed, CPU)
        else:
            write_generators(self._states, CPU)

    def __exit__(self, *_: object) -> None:
        self._states = read_generators(CPU)
        write_generators(self._outside, CPU)


class Replayed:
    """Items of an iterator, kept as they come so that they can be read again.

    Args:
        iterator: read once, as far as it is asked for.
        limit: items to read at most; None for no limit.
    """

    def __init__(self, iterator: Iterator[Any], limit: int | None = None) -> None:
        self._iterator = itertools.islice(iterator, limit)
        self._kept: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while True:
            if index == len(self._kept):
                try:
                    self._kept.append(next(self._iterator))
                except StopIteration:
                    return
            yield self._kept[index]
            index += 1


def _length(data: Any) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except Exception:  # a loader over a stream has __len__ and cannot tell
        return None
