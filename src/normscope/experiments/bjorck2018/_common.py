"""What the experiments share: networks, images, fits."""

from typing import Any

import numpy as np
from torch import nn

from normscope.checks import Array
from normscope.data import DataSet, load_data
from normscope.nn import initialize, network

NAMES = {"none": "unnormalized", "batch": "batch norm"}


def images(data: str, count: int, seed: int, *, half: bool = False,
           split: str = "train") -> DataSet:  # fmt: skip
    """Images that a seed draws; at half the resolution, if asked for."""
    drawn = load_data(data, split).subset(count, seed=seed)
    return drawn.downsample(2) if half else drawn


def resnet(depth: int, norm: str, seed: int, *, data: str, width: int = 16, **options: Any) -> Any:
    """A ResNet with Xavier weights; ``norm`` may be ``"top"``: before pooling only."""
    design: dict[str, Any] = {"norm": None if norm in ("none", "top") else norm, "init": "xavier"}
    design |= {"extra_norms": ("top",)} if norm == "top" else {}
    channels = 1 if data == "digits" else 3
    made: Any = network(f"resnet{depth}", seed=seed, width=width, channels=channels,
                        **(design | options))  # fmt: skip
    if options.get("shortcut") == "projection":  # as presumably in the paper: torch's default
        initialize(made.fc, "lecun-uniform", seed=seed)
    return made.float()


def density(values: Array, bins: int = 40) -> Array:
    """A histogram: middles of the bins, and the density in them."""
    height, edges = np.histogram(values, bins, density=True)
    return np.stack([(edges[:-1] + edges[1:]) / 2, height])


def slope(x: Array, y: Array) -> tuple[float, float]:
    """Slope of a straight line, and the share of the variance that it explains."""
    fit = np.polyfit(x, y, 1)
    rest = y - np.polyval(fit, x)
    return float(fit[0]), float(1 - rest.var() / y.var()) if y.var() else 0.0


def layer(model: nn.Module, number: int) -> Any:
    """A convolution of a CIFAR ResNet by its number: 1 is the stem, block t owns 2t and 2t + 1."""
    blocks = [b for stage in ("stage1", "stage2", "stage3") for b in getattr(model, stage)]
    if number == 1:
        return model.conv1
    return getattr(blocks[number // 2 - 1], "conv2" if number % 2 else "conv1")
