"""Images with labels, and the order in which they come."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import checked_count
from normscope.data.order import batch_order
from normscope.errors import InputError
from normscope.seeds import child_seed, numpy_generator

Augment = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Images and their labels, checked, standardized, in memory.

    Attributes:
        images: (n, ...), usually float32 (n, channels, height, width).
        labels: int64, (n,), from 0 to one less than the number of classes.
        name: what it is called in results.
        classes: the name of each class.
        standardized: how, in words.
        mean: what was subtracted from values in 0..1, broadcastable to one image.
        std: what they were divided by.
    """

    images: Tensor
    labels: Tensor
    name: str = "data"
    classes: tuple[str, ...] = ()
    standardized: str = "as given"
    mean: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(()))
    std: Tensor = dataclasses.field(default_factory=lambda: torch.ones(()))

    def __post_init__(self) -> None:
        _check_pairs(self)
        if not self.classes:
            count = int(self.labels.max()) + 1
            object.__setattr__(self, "classes", tuple(str(k) for k in range(count)))
        check_labels(self)
        _check_finite(self)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.images.shape[1:])

    @property
    def num_classes(self) -> int:
        """Number of classes among the labels."""
        return len(self.classes)

    def one_hot(self) -> Tensor:
        """The labels as rows with a single 1, (n, classes), for the squared loss."""
        return _one_hot(self.labels, self.num_classes, self.images.dtype)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        augment: Augment | None = None,
        one_hot: bool = False,
    ) -> Batches:
        """The batches of one epoch; their order is a function of ``seed`` and ``epoch`` alone.

        Args:
            batch_size: samples in a batch.
            seed: seed for the order and the augmentation.
            epoch: another epoch, another order.
            shuffle: draw the order; otherwise it is that of the data.
            drop_last: leave out a last batch with fewer samples.
            augment: ``augment(images, seed) -> images``, such as :class:`FlipAndCrop`.
            one_hot: give targets (n, classes) in place of labels (n,).
        """
        return Batches(self, batch_size, seed, epoch, shuffle, drop_last, augment, one_hot)

    def subset(self, n: int, seed: int = 0) -> DataSet:
        """``n`` samples drawn without replacement, in the order drawn."""
        size = checked_count(n, "n")
        if size > len(self):
            raise InputError(
                f"subset({size}) asks for more samples than the {len(self)} of {self.name!r}. "
                f"Pass at most {len(self)}."
            )
        rows = numpy_generator(seed, "subset").permutation(len(self))[:size]
        return self.rows(rows)

    def rows(self, index: Tensor | NDArray[np.int64] | slice) -> DataSet:
        """Some samples, by position."""
        where = torch.from_numpy(index) if isinstance(index, np.ndarray) else index
        return dataclasses.replace(self, images=self.images[where], labels=self.labels[where])

    def flat(self) -> DataSet:
        """The same with each image as one vector, (n, d)."""
        return dataclasses.replace(self, images=self.images.flatten(1))

    def downsample(self, factor: int) -> DataSet:
        """The same with the mean of every ``factor`` x ``factor`` pixels in place of them.

        The means are those of the values before standardizing: mean and deviation of the result
        are those of this data set, averaged alike where they differ from pixel to pixel.
        """
        size = checked_count(factor, "factor")
        if any(side % size for side in self._sides("downsample")):
            raise InputError(
                f"downsample({size}) needs images whose sides are multiples of {size}. Those of "
                f"{self.name!r} are {self.input_shape}. Crop them first: crop(24).downsample(2)."
            )

        def averaged(values: Tensor) -> Tensor:
            return torch.nn.functional.avg_pool2d(values, size) if _spatial(values) else values

        mean, std = averaged(self.mean), averaged(self.std)
        if _spatial(self.mean) or _spatial(self.std):
            images = (averaged(self.images * self.std + self.mean) - mean) / std
        else:
            images = averaged(self.images)
        done = f"{self.standardized}, then means of {size} x {size} pixels"
        return dataclasses.replace(self, images=images, mean=mean, std=std, standardized=done)

    def crop(self, size: int) -> DataSet:
        """The same with the middle ``size`` x ``size`` pixels of each image."""
        side = checked_count(size, "size")
        height, width = self._sides("crop")
        if side > min(height, width):
            raise InputError(
                f"crop({side}) is larger than the images of {self.name!r}, {height} x {width}. "
                f"Pass at most {min(height, width)}."
            )
        top, left = (height - side) // 2, (width - side) // 2

        def middle(values: Tensor) -> Tensor:
            cut = values[..., top : top + side, left : left + side]
            return cut if _spatial(values) else values

        images, mean, std = middle(self.images), middle(self.mean), middle(self.std)
        return dataclasses.replace(self, images=images, mean=mean, std=std)

    def _sides(self, what: str) -> tuple[int, int]:
        if self.images.ndim != 4:
            raise InputError(
                f"{what} needs images of shape (n, channels, height, width). Those of "
                f"{self.name!r} are {tuple(self.images.shape)}: call it before flat()."
            )
        height, width = self.input_shape[-2:]
        return height, width

    def to(
        self, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None
    ) -> DataSet:
        """The same on another device, or with images of another floating-point type."""
        images = self.images.to(device=device or self.images.device, dtype=dtype)
        return dataclasses.replace(self, images=images, labels=self.labels.to(images.device))

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.input_shape))
        return (
            f"{type(self).__name__}({self.name!r}: {len(self)} samples of {shape}, "
            f"{self.num_classes} classes, standardized: {self.standardized})"
        )


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of one epoch, as a sequence: ``batches[i]`` needs none of those before it."""

    data: DataSet
    batch_size: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    drop_last: bool = False
    augment: Augment | None = None
    one_hot: bool = False

    @functools.cached_property
    def order(self) -> tuple[Tensor, ...]:
        """The positions of the samples of each batch."""
        return batch_order(
            len(self.data),
            self.batch_size,
            seed=self.seed,
            epoch=self.epoch,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )

    def at(self, epoch: int) -> Batches:
        """The batches of another epoch."""
        return dataclasses.replace(self, epoch=epoch)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        rows = self.order[index].to(self.data.labels.device)
        images, labels = self.data.images[rows], self.data.labels[rows]
        if self.augment is not None:
            place = range(len(self))[index]
            images = self.augment(images, child_seed(self.seed, "batch", self.epoch, place))
        if self.one_hot:
            return images, _one_hot(labels, self.data.num_classes, images.dtype)
        return images, labels

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[index] for index in range(len(self)))


def _spatial(values: Tensor) -> bool:
    """Whether there is a value for each pixel."""
    return values.ndim >= 2 and max(values.shape[-2:]) > 1


def _one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    return torch.nn.functional.one_hot(labels, num_classes).to(dtype)


def _check_pairs(data: DataSet) -> None:
    images, labels = data.images, data.labels
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise InputError(
            f"A DataSet takes tensors. Got {type(images).__name__} and {type(labels).__name__}: "
            "use torch.as_tensor."
        )
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise InputError(
            f"Labels must be int64 of shape (n,). Got {labels.dtype} of shape "
            f"{tuple(labels.shape)} in {data.name!r}."
        )
    if not images.is_floating_point() or images.ndim < 2 or len(images) != len(labels):
        raise InputError(
            f"Images must be floating-point with one row per label ({len(labels)}). Got "
            f"{images.dtype} of shape {tuple(images.shape)} in {data.name!r}."
        )
    if len(labels) == 0:
        raise InputError(f"The data set {data.name!r} is empty: it has no sample to learn from.")


def check_labels(data: DataSet) -> None:
    """Refuse labels that are no class."""
    bad = ((data.labels < 0) | (data.labels >= data.num_classes)).nonzero()
    if len(bad):
        first = int(bad[0])
        raise InputError(
            f"{len(bad)} labels of {data.name!r} are out of range, the first at sample {first}: "
            f"{int(data.labels[first])}. With {data.num_classes} classes labels must lie in "
            f"0..{data.num_classes - 1}. Check the label file or the list of classes."
        )


def _check_finite(data: DataSet) -> None:
    if torch.isfinite(data.images.sum()):  # one pass without a table of flags
        return
    bad = (~data.images.isfinite()).flatten(1).any(1).nonzero()
    if len(bad):
        raise InputError(
            f"{len(bad)} of the {len(data)} images of {data.name!r} hold NaN or infinity, the "
            f"first at sample {int(bad[0])}. One such value makes every loss NaN. Remove or repair "
            "these samples."
        )
