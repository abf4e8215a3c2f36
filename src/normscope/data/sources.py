"""Where each data set comes from: its files in the layouts that other libraries use."""

from __future__ import annotations

import importlib.resources
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from normscope.data._cifar import binary_records, pickled_records
from normscope.data._download import Archive
from normscope.data._files import check_content, read_bytes
from normscope.data._idx import idx_array
from normscope.data._imagenet32 import BatchImages, image_batch
from normscope.data.streamed import StoredImages
from normscope.errors import InputError
from normscope.registry import Registry, check_choice


@dataclass(frozen=True, eq=False)
class RawData:
    """Images as stored, (n, c, h, w) of 0..maximum, in memory or in files, and labels, (n,)."""

    images: NDArray[np.uint8] | StoredImages
    labels: NDArray[np.int64]
    maximum: int = 255


class Source(ABC):
    """One data set: how to read a split of it, and how to fetch its files.

    Attributes:
        classes: the name of each class.
        splits: the names of its parts.
    """

    classes: tuple[str, ...]
    splits: tuple[str, ...] = ("train", "test")

    @abstractmethod
    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """The images and labels of ``split`` below ``folder``; MD5s checked if ``verify``."""

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Download what is missing below ``folder``."""

    def checked_split(self, split: str) -> str:
        """``split`` itself if there is such a part."""
        check_choice("split", split, self.splits)
        return split


@dataclass(frozen=True)
class IdxSource(Source):
    """The layout of MNIST: per split one file of images and one of labels, plain or gzipped.

    Attributes:
        title: its usual name, for messages.
        place: folder of the files below the data folder.
        files: per split (images, labels), each a name and the MD5 of the unpacked content.
        url: where the gzipped files can be fetched.
        packed: MD5 of each gzipped file at ``url``.
    """

    title: str
    place: str
    classes: tuple[str, ...]
    files: Mapping[str, tuple[tuple[str, str], tuple[str, str]]]
    url: str
    packed: Mapping[str, str]

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """Images and labels of ``split``, from plain or gzipped files."""
        (image_file, image_md5), (label_file, label_md5) = self.files[self.checked_split(split)]
        images = self._array(folder, image_file, image_md5 if verify else None, axes=3)
        labels = self._array(folder, label_file, label_md5 if verify else None, axes=1)
        if len(images) != len(labels):
            raise InputError(
                f"{folder / self.place} has {len(images)} images in {image_file} but {len(labels)} "
                f"labels in {label_file}: the files do not belong together. Fetch both again."
            )
        _check_labels(labels, self.classes, self._path(folder, label_file))
        return RawData(images[:, None], labels.astype(np.int64))

    def _path(self, folder: Path, name: str) -> Path:
        place = folder / self.place
        return _first([place / name, place / f"{name}.gz"], self.title)

    def _array(self, folder: Path, name: str, md5: str | None, *, axes: int) -> NDArray[np.uint8]:
        path = self._path(folder, name)
        content = read_bytes(path)
        array = idx_array(content, axes=axes, path=path)
        if md5 is not None:
            check_content(content, md5, path)
        return array

    def fetch(self, folder: Path) -> None:
        """Download the gzipped files that are missing."""
        for name, md5 in self.packed.items():
            target = folder / self.place
            if not any((target / n).exists() for n in (name, name.removesuffix(".gz"))):
                Archive(f"{self.url}/{name}", md5).save(target / name)


@dataclass(frozen=True)
class CifarSource(Source):
    """The two layouts of CIFAR-10: binary records, or pickled arrays of the same content.

    Attributes:
        classes: the name of each class.
        files: per split the batches, each a name and the MD5 of its binary records.
        archive: where the binary layout can be fetched.
    """

    classes: tuple[str, ...]
    files: Mapping[str, tuple[tuple[str, str], ...]]
    archive: Archive
    binary: str = "cifar-10-batches-bin"
    pickled: str = "cifar-10-batches-py"

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """Images and labels of ``split``; the binary layout is preferred where both exist."""
        names = self.files[self.checked_split(split)]
        records = [self._records(folder, name, md5 if verify else None) for name, md5 in names]
        table = np.concatenate(records)
        return RawData(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].astype(np.int64))

    def _records(self, folder: Path, name: str, md5: str | None) -> NDArray[np.uint8]:
        binary, pickled = folder / self.binary / f"{name}.bin", folder / self.pickled / name
        path = _first([binary, pickled], "CIFAR-10")
        content = path.read_bytes()
        read = binary_records if path == binary else pickled_records
        records = read(content, path=path)
        if md5 is not None:  # both layouts hold the same bytes, so one checksum serves both
            check_content(records.tobytes(), md5, path)
        _check_labels(records[:, 0], self.classes, path)
        return records

    def fetch(self, folder: Path) -> None:
        """Download the binary layout unless one of the layouts is complete."""
        names = [name for split in self.splits for name, _ in self.files[split]]
        wanted = [f"{self.binary}/{name}.bin" for name in names]
        pickled = all((folder / self.pickled / name).exists() for name in names)
        if not pickled and not all((folder / name).exists() for name in wanted):
            self.archive.unpack(wanted, folder)


@dataclass(frozen=True)
class ImageNet32Source(Source):
    """ImageNet at 32 x 32 pixels, as published by Chrabaszcz et al. 2017 in pickled batches.

    The files stay where they are: reading them once finds where the images lie in each, so that
    memory holds one file (0.4 GB) for a moment and then only labels. ``verify`` wants all files and
    the published number of images; without it, those batches that exist are taken.

    Attributes:
        classes: the numbers of the classes in the files.
        files: per split the names of the batches.
        images: per split the published number of images.
    """

    classes: tuple[str, ...] = tuple(str(k) for k in range(1, 1001))
    files: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "train": tuple(f"train_data_batch_{k}" for k in range(1, 11)),
            "test": ("val_data",),
        }
    )
    images: Mapping[str, int] = field(default_factory=lambda: {"train": 1_281_167, "test": 50_000})
    places: tuple[str, ...] = ("imagenet32", "Imagenet32", "Imagenet32_train", "Imagenet32_val", "")

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """Images and labels of ``split``; ``"test"`` is what ImageNet calls validation."""
        paths = [self._path(folder, name) for name in self.files[self.checked_split(split)]]
        found = [path for path in paths if path is not None]
        if not found or (verify and len(found) < len(paths)):
            self._missing(folder, self.files[split][paths.index(None)])
        batches = [image_batch(path) for path in found]
        key = " ".join(f"{path.name} {path.stat().st_size}" for path in found)
        labels = np.concatenate([labels for _, labels in batches])
        if verify and len(labels) != self.images[split]:
            raise InputError(
                f"The files of ImageNet 32 x 32 in {found[0].parent} hold {len(labels)} images, "
                f"the published ones {self.images[split]}. Fetch them again; for a part of them, "
                "or data of your own in this layout, pass verify=False."
            )
        return RawData(BatchImages([images for images, _ in batches], key), labels)

    def _path(self, folder: Path, name: str) -> Path | None:
        paths = (folder / place / name for place in self.places)
        return next((path for path in paths if path.is_file()), None)

    def _missing(self, folder: Path, name: str) -> NoReturn:
        raise InputError(
            f"ImageNet 32 x 32 was not found: there is no {folder / self.places[0] / name}. "
            "Download Train(32x32) and Val(32x32) from https://image-net.org/download-images (free "
            f"account; 4 GB unpacked), unpack both into {folder / self.places[0]}, or pass "
            "data_dir= (--data-dir on the command line, or NORMSCOPE_DATA) for the folder "
            "above it. 'random:3x32x32,classes=1000' has the same shape and needs no file."
        )

    def fetch(self, folder: Path) -> None:
        """Refused if a file is missing: ImageNet cannot be had without an account."""
        for name in (name for names in self.files.values() for name in names):
            if self._path(folder, name) is None:
                self._missing(folder, name)


@dataclass(frozen=True)
class DigitsSource(Source):
    """1797 digits of 8 x 8 pixels that come with the package (licence: _digits_LICENSE.txt).

    The first 1437 are for training and the last 360, from other writers, for testing.
    """

    classes: tuple[str, ...] = tuple("0123456789")
    train: int = 1437

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """Images and labels of ``split``; ``folder`` is not looked at."""
        parts = {"train": slice(self.train), "test": slice(self.train, None)}
        rows = parts[self.checked_split(split)]
        content = importlib.resources.files("normscope.data").joinpath("_digits.npz").read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            images, labels = stored["images"][rows], stored["labels"][rows]
        return RawData(images[:, None], labels.astype(np.int64), maximum=16)

    def fetch(self, folder: Path) -> None:
        """Nothing to do: the files come with the package."""


def _check_labels(labels: NDArray[np.uint8], classes: tuple[str, ...], path: Path) -> None:
    bad = np.flatnonzero(labels >= len(classes))
    if len(bad):
        raise InputError(
            f"{path}: label {labels[bad[0]]} of sample {bad[0]} is out of range ({len(bad)} such "
            f"labels). With {len(classes)} classes labels lie in 0..{len(classes) - 1}. Delete the "
            "file and fetch it again, or correct the labels."
        )


def _first(paths: list[Path], title: str) -> Path:
    for path in paths:
        if path.is_file():
            return path
    raise InputError(
        f"{title} was not found: there is no {' nor '.join(str(p) for p in paths)}. Pass "
        "data_dir= (--data-dir on the command line, or NORMSCOPE_DATA) for the folder that "
        "torchvision calls root, or fetch it in Python with load_data(..., download=True). The "
        "data set 'digits' needs no file."
    )


_IDX_NAMES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)


def _idx_source(
    title: str, place: str, classes: tuple[str, ...], url: str, *md5: tuple[str, str]
) -> IdxSource:
    """``md5`` are those of each file's content and of its packed form, in the usual order."""
    images, labels, test_images, test_labels = (
        (name, content) for name, (content, _) in zip(_IDX_NAMES, md5, strict=True)
    )
    files = {"train": (images, labels), "test": (test_images, test_labels)}
    packed = {f"{name}.gz": sent for name, (_, sent) in zip(_IDX_NAMES, md5, strict=True)}
    return IdxSource(title, place, classes, files, url, packed)


_MNIST = _idx_source(
    "MNIST",
    "MNIST/raw",
    tuple("0123456789"),
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
    ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
    ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
)
_FASHION = _idx_source(
    "Fashion-MNIST",
    "FashionMNIST/raw",
    (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
    ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
    ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
)
_CIFAR_TRAIN = (
    ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
    ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
    ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
    ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
    ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
)
_CIFAR_TEST = (("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),)
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR = CifarSource(
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    {"train": _CIFAR_TRAIN, "test": _CIFAR_TEST},
    Archive(_CIFAR_URL, "c32a1d4ab5d03f1284b67883e8d87530"),
)
data_sets: Registry[Source] = Registry(
    "data set",
    {
        "digits": DigitsSource(),
        "mnist": _MNIST,
        "fashion-mnist": _FASHION,
        "cifar10": _CIFAR,
        "imagenet32": ImageNet32Source(),
    },
)
