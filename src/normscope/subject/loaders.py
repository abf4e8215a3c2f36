"""The random generators that a user's loader owns or draws from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from normscope.errors import InputError, NormscopeError
from normscope.messages import failure
from normscope.subject.random import random_state, set_random_state

__all__ = ["items_of", "kept_generators", "loader_generators", "reading"]


def items_of(loader: Iterable[Any]) -> Iterator[Any]:
    """The items of a user's loader; what it raises is told from what a model raises."""
    count = 0
    try:
        for item in loader:
            yield item
            count += 1
    except (NormscopeError, MemoryError):
        raise
    except Exception as error:
        where = "its first batch" if count == 0 else f"batch {count}"
        raise InputError(
            f"The loader failed at {where}: {failure(error)}. Iterate over it once without "
            "normscope to see the whole traceback."
        ) from error


def loader_generators(loader: Any) -> list[torch.Generator]:
    """Generators of a DataLoader and its samplers, each once; none of anything else."""
    if not isinstance(loader, DataLoader):
        return []
    batches = loader.batch_sampler
    owners = [loader, loader.sampler, batches, getattr(batches, "sampler", None)]
    found = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
    return list(unique.values())


@contextlib.contextmanager
def kept_generators(loader: Any) -> Iterator[None]:
    """They are afterwards where they were: a look at the data does not change what comes next."""
    kept = [(generator, generator.get_state()) for generator in loader_generators(loader)]
    try:
        yield
    finally:
        for generator, state in kept:
            generator.set_state(state)


@contextlib.contextmanager
def reading(loader: Any, device: torch.device) -> Iterator[None]:
    """While a loader is read: the global generators, and its own, are afterwards as before.

    A generator may be suspended in it, so that it does not hold signals back.
    """
    before = random_state(device)
    try:
        with kept_generators(loader):
            yield
    finally:
        set_random_state(before, device)
