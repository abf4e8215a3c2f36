"""From a name to a checked, standardized data set."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch

from normscope.data._files import data_folder
from normscope.data.dataset import DataSet
from normscope.data.folder import FolderSource
from normscope.data.generated import RandomSource
from normscope.data.sources import Source, data_sets
from normscope.data.standardize import Standardize, standardization, standardized
from normscope.data.streamed import SAMPLE, StoredImages, StreamedData, StreamedImages
from normscope.errors import InputError


def load_data(
    name: str,
    split: str = "train",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    standardize: Standardize = "channel",
    download: bool = False,
    verify: bool = True,
    **options: Any,
) -> DataSet:
    """A data set by name, from the files that torchvision's users already have.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"``, ``"cifar10"``, ``"imagenet32"``, or ``"digits"``,
            which comes with the package and needs no file. ``"folder:PATH"`` are images of your
            own, ``PATH/train/CLASS/*.jpg`` and ``PATH/val/CLASS/*.jpg`` (or ``PATH/CLASS/*.jpg``,
            without a part for testing). ``"random:3x32x32"`` are random images, to try a command.
        split: ``"train"`` or ``"test"``.
        data_dir: folder that holds ``MNIST/raw``, ``FashionMNIST/raw``, ``cifar-10-batches-bin``
            or ``cifar-10-batches-py``, ``imagenet32``; by default that of the variable
            ``NORMSCOPE_DATA``, else the cache folder that downloads go to.
        standardize: ``"channel"``, ``"dataset"`` (one mean and deviation), ``"pixel"`` (rarely
            lit pixels become large), ``"none"`` (values in 0..1), or a pair (means, deviations)
            in units of the largest value. Both splits take the statistics of the training split.
            Those of streamed data are computed from 10,000 training images at even distances.
        download: fetch what is missing (needs pooch and a network).
        verify: compare the content with the published MD5 (of imagenet32 the number of images).
        **options: ``size`` of folder: images are resized and cut to it (64); ``samples`` (256) and
            ``classes`` (10) of random. They may also stand in the name: ``"folder:PATH,size=96"``.

    Returns:
        Images float32 (n, channels, height, width) and labels. imagenet32 and folder are streamed:
        images stay in their files, and every function reads them batch by batch.

    Raises:
        InputError: a file is missing or damaged, or an argument unknown; says which and what to do.

    Example:
        >>> load_data("digits")
        DataSet('digits train': 1437 samples of 1 x 8 x 8, 10 classes, standardized: channel)
    """
    source = _source(name, options)
    source.checked_split(split)
    folder = data_folder(data_dir)
    if download:
        source.fetch(folder)
    raw = source.read(split, folder, verify=verify)
    computed = isinstance(standardize, str) and standardize in ("dataset", "channel", "pixel")
    needs_training = split != "train" and computed
    training = source.read("train", folder, verify=verify) if needs_training else raw
    images = training.images
    few = images.sample(SAMPLE if computed else 1) if isinstance(images, StoredImages) else images
    how = standardize if isinstance(standardize, str) else f"given {standardize}"
    mean, std = standardization(standardize, few, training.maximum)
    fields: dict[str, Any] = {
        "labels": torch.from_numpy(raw.labels),
        "name": f"{name} {split}",
        "classes": source.classes,
        "standardized": how
        + (f" of {len(few)} images" if computed and len(few) < len(images) else ""),
        "mean": mean,
        "std": std,
    }
    if isinstance(raw.images, StoredImages):
        return StreamedData(StreamedImages(raw.images, raw.maximum, mean, std), **fields)
    return DataSet(standardized(raw.images, raw.maximum, mean, std), **fields)


def is_data_name(word: str) -> bool:
    """Whether ``load_data`` knows it: a data set, ``folder:...`` or ``random:...``."""
    return word in data_sets or word.partition(":")[0] in MADE


def _source(name: str, options: dict[str, Any]) -> Source:
    kind, _, rest = name.partition(":") if isinstance(name, str) else (name, "", "")
    known = MADE.get(kind, (None, ()))[1]
    options = dict(options)
    while kind in MADE and (found := _OPTION.search(rest)):
        options = {found[1]: found[2], **options}
        rest = rest[: found.start()]
    for option, value in options.items():
        if option not in known:
            takes = f"It takes {' and '.join(known)}." if known else "It takes none."
            raise InputError(f"The data set {kind!r} has no option {option!r}. {takes}")
        if isinstance(value, str) and value.isdecimal():
            options[option] = int(value)
    return MADE[kind][0](rest, **options) if kind in MADE else data_sets[name]


MADE: dict[str, tuple[Callable[..., Source], tuple[str, ...]]] = {
    "folder": (FolderSource, ("size",)),
    "random": (RandomSource, ("samples", "classes")),
}
_OPTION = re.compile(r"[,:](size|samples|classes)=([^,:]*)$")
