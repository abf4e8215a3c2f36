"""Flip and crop: the augmentation of the CIFAR papers, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from normscope.errors import InputError
from normscope.seeds import child_seed


@dataclass(frozen=True)
class FlipAndCrop:
    """Mirror left and right with probability 1/2, and crop a random window of the padded image.

    Zeros are padded after standardization, so that they stand for the mean of the data.

    Attributes:
        flip: mirror or not.
        padding: pixels added on every side before the crop; 0 does not crop.
        mode: ``"zeros"``, or ``"reflect"`` to mirror the image at its border.
    """

    flip: bool = True
    padding: int = 4
    mode: str = "zeros"

    def __post_init__(self) -> None:
        if self.mode not in ("zeros", "reflect"):
            raise InputError(f"mode must be 'zeros' or 'reflect'. Got {self.mode!r} instead.")
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InputError(
                f"padding must be a whole number from 0. Got {self.padding!r} instead."
            )

    def __call__(self, images: Tensor, seed: int) -> Tensor:
        """New images of the same shape, (n, c, h, w); ``seed`` alone decides the draw."""
        if images.ndim != 4:
            raise InputError(
                f"Flip and crop need images (n, channels, height, width). Got shape "
                f"{tuple(images.shape)}. Augment before flattening."
            )
        generator = torch.Generator().manual_seed(child_seed(seed, "augment"))
        if self.flip:
            mirrored = torch.randint(2, (len(images),), generator=generator) == 1
            mirrored = mirrored.to(images.device)[:, None, None, None]
            images = torch.where(mirrored, images.flip(-1), images)
        return self._cropped(images, generator) if self.padding else images

    def _cropped(self, images: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = images.shape
        pad = self.padding
        if self.mode == "reflect" and pad >= min(height, width):
            raise InputError(
                f"Reflection can pad at most {min(height, width) - 1} pixels of a {height} x "
                f"{width} image. Got padding={pad}; use mode='zeros' or pad less."
            )
        mode = "constant" if self.mode == "zeros" else "reflect"
        padded = functional.pad(images, (pad,) * 4, mode=mode)
        corner = torch.randint(2 * pad + 1, (2, n, 1), generator=generator)
        rows = corner[0] + torch.arange(height)
        columns = corner[1] + torch.arange(width)
        sample = torch.arange(n)[:, None, None]
        picked = padded[sample, :, rows[:, :, None], columns[:, None, :]]  # (n, h, w, c)
        return picked.movedim(-1, 1).contiguous()
