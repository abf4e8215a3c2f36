"""Random images with labels, for trying a command out without any file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from normscope.checks import checked_count
from normscope.data.sources import RawData, Source
from normscope.errors import InputError
from normscope.seeds import numpy_generator


class RandomSource(Source):
    """Independent random bytes as pixels; every class has as many images, up to one.

    Args:
        shape: channels, height and width, such as ``"3x32x32"``.
        samples: images in each split.
        classes: number of classes.
    """

    def __init__(self, shape: str, *, samples: int = 256, classes: int = 10) -> None:
        try:
            self._shape = tuple(int(word) for word in shape.split("x"))
        except ValueError:
            self._shape = ()
        if len(self._shape) != 3 or min(self._shape) < 1:
            raise InputError(
                f"Random images need channels, height and width, as in 'random:3x32x32'. Got "
                f"{shape!r}."
            )
        self._samples = checked_count(samples, "samples")
        self.classes = tuple(str(k) for k in range(checked_count(classes, "classes")))

    def read(self, split: str, folder: Path, *, verify: bool) -> RawData:
        """The images of ``split``, always the same."""
        generator = numpy_generator(0, "random images", self.checked_split(split))
        images = generator.integers(0, 256, (self._samples, *self._shape), np.uint8)
        labels = generator.permutation(np.arange(self._samples) % len(self.classes))
        return RawData(images, labels.astype(np.int64))

    def fetch(self, folder: Path) -> None:
        """Nothing to do: there is no file."""
