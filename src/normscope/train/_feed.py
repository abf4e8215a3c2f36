"""Where a training gets its batches from, epoch after epoch, from any point on."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.data import Batches, DataSet, batch_order, load_data
from normscope.errors import InputError
from normscope.messages import kind_of
from normscope.subject.loaders import items_of, loader_generators

__all__ = ["Feed", "FeedOptions", "as_feed"]


@dataclass(frozen=True)
class FeedOptions:
    """How the batches of data that lie in memory are made; a loader brings its own."""

    batch_size: int | None = None
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    augment: Callable[[Tensor, int], Tensor] | None = None
    one_hot: bool = False
    dtype: torch.dtype | None = None
    default_size: int = 128

    @property
    def size(self) -> int:
        """The batch size."""
        return self.default_size if self.batch_size is None else self.batch_size


class Feed(ABC):
    """Batches, epoch after epoch.

    Attributes:
        description: the data in words.
        per_epoch: batches in an epoch; None if that is not known.
        own_batches: the batches are made elsewhere, by a loader.
        generators: random generators of its own whose state a checkpoint must keep.
    """

    description: str
    per_epoch: int | None
    own_batches: bool
    generators: list[torch.Generator]

    @abstractmethod
    def epoch(self, index: int, start: int) -> Iterator[Any]:
        """The batches of epoch ``index`` from batch ``start`` on."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A checksum of the data, empty if it cannot be had without a pass over a loader."""

    @abstractmethod
    def smallest(self) -> Any:
        """The smallest batch that will come, or None if that is not known."""


class BatchesFeed(Feed):
    """The :class:`Batches` of a data set: the order is a function of seed and epoch."""

    def __init__(self, batches: Batches, options: FeedOptions, *, own_batches: bool) -> None:
        data = batches.data.to(dtype=options.dtype)
        one_hot = batches.one_hot or options.one_hot
        self._batches = dataclasses.replace(batches, data=data, one_hot=one_hot)
        self.own_batches = own_batches
        self.description = repr(data) + (_in_words(batches) if own_batches else "")
        self.per_epoch = len(self._batches)
        self.generators = []

    def epoch(self, index: int, start: int) -> Iterator[Any]:
        batches: Batches = self._batches.at(index)
        return (batches[i] for i in range(start, len(batches)))

    def fingerprint(self) -> str:
        data = self._batches.data
        return _checksum([data.images, data.labels])

    def smallest(self) -> Any:
        return self._batches[len(self._batches) - 1]


class TensorFeed(Feed):
    """A pair (inputs, targets) of tensors or nested structures with one row per sample."""

    own_batches = False

    def __init__(self, pair: Any, options: FeedOptions) -> None:
        if options.augment is not None:
            raise InputError("augment= works on a DataSet. Wrap the tensors: DataSet(x, labels).")
        self._pair = pytree.tree_map(lambda leaf: _typed(_tensor(leaf), options), tuple(pair))
        self._options = options
        rows = {len(leaf) if leaf.ndim else 0 for leaf in _tensors(self._pair)}
        if len(rows) != 1 or 0 in rows:
            raise InputError(
                f"Inputs and targets must have one row per sample, and at least one. Got first "
                f"axes of length {sorted(rows)}."
            )
        self._rows = rows.pop()
        _check_finite(self._pair, "the data")
        self.per_epoch = len(self._order(0))
        self.description = f"{self._rows} samples, {_shapes(self._pair)}"
        self.generators = []

    def _order(self, epoch: int) -> tuple[Tensor, ...]:
        o = self._options
        return batch_order(
            self._rows, o.size, seed=o.seed, epoch=epoch, shuffle=o.shuffle, drop_last=o.drop_last
        )

    def _batch(self, rows: Tensor) -> Any:
        return pytree.tree_map(lambda t: t[rows.to(t.device)], self._pair)

    def epoch(self, index: int, start: int) -> Iterator[Any]:
        return (self._batch(rows) for rows in self._order(index)[start:])

    def fingerprint(self) -> str:
        return _checksum(_tensors(self._pair))

    def smallest(self) -> Any:
        return self._batch(self._order(0)[-1])


class LoaderFeed(Feed):
    """Anything that can be iterated over again and again: a DataLoader, a list of batches.

    A resumed epoch is iterated from its beginning, with the random state it began with, and the
    batches already used are passed over: the order comes out the same if it is drawn from torch's
    generators in this process. Numbers take the model's floating-point type.
    """

    own_batches = True

    def __init__(self, loader: Iterable[Any], options: FeedOptions) -> None:
        self._loader, self._options = loader, options
        self.per_epoch = _length(loader)
        self.description = f"{type(loader).__name__}, {self.per_epoch or 'unknown'} batches"
        self.generators = loader_generators(loader)

    def epoch(self, index: int, start: int) -> Iterator[Any]:
        batches = items_of(self._loader)
        for _ in itertools.islice(batches, start):
            pass
        return self._checked(batches, index, start)

    def _checked(self, batches: Iterator[Any], epoch: int, start: int) -> Iterator[Any]:
        count = start
        for count, batch in enumerate(batches, start + 1):
            _check_finite(batch, f"batch {count - 1} of epoch {epoch}")
            yield pytree.tree_map(lambda leaf: _typed(_tensor(leaf), self._options), batch)
        if count == 0:
            raise InputError(
                f"The loader gave no batch in epoch {epoch}: it is empty, or was already used up "
                "(a generator gives its batches once). Pass a list of batches or a DataLoader."
            )

    def fingerprint(self) -> str:
        return ""

    def smallest(self) -> Any:
        return None


def as_feed(data: Any, options: FeedOptions) -> Feed:
    """The feed that a name, a data set, a pair of tensors or a loader means."""
    if isinstance(data, str):
        data = load_data(data)
    if isinstance(data, Batches):
        return BatchesFeed(data, options, own_batches=True)
    if isinstance(data, DataSet):
        return BatchesFeed(_batches(data, options), options, own_batches=False)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor | np.ndarray):
        return TensorFeed(data, options)
    if isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | dict):
        return LoaderFeed(data, options)
    raise InputError(
        "data must be the name of a data set, a DataSet, a pair (inputs, targets) or a loader of "
        f"batches. Got {kind_of(data)}."
    )


def _batches(data: DataSet, options: FeedOptions) -> Batches:
    return data.batches(
        options.size,
        seed=options.seed,
        shuffle=options.shuffle,
        drop_last=options.drop_last,
        augment=options.augment,
    )


def _in_words(batches: Batches) -> str:
    augment = getattr(batches.augment, "__qualname__", batches.augment)
    return (
        f" in batches of {batches.batch_size}, seed {batches.seed}, shuffle {batches.shuffle}, "
        f"drop_last {batches.drop_last}, augment {augment}"
    )


def _length(loader: Iterable[Any]) -> int | None:
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over a stream has __len__ and cannot tell
        return None


def _tensor(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _typed(leaf: Any, options: FeedOptions) -> Any:
    """Numbers in the model's floating-point type: numpy's default is not torch's."""
    real = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(options.dtype) if real and options.dtype else leaf


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _check_finite(tree: Any, where: str) -> None:
    for leaf in _tensors(pytree.tree_map(_tensor, tree)):
        if not leaf.is_floating_point() or bool(torch.isfinite(leaf.sum())):
            continue
        bad = (~leaf.isfinite()).nonzero()
        if len(bad):
            raise InputError(
                f"In {where} a tensor of shape {tuple(leaf.shape)} holds NaN or infinity, the "
                f"first in sample {int(bad[0][0]) if leaf.ndim else 0}. One such value makes every "
                "weight NaN. Remove or repair these samples."
            )


def _shapes(tree: Any) -> str:
    return " and ".join(str(tuple(t.shape[1:])) for t in _tensors(tree))


def _checksum(tensors: list[Tensor]) -> str:
    value = 0
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        value = zlib.crc32(flat.view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
