"""Small data sets in the standard layouts, for tests of the readers."""

import gzip
import hashlib
import pickle
import struct
from dataclasses import replace

import numpy as np

from normscope.data import data_sets

SIZES = {"train": 30, "test": 12}
PREFIX = {"train": "train", "test": "t10k"}


def md5(content):
    return hashlib.md5(content).hexdigest()


def idx_bytes(array):
    """An array of unsigned bytes in idx format."""
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def tiny_images(split, *, channels, size, seed=0):
    """Random images and labels of a split: uint8 (n, c, h, w) and (n,)."""
    rng = np.random.default_rng([seed, SIZES[split]])
    images = rng.integers(0, 256, (SIZES[split], channels, size, size)).astype(np.uint8)
    return images, rng.integers(0, 10, SIZES[split]).astype(np.uint8)


def idx_contents(seed=0):
    """File name -> content of a tiny MNIST."""
    files = {}
    for split, prefix in PREFIX.items():
        images, labels = tiny_images(split, channels=1, size=28, seed=seed)
        files[f"{prefix}-images-idx3-ubyte"] = idx_bytes(images[:, 0])
        files[f"{prefix}-labels-idx1-ubyte"] = idx_bytes(labels)
    return files


def write_idx(folder, *, packed=False, seed=0):
    """A tiny MNIST below ``folder``, plain or gzipped."""
    place = folder / "MNIST" / "raw"
    place.mkdir(parents=True)
    for name, content in idx_contents(seed).items():
        path = place / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return place


def tiny_mnist(seed=0):
    """The source of MNIST with the checksums of the tiny files in place of the published."""
    contents = idx_contents(seed)
    files = {
        split: tuple((name, md5(contents[name])) for name, _ in pair)
        for split, pair in data_sets["mnist"].files.items()
    }
    return replace(data_sets["mnist"], files=files)


def cifar_records(seed=0):
    """Batch name -> records of a tiny CIFAR-10: six training images a batch, twelve for tests."""
    records = {}
    for split, batches in (("train", 5), ("test", 1)):
        images, labels = tiny_images(split, channels=3, size=32, seed=seed)
        table = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
        names = [n for n, _ in data_sets["cifar10"].files[split]]
        records.update(zip(names, np.split(table, batches), strict=True))
    return records


def write_cifar(folder, layout, seed=0):
    """A tiny CIFAR-10 below ``folder``, layout "binary" or "pickled"."""
    place = folder / ("cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py")
    place.mkdir(parents=True)
    for name, table in cifar_records(seed).items():
        if layout == "binary":
            (place / f"{name}.bin").write_bytes(table.tobytes())
        else:
            entry = {b"data": table[:, 1:].copy(), b"labels": [int(v) for v in table[:, 0]]}
            (place / name).write_bytes(pickle.dumps(entry, protocol=2))
    return place


def tiny_cifar(seed=0):
    """The source of CIFAR-10 with the checksums of the tiny files."""
    records = cifar_records(seed)
    files = {
        split: tuple((name, md5(records[name].tobytes())) for name, _ in batches)
        for split, batches in data_sets["cifar10"].files.items()
    }
    return replace(data_sets["cifar10"], files=files)
