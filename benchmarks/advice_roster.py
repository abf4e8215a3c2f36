"""Networks on which advice about learning rates is put to the test.

``DEVELOPMENT`` was looked at while the rule of ``suggest_lr`` was chosen; ``ROSTER`` was not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.data import DataSet, load_data
from normscope.nn import build
from normscope.spec import NetworkSpec, cnn, mlp

__all__ = ["DEVELOPMENT", "ROSTER", "Entry"]

SAMPLES = 10000  # of a real data set, at half its resolution


@dataclass(frozen=True)
class Entry:
    """A network, its data and how it is trained."""

    name: str
    source: str
    make: Callable[[], nn.Module]
    batch_size: int = 64
    optimizer: str = "sgd"
    momentum: float = 0.0

    @property
    def data(self) -> DataSet:
        """The training samples."""
        return _data(self.source)


@functools.cache
def _data(name: str) -> DataSet:
    full = load_data(name)
    if name == "digits":
        return full
    part = full.subset(SAMPLES, seed=1)
    return dataclasses.replace(part, images=functional.avg_pool2d(part.images, 2))


def _named(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: ns.network(name, **options)


def _built(spec: NetworkSpec) -> Callable[[], nn.Module]:
    return lambda: build(spec, 0)


SMALL_CNN = cnn((3, 16, 16), channels=[8, 16, 32], stride=2, padding=1, head="pool")
SHALLOW, DEEP = "mlp:64-100-100-10", "mlp:64-50-50-50-50-50-50-50-50-10"
NARROW = "mlp:64-40-40-40-10"
TANH = "mlp:196-64-64-64-64-64-64-64-64-64-64-10"

DEVELOPMENT = (
    Entry("MLP, none", "digits", _named(SHALLOW, norm=None), 32),
    Entry("MLP, batch", "digits", _named(SHALLOW), 32),
    Entry("MLP of 9 layers, none", "digits", _named(DEEP, norm=None), 32),
    Entry("MLP of 9 layers, batch", "digits", _named(DEEP), 32),
    Entry("MLP, batch, gamma 0.1", "digits", _named(SHALLOW, gamma=0.1), 32),
    Entry("MLP, layer", "fashion-mnist", _named("mlp:196-128-128-10", norm="layer")),
    Entry("CNN, none", "cifar10", _built(SMALL_CNN)),
    *(
        Entry(f"MLP of 4 layers, {name}", "digits", _named(NARROW, seed=5, **options), 32)
        for name, options in (
            ("none", {"norm": None}),
            ("batch", {}),
            ("layer", {"norm": "layer"}),
            ("batch, gamma 0.2", {"gamma": 0.2}),
            ("batch, also before last", {"extra_norms": "before-last"}),
        )
    ),
    Entry(
        "MLP of 6 layers, layer, tanh",
        "digits",
        _named("mlp:64-40-40-40-40-40-10", seed=6, norm="layer", activation="tanh"),
        32,
    ),
)

ROSTER = (
    Entry("MLP, none", "mnist", _named("mlp:196-200-200-200-10", norm=None)),
    Entry(
        "MLP, batch, gamma 2, biases",
        "mnist",
        _built(mlp([196, 200, 200, 10], norm="batch", gamma=2.0, bias_variance=0.5)),
    ),
    Entry("MLP, large weights", "mnist", _built(mlp([196, 100, 100, 10], weight_variance=8.0))),
    Entry("MLP, small weights", "mnist", _built(mlp([196, 100, 100, 10], weight_variance=0.5))),
    Entry(
        "CNN, batch, gamma 0.3",
        "mnist",
        _built(cnn((1, 14, 14), channels=[8, 16], stride=2, padding=1, norm="batch", gamma=0.3)),
    ),
    Entry(
        "MLP of 11 layers, tanh, none",
        "fashion-mnist",
        _named(TANH, norm=None, activation="tanh", init="xavier"),
    ),
    Entry(
        "MLP, batch, also before last",
        "fashion-mnist",
        _named("mlp:196-128-128-10", extra_norms="before-last"),
    ),
    Entry("CNN, none", "digits", _built(cnn((1, 8, 8), channels=[8, 16], padding=1)), 32),
    Entry("MLP, batch, also on outputs", "digits", _named(SHALLOW, extra_norms="output"), 32),
    Entry("ResNet-8, batch", "cifar10", _named("resnet8", width=4)),
    Entry("ResNet-8, none", "cifar10", _named("resnet8", width=4, norm=None)),
    Entry("VGG of 8 layers, group", "cifar10", _named("vgg8", width=4, norm="group")),
    Entry("MLP, batch, momentum 0.9", "fashion-mnist", _named("mlp:196-128-128-10"), momentum=0.9),
    Entry(
        "MLP, none, Adam", "mnist", _named("mlp:196-100-100-10", norm=None), optimizer="adam"
    ),
)  # fmt: skip
