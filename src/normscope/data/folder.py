"""Folders of images, one for each class, read by Pillow when they are needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import checked_count
from normscope.data.sources import RawData, Source
from normscope.data.streamed import StoredImages
from normscope.errors import InputError, NormscopeError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
TEST_FOLDERS = ("val", "test")


class FolderImages(StoredImages):
    """Image files, resized so that their shorter side is ``size``, the middle cut out."""

    def __init__(self, root: Path, names: Sequence[str], size: int) -> None:
        self._root, self._names, self._size = root, names, size
        self.shape = (len(names), 3, size, size)

    @property
    def key(self) -> str:  # type: ignore[override]
        """Name and length of every file."""
        return "\n".join(f"{n} {os.path.getsize(self._root / n)}" for n in self._names)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions."""
        found = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for place, row in enumerate(rows):
            found[place] = _pixels(self._root / self._names[row], self._size)
        return found


class FolderSource(Source):
    """``PATH/train/CLASS/*.jpg`` and ``PATH/val`` (or ``test``), or ``PATH/CLASS/*.jpg`` alone.

    Classes are numbered by the sorted names of the folders for training, files sorted by name.

    Args:
        path: the folder.
        size: height and width that images are resized and cut to.
    """

    def __init__(self, path: str, *, size: int = 64) -> None:
        self._root, self._size = Path(path).expanduser(), checked_count(size, "size")
        if not path or not self._root.is_dir():
            raise InputError(
                f"There is no folder {path!r}. 'folder:PATH' needs a folder with one folder of "
                "images per class: PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg."
            )
        parted = (self._root / "train").is_dir()
        self._train = self._root / "train" if parted else self._root
        self.classes = _folders(self._train)
        if not self.classes:
            raise InputError(
                f"{self._train} holds no folders. Images must lie in one folder per class: "
                f"{self._train}/CLASS/*.jpg."
            )

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """The files of ``split``; nothing is read but their names."""
        _pillow()
        root = self._train if self.checked_split(split) == "train" else self._test()
        foreign = sorted(set(_folders(root)) - set(self.classes))
        if foreign:
            raise InputError(
                f"{root} has the class {foreign[0]!r}, which {self._train} has not. Both must have "
                "folders of the same names, since classes are numbered by them."
            )
        files = {c: _images(root / c) for c in self.classes}
        names = [f"{c}/{name}" for c in self.classes for name in files[c]]
        if not names:
            raise InputError(f"{root} holds no images. Endings that are read: {', '.join(ENDINGS)}")
        labels = np.repeat(np.arange(len(files)), [len(found) for found in files.values()])
        return RawData(FolderImages(root, names, self._size), labels.astype(np.int64))

    def _test(self) -> Path:
        for name in TEST_FOLDERS if self._train != self._root else ():
            if (self._root / name).is_dir():
                return self._root / name
        raise InputError(
            f"{self._root} has no part for testing: there must be {self._root}/train and "
            f"{self._root}/val (or test), each with one folder per class."
        )

    def fetch(self, folder: Path) -> None:
        """Nothing to do: the images are the user's own."""


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != "."))


def _images(folder: Path) -> list[str]:
    """The image files below ``folder``, however deep, sorted."""
    if not folder.is_dir():
        return []
    found = (p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.name[0] != ".")
    return sorted(p.relative_to(folder).as_posix() for p in found)


def _pixels(path: Path, size: int) -> NDArray[np.uint8]:
    image, ops = _pillow()
    try:
        with image.open(path) as opened:
            opened.draft("RGB", (2 * size, 2 * size))  # JPEG is decoded at a lower resolution
            fitted = ops.fit(opened.convert("RGB"), (size, size), image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise InputError(
            f"{path} cannot be read as an image ({type(error).__name__}: {error}). Remove or "
            "replace this file."
        ) from None
    return np.asarray(fitted).transpose(2, 0, 1)


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise NormscopeError(
            "Reading image files needs the package 'Pillow', which is not installed. Install it "
            "with: pip install 'normscope[data]'"
        ) from None
    return Image, ImageOps
