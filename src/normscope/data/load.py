"""From a name to a checked, standardized data set."""

from __future__ import annotations

import os

import torch

from normscope.data._files import data_folder
from normscope.data.dataset import DataSet
from normscope.data.sources import data_sets
from normscope.data.standardize import Standardize, standardization, standardized


def load_data(
    name: str,
    split: str = "train",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    standardize: Standardize = "channel",
    download: bool = False,
    verify: bool = True,
) -> DataSet:
    """A data set by name, from the files that torchvision's users already have.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"``, ``"cifar10"``, or ``"digits"``, which comes with
            the package and needs no file.
        split: ``"train"`` or ``"test"``.
        data_dir: folder that holds ``MNIST/raw``, ``FashionMNIST/raw``, ``cifar-10-batches-bin``
            or ``cifar-10-batches-py``; by default that of the variable ``NORMSCOPE_DATA``, else
            the cache folder that downloads go to.
        standardize: ``"channel"``, ``"dataset"`` (one mean and deviation), ``"pixel"`` (rarely
            lit pixels become large), ``"none"`` (values in 0..1), or a pair (means, deviations)
            in units of the largest value. Both splits take the statistics of the training split.
        download: fetch what is missing (needs pooch and a network).
        verify: compare the content with the published MD5.

    Returns:
        Images float32 (n, channels, height, width) and labels.

    Raises:
        InputError: a file is missing or damaged, or an argument unknown; says which and what to do.

    Example:
        >>> load_data("digits")
        DataSet('digits train': 1437 samples of 1 x 8 x 8, 10 classes, standardized: channel)
    """
    source = data_sets[name]
    source.checked_split(split)
    folder = data_folder(data_dir)
    if download:
        source.fetch(folder)
    raw = source.read(split, folder, verify=verify)
    needs_training = split != "train" and standardize in ("dataset", "channel", "pixel")
    training = source.read("train", folder, verify=verify) if needs_training else raw
    mean, std = standardization(standardize, training.images, training.maximum)
    return DataSet(
        images=standardized(raw.images, raw.maximum, mean, std),
        labels=torch.from_numpy(raw.labels),
        name=f"{name} {split}",
        classes=source.classes,
        standardized=standardize if isinstance(standardize, str) else f"given {standardize}",
        mean=mean,
        std=std,
    )
