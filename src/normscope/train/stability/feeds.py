"""Data that every trial reads anew, unchanged and in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.data import load_data
from normscope.errors import InputError
from normscope.subject import loaders
from normscope.train._feed import Feed, FeedOptions, LoaderFeed, as_feed
from normscope.train._objective import LossObjective, Objective, floating_dtype

__all__ = ["batches", "kept_generators", "repeatable"]


class ClonedBatches:
    """A loader whose batches are copies: a layer that works in place must not reach the user's."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, batch)

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError("the loader has no length")
        return len(self.loader)


def repeatable(data: Any) -> Any:
    """The data in a form that many trainings can read: loaded once, loaders with copied batches."""
    if isinstance(data, str):
        return load_data(data)
    if isinstance(data, Iterator):
        raise InputError(
            f"data is a {type(data).__name__}, which gives its batches once, but every trial needs "
            "them again. Pass a list of batches, a DataLoader, or a pair of tensors."
        )
    if not isinstance(as_feed(data, FeedOptions()), LoaderFeed):
        return data
    # Settings name a loader by its class, which should be the user's.
    return type(type(data).__name__, (ClonedBatches,), {})(data)


def kept_generators(data: Any) -> AbstractContextManager[None]:
    """Random generators that a loader owns are afterwards where they were."""
    return loaders.kept_generators(data.loader if isinstance(data, ClonedBatches) else data)


def batches(
    data: Any, model: nn.Module, objective: Objective, *, batch_size: int | None, seed: int
) -> Iterator[Any]:
    """The batches that ``fit`` trains on, epoch after epoch."""
    options = FeedOptions(
        batch_size=batch_size,
        seed=seed,
        one_hot=isinstance(objective, LossObjective) and objective.one_hot,
        dtype=floating_dtype(model),
    )
    feed: Feed = as_feed(data, options)
    epoch = 0
    while True:
        yield from feed.epoch(epoch, 0)
        epoch += 1
