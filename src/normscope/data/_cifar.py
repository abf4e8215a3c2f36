"""CIFAR-10 records: one label byte, then 1024 red, 1024 green and 1024 blue bytes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from normscope.data._pickle import unpickled
from normscope.errors import InputError

PIXELS = 3 * 32 * 32
RECORD = 1 + PIXELS


def binary_records(content: bytes, *, path: Path) -> NDArray[np.uint8]:
    """The records of the binary layout, (n, 3073)."""
    if not content or len(content) % RECORD:
        raise InputError(
            f"{path} is truncated or not CIFAR-10: {len(content)} bytes are no whole number of "
            f"{RECORD}-byte records (the published files have 10000). Delete it and fetch it again."
        )
    return np.frombuffer(content, np.uint8).reshape(-1, RECORD)


def pickled_records(content: bytes, *, path: Path) -> NDArray[np.uint8]:
    """The same records, (n, 3073), read from the pickled layout."""
    images, labels = pickled_batch(content, path=path)
    _refuse_large(labels, path)
    return np.concatenate([labels.astype(np.uint8)[:, None], images], axis=1)


def pickled_batch(
    content: bytes | BinaryIO, *, path: Path, floats: Collection[str] = ()
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images, (n, 3072), and labels, (n,), of a pickled batch of images of 32 x 32 pixels."""
    batch = unpickled(content, path=path, floats=floats)
    images, labels = _entry(batch, "data", path), _entry(batch, "labels", path)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2:
        raise InputError(f"{path}: 'data' must be a table of bytes, found {_shown(images)}.")
    try:
        table = np.asarray(labels)
    except ValueError:  # rows of unequal length
        table = np.empty(0, object)
    if images.shape[1] != PIXELS or table.shape != images.shape[:1] or table.dtype.kind not in "iu":
        raise InputError(
            f"{path}: 'data' must have {PIXELS} columns and 'labels' one integer per row. Found "
            f"{_shown(images)} and {_shown(table)}. Delete the file and fetch it again."
        )
    return images, table


def _entry(batch: dict[str, Any], key: str, path: Path) -> Any:
    if key not in batch:
        raise InputError(
            f"{path} has no entry {key!r}; found {', '.join(sorted(batch)) or 'none'}. It is not a "
            "batch of images. Delete it and fetch it again."
        )
    return batch[key]


def _refuse_large(labels: NDArray[Any], path: Path) -> None:
    """A label that does not fit one byte would come out as another label."""
    if labels.size and (labels.min() < 0 or labels.max() > 255):
        raise InputError(f"{path}: labels run from {labels.min()} to {labels.max()}, not 0 to 9.")


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__
