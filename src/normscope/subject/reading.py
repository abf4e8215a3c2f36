"""How data is read: batches, epoch after epoch, and the first of them for a measurement."""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.checks import checked_count
from normscope.errors import InputError
from normscope.seeds import checked_seed
from normscope.subject.batch import Batch, checked_batch, plain
from normscope.subject.process import kept_generators

BATCH_SIZE = 128  # samples in a batch of data that has no batches of its own
NUM_BATCHES = 8  # batches that a measurement looks at
NO_BATCHES = (
    "There are no batches{}: the loader is empty or was already used up (a generator gives its "
    "batches once). Pass a list of (inputs, targets), or a fresh DataLoader."
)


@dataclass(frozen=True)
class Reading:
    """How data is read.

    Attributes:
        batch_size: samples in a batch, of data that has no batches of its own; None is 128.
        num_batches: number of batches in an epoch; None for all.
        seed: seed for the order, augmentation, and what a loader draws.
        shuffle: whether the order is drawn, anew every epoch.
        drop_last: leave a last batch with fewer samples out of every epoch.
        augment: ``augment(images, seed)`` of the images of a ``DataSet``.
        pairs: batches are (inputs, targets).
        dtype: floating-point type of the model.
        again: several epochs may be read; data that can be read only once is then kept.
        exact: every batch counts, also in a measurement, a last and shorter one too.
    """

    batch_size: int | None = None
    num_batches: int | None = None
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    augment: Callable[[Tensor, int], Tensor] | None = None
    pairs: bool = True
    dtype: torch.dtype | None = None
    again: bool = False
    exact: bool = False

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        for name in ("batch_size", "num_batches"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_count(getattr(self, name), name))

    @property
    def size(self) -> int:
        """Samples in a batch."""
        return BATCH_SIZE if self.batch_size is None else self.batch_size


class Source(ABC):
    """Batches, epoch after epoch; every epoch's order is a function of the seed alone.

    Attributes:
        reading: how it is read.
        description: the data in words.
        per_epoch: batches in an epoch; None if that is not known.
        own_batches: the batches are made elsewhere, by a loader.
        once: it can be read only once.
        checked: its batches are fresh tensors of one structure, known to be finite.
        generators: random generators of its own whose state a checkpoint must keep.
    """

    description: str
    per_epoch: int | None = None
    own_batches = False
    once = False
    checked = False
    generators: Sequence[torch.Generator] = ()

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    @abstractmethod
    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch from number ``start`` on, as the data gives them."""

    def fingerprint(self) -> str:
        """A checksum of the data, empty if it cannot be had without a pass over a loader."""
        return ""

    def smallest(self) -> Batch | None:
        """The smallest batch that will come, or None if that is not known."""
        return None

    def epoch(self, index: int, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of epoch ``index`` from number ``start`` on, checked copies."""
        first, number, reading = "", start, self.reading
        items = itertools.islice(self.items(index, start), self._left(start))
        for number, item in enumerate(items, start + 1):
            if not self.checked:
                item = plain(item)  # noqa: PLW2901
                form = _form(item)
                first = first or form
                _check_form(form, first, number - 1)
            yield checked_batch(
                item, number - 1, pairs=reading.pairs, dtype=reading.dtype, fresh=self.checked
            )
        if number == 0:
            again = f" in epoch {index}" if index else ""
            raise InputError(NO_BATCHES.format(again))

    def _left(self, start: int) -> int | None:
        """How many batches of an epoch are left."""
        limit = self.reading.num_batches
        return None if limit is None else max(limit - start, 0)

    def stream(self, num_batches: int | None) -> Stream:
        """The first batches of the first epoch, for a measurement."""
        count = None if num_batches is None else checked_count(num_batches, "num_batches")
        return Stream(self, count, whole=self.reading.exact)

    def _limited(self, count: int | None) -> int | None:
        limit = self.reading.num_batches
        return count if limit is None or count is None else min(count, limit)


class Stream:
    """The batches of a measurement, read once.

    A last one that is shorter than the others is left out, unless ``whole``.

    Attributes:
        total: number of batches if it is known beforehand.
        sizes: samples in each batch given so far.
        shorter: the last batch, if it was left out.
        left_out: samples in it.
    """

    def __init__(self, source: Source, limit: int | None, *, whole: bool = False) -> None:
        self._source, self._limit, self._whole = source, limit, whole
        self.total = source.per_epoch
        if self.total is not None and limit is not None:
            self.total = min(self.total, limit)
        self.sizes: list[int] = []
        self.shorter: Batch | None = None
        self.left_out = 0

    def __iter__(self) -> Generator[Batch, None, None]:
        """All random generators are as they were once it is used up or closed."""
        largest, ahead = 0, None
        batches = self._source.epoch(0)
        with kept_generators(self._source.generators), contextlib.closing(batches):
            while self._limit is None or len(self.sizes) < self._limit:
                batch, ahead = ahead or next(batches, None), None
                if batch is None:
                    return
                if batch.size < largest and not self._whole:
                    ahead = next(batches, None)
                    if ahead is None:
                        self.shorter, self.left_out = batch, batch.size
                        return
                largest = max(largest, batch.size)
                self.sizes.append(batch.size)
                yield batch

    @property
    def convention(self) -> dict[str, str]:
        """What was read, in words."""
        return sampled(self.sizes, self.left_out)


def sampled(sizes: Sequence[int], left_out: int = 0) -> dict[str, str]:
    """Batches, samples in all, and samples left out, in words."""
    count = f"{len(sizes)} batch{'es' if len(sizes) > 1 else ''}"
    each = "" if len(set(sizes)) == 1 else "up to "
    return {
        "samples": f"{sum(sizes)} in {count}",
        "batches": f"{count} of {each}{_samples(max(sizes))}",
        "left out": f"{_samples(left_out)}: a last, shorter batch" if left_out else "none",
    }


def _samples(number: int) -> str:
    return f"{number} sample{'s' if number != 1 else ''}"


class Listed(Source):
    """A list of batches."""

    own_batches = True

    def __init__(self, batches: Sequence[Any], reading: Reading) -> None:
        super().__init__(reading)
        self._items = batches
        self.per_epoch = self._limited(len(batches))
        self.description = f"{type(batches).__name__}, {len(batches)} batches"

    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches as the loader gives them."""
        return iter(self._items[start:])

    def smallest(self) -> Batch | None:
        """One of a single sample, if there is one."""
        batches = self.epoch(0) if self.reading.pairs else iter(())
        return next((batch for batch in batches if batch.size == 1), None)


class Kept(Listed):
    """Batches that were read before, in memory."""

    def __init__(self, batches: list[Batch], reading: Reading, *, left_out: int = 0) -> None:
        super().__init__(batches, reading)
        self.batches, self.left_out = batches, left_out

    @property
    def convention(self) -> dict[str, str]:
        """What was read, in words."""
        return sampled([b.size for b in self.batches], self.left_out)

    def items(self, epoch: int, start: int) -> Iterator[Any]:
        """As a loader would give them."""
        pairs = self.reading.pairs
        return ((b.inputs, b.targets) if pairs else b.inputs for b in self.batches[start:])

    def stream(self, num_batches: int | None) -> Stream:
        """All that was kept counts."""
        found = Stream(self, num_batches, whole=True)
        found.left_out = self.left_out
        return found


def _check_form(form: str, first: str, number: int) -> None:
    if form != first:
        raise InputError(
            f"Batch {number} has another structure than the first one: {form} after {first}. All "
            "batches must have the same keys and the same number of parts: give the loader a "
            "collate_fn that sees to it."
        )


def _form(tree: Any, *, inside: bool = False) -> str:
    """The structure of a batch in words; lists inside it may be of any length."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k}: {_form(v, inside=True)}" for k, v in tree.items()) + "}"
    if isinstance(tree, list) and inside:
        return f"[{_form(tree[0], inside=True)}, ...]" if tree else "[]"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(_form(part, inside=True) for part in tree) + ")"
    return "number" if isinstance(tree, int | float) else type(tree).__name__
