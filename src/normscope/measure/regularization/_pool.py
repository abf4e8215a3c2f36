"""The samples that stand for the population, from whatever holds data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from normscope.checks import checked_count
from normscope.data import Batches, DataSet, load_data
from normscope.errors import InputError
from normscope.messages import kind_of
from normscope.seeds import numpy_generator
from normscope.subject.batch import Batch, materialized
from normscope.subject.loaders import items_of, reading

__all__ = ["pool_of"]

NO_TARGETS = "The loss gap needs targets, and the data have none. Pass pairs (inputs, targets)."
LEAST = 4  # samples: fewer have no fourth moment worth the name


def pool_of(
    data: Any, *, max_samples: int | None, one_hot: bool, dtype: torch.dtype, seed: int
) -> Batch:
    """At most ``max_samples`` samples of ``data`` as one batch of finite tensors.

    Args:
        data: name of a data set, ``DataSet``, its batches, a pair (inputs, targets), or a loader
            of such pairs.
        max_samples: a random subset of data in memory, the first samples of a loader.
        one_hot: labels of a data set become rows with a single 1.
        dtype: of the floating-point inputs.
        seed: of the subset.
    """
    limit = None if max_samples is None else checked_count(max_samples, "max_samples")
    if isinstance(data, str):
        data = load_data(data)
    if isinstance(data, Batches):
        data = data.data
    if isinstance(data, DataSet):
        data = (data.images, data.one_hot() if one_hot else data.labels)
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor | np.ndarray):
        pool = _drawn(materialized([data], split=True)[0], limit, seed)
    elif isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | dict):
        pool = _joined(data, limit)
    else:
        raise InputError(
            "data must be the name of a data set, a DataSet, a pair (inputs, targets) or a loader "
            f"of such pairs. Got {kind_of(data)}."
        )
    _check(pool)
    typed = pytree.tree_map(lambda t: _typed(t, dtype), (pool.inputs, pool.targets))
    return replace(pool, inputs=typed[0], targets=typed[1], weight=1.0)


def _drawn(pool: Batch, limit: int | None, seed: int) -> Batch:
    size = pool.size
    if limit is None or limit >= size:
        return pool
    rows = torch.from_numpy(numpy_generator(seed, "pool").permutation(size)[:limit])
    return _mapped(pool, lambda t: t[rows.to(t.device)], size)


def _joined(loader: Iterable[Any], limit: int | None) -> Batch:
    with reading(loader, torch.device("cpu")):
        parts = materialized(_up_to(loader, limit), split=True)
    if any(part.targets is None for part in parts):
        raise InputError(NO_TARGETS)
    trees = [(part.inputs, part.targets) for part in parts]
    leaves = [pytree.tree_leaves(tree) for tree in trees]
    spec = pytree.tree_structure(trees[0])
    try:
        joined = [torch.cat(same) for same in zip(*leaves, strict=True)]
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"The batches of the loader cannot be joined to one population: {error}. Their samples "
            "must be tensors of one shape."
        ) from None
    inputs, targets = pytree.tree_unflatten(joined, spec)
    pool = Batch(inputs, targets)
    return pool if limit is None else _mapped(pool, lambda t: t[:limit], pool.size)


def _up_to(loader: Iterable[Any], limit: int | None) -> Iterator[Any]:
    """Batches until ``limit`` samples are there."""
    count = 0
    for item in items_of(loader):
        yield item
        count += _rows(item)
        if limit is not None and count >= limit:
            return


def _rows(item: Any) -> int:
    first = next((t for t in pytree.tree_leaves(item) if hasattr(t, "shape") and t.ndim), None)
    return 0 if first is None else len(first)


def _mapped(pool: Batch, change: Callable[[Tensor], Tensor], size: int) -> Batch:
    def part(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == size
        return change(leaf) if whole else leaf

    inputs, targets = pytree.tree_map(part, (pool.inputs, pool.targets))
    return replace(pool, inputs=inputs, targets=targets)


def _check(pool: Batch) -> None:
    if pool.targets is None:
        raise InputError(NO_TARGETS)
    rows = {len(t) for t in pytree.tree_leaves(pool.targets) if isinstance(t, Tensor) and t.ndim}
    if rows != {pool.size}:
        raise InputError(
            f"Inputs and targets must have one row per sample. Got {pool.size} inputs and targets "
            f"of length {sorted(rows)}."
        )
    if pool.size < LEAST:
        raise InputError(
            f"The population has {pool.size} samples, too few for its moments. Pass at least "
            f"{LEAST}, better a thousand."
        )


def _typed(leaf: Any, dtype: torch.dtype) -> Any:
    real = isinstance(leaf, Tensor) and leaf.is_floating_point()
    return leaf.to(dtype) if real else leaf
