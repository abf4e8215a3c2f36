"""Images that stay in their files and are read batch by batch."""

from __future__ import annotations

import dataclasses
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.data.dataset import DataSet, check_labels
from normscope.data.standardize import standardized
from normscope.errors import InputError

SAMPLE = 10_000  # images that mean and deviation of streamed data are computed from


class StoredImages(ABC):
    """Images in files: unsigned bytes, read by their positions.

    Attributes:
        shape: (n, channels, height, width).
        key: the files in words that do not depend on the machine, for checksums.
    """

    shape: tuple[int, int, int, int]
    key: str

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions, (len(rows), channels, height, width)."""

    def sample(self, size: int) -> NDArray[np.uint8]:
        """At most ``size`` images, at even distances."""
        count = min(len(self), size)
        return self.read(np.arange(count, dtype=np.int64) * len(self) // count)


@dataclass(frozen=True, eq=False)
class StreamedImages:
    """Standardized images that look like a tensor (n, ...): ``images[rows]`` reads these rows."""

    stored: StoredImages
    maximum: int
    mean: Tensor
    std: Tensor
    flattened: bool = False

    dtype = torch.float32
    device = torch.device("cpu")

    @property
    def shape(self) -> torch.Size:
        """As of a tensor."""
        n, *image = self.stored.shape
        return torch.Size([n, int(np.prod(image))] if self.flattened else [n, *image])

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> Tensor:
        index = rows.numpy() if isinstance(rows, Tensor) else rows
        chosen = np.arange(len(self), dtype=np.int64)[index]
        images = standardized(
            self.stored.read(np.atleast_1d(chosen)), self.maximum, self.mean, self.std
        )
        images = images.flatten(1) if self.flattened else images
        return images if chosen.ndim else images[0]

    def flatten(self, start_dim: int = 1) -> StreamedImages:
        """The same with each image as one vector."""
        assert start_dim == 1
        return dataclasses.replace(self, flattened=True)


@dataclass(frozen=True, eq=False, repr=False)
class StreamedData(DataSet):
    """Images that are read from their files whenever a batch of them is needed.

    Takes the place of a ``DataSet`` everywhere. Only the labels are in memory: ``images`` is not a
    tensor, but ``images[rows]`` is. ``subset(n)`` and ``rows(index)`` read their images and give an
    ordinary ``DataSet``. It is also a map-style data set for torch: a
    ``DataLoader(data, num_workers=8)`` reads images in several processes.
    """

    images: Any

    def __post_init__(self) -> None:
        check_labels(self)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def rows(self, index: Tensor | NDArray[np.int64] | slice) -> DataSet:
        """Some samples, by position, in memory."""
        where = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(DataSet)}
        taken = {"images": self.images[where], "labels": self.labels[where]}
        return DataSet(**{**fields, **taken})

    def to(
        self, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None
    ) -> DataSet:
        """Refused: what is read from files cannot lie on a device."""
        raise InputError(
            f"{self.name!r} is read from its files batch by batch and cannot be moved as a whole. "
            "Batches go to the model's device and type by themselves; data.subset(n) is a part in "
            "memory that can be moved."
        )


def checksum(part: Tensor | StreamedImages, value: int = 0) -> int:
    """A running checksum: of a tensor its values, of streamed images their files and scaling.

    The pixels of streamed images do not enter: that would read all files.
    """
    if isinstance(part, Tensor):
        flat = part.detach().cpu().contiguous().reshape(-1)
        return zlib.crc32(flat.view(torch.uint8).numpy().data, value)
    value = zlib.crc32(f"{part.stored.key} {tuple(part.shape)}".encode(), value)
    return checksum(part.std, checksum(part.mean, value))
