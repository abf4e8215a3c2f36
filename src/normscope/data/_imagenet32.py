"""The batches of ImageNet at 32 x 32 pixels: pickled tables of bytes, left in their files."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.data._cifar import PIXELS, pickled_batch
from normscope.data.streamed import StoredImages
from normscope.errors import InputError

NEEDLE = 1 << 20  # bytes of an array that are searched for in its file


@dataclass(frozen=True, eq=False)
class Mapped:
    """A table of bytes, (n, 3072), from ``offset`` on in a file."""

    path: Path
    offset: int
    rows: int

    def __len__(self) -> int:
        return self.rows

    def table(self) -> NDArray[np.uint8]:
        """The table, of which only the rows that are looked at are read."""
        return np.memmap(self.path, np.uint8, "r", self.offset, (self.rows, PIXELS))


class BatchImages(StoredImages):
    """The images of several tables, in files or in memory, one after the other."""

    def __init__(self, tables: Sequence[Mapped | NDArray[np.uint8]], key: str) -> None:
        self._tables = tables
        self._ends = np.cumsum([len(table) for table in tables])
        self.shape = (int(self._ends[-1]), 3, 32, 32)
        self.key = key

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions."""
        found = np.empty((len(rows), PIXELS), np.uint8)
        where = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(where):
            part = self._tables[number]
            inside = rows[where == number] - (self._ends[number] - len(part))
            found[where == number] = (part.table() if isinstance(part, Mapped) else part)[inside]
        return found.reshape(-1, *self.shape[1:])


def image_batch(path: Path) -> tuple[Mapped | NDArray[np.uint8], NDArray[np.int64]]:
    """The images of a batch and their labels, 0 to 999 (1 to 1000 in the file)."""
    with path.open("rb") as stream:
        images, labels = pickled_batch(stream, path=path, floats=("mean",))
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            offset = _place(images, content)
    bad = np.flatnonzero((labels < 1) | (labels > 1000))
    if len(bad):
        raise InputError(
            f"{path}: label {labels[bad[0]]} of sample {bad[0]} is out of range ({len(bad)} such "
            "labels). In the published files labels lie in 1..1000. Delete the file and fetch it "
            "again, or correct the labels."
        )
    table = images if offset is None else Mapped(path, offset, len(images))
    return table, labels.astype(np.int64) - 1


def _place(images: NDArray[np.uint8], content: mmap.mmap) -> int | None:
    """Where the bytes of ``images`` lie in the file; None if it holds them in another form."""
    if not images.flags.c_contiguous or not len(images):
        return None
    flat = images.reshape(-1)
    start = content.find(flat[:NEEDLE].tobytes(), 0)
    if start < 0 or start + flat.size > len(content):
        return None
    for first in range(0, flat.size, NEEDLE):  # pieces, so that there is no second copy
        piece = flat[first : first + NEEDLE].tobytes()
        if content[start + first : start + first + len(piece)] != piece:
            return None
    return start
