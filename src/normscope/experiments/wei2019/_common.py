"""Wei's networks, their data, and the lines of the theories."""

import math
from functools import cache
from typing import Any

import torch

import normscope as ns
from normscope.data import DataSet

MOMENTUM = 0.9
VARIANCES = {"weight_variance": 2.0, "bias_variance": 0.5}
BATCH = 128
CNN = {"channels": [30, 60, 90], "stride": 2}
SHAPES: dict[str, tuple[str, Any]] = {  # network -> data set, widths or shape of an image
    "mnist-fc": ("mnist", [784, 1000, 1000, 1000, 10]),
    "mnist-narrow": ("mnist", [784, 300, 300, 300, 10]),
    "cifar-fc": ("cifar10", [3072, 1000, 1000, 1000, 10]),
    "cifar-narrow": ("cifar10", [3072, 300, 300, 300, 10]),
    "cifar-cnn": ("cifar10", (3, 32, 32)),
    "digits-fc": ("digits", [64, 60, 60, 10]),
    "digits-cnn": ("digits", (1, 8, 8))}  # fmt: skip
PLOTTED = "wei2019-as-plotted"
THEORIES = {  # name -> which parameters: Wei counts weights alone
    "wei2019": "weights", PLOTTED: "weights", "frozen": "all", "corrected": "all"}  # fmt: skip


SHOWN = {"wei2019": "Wei, as printed", PLOTTED: "Wei, as plotted",
         "frozen": "frozen statistics", "corrected": "corrected, train mode"}  # fmt: skip


def mlp(widths: list[int], gamma: float | None) -> ns.NetworkSpec:
    """Wei's fully connected network; gamma None is the one without batch norm."""
    return ns.mlp(widths, norm=None if gamma is None else "batch", gamma=gamma, **VARIANCES)


def cnn(shape: tuple[int, int, int], gamma: float | None, **options: Any) -> ns.NetworkSpec:
    """Wei's convolutional network."""
    norm = None if gamma is None else "batch"
    return ns.cnn(shape, norm=norm, gamma=gamma, **{**CNN, **options}, **VARIANCES)


def spec_of(network: str, gamma: float | None) -> ns.NetworkSpec:
    """One of the networks of Fig. 2, or its small stand-in on digits."""
    _, shape = SHAPES[network]
    if isinstance(shape, list):
        return mlp(shape, gamma)
    return cnn(shape, gamma, channels=[10, 20] if network == "digits-cnn" else CNN["channels"])


@cache
def data_of(network: str, samples: int, split: str = "train") -> DataSet:
    """So many samples, standardized by channel."""
    name, shape = SHAPES[network]
    chosen = ns.load_data(name, split).subset(samples)
    return chosen.flat() if isinstance(shape, list) else chosen


def lambda_of(spec: ns.NetworkSpec, theory: str, parameters: str = "weights") -> float:
    """lambda_max of a theory: in the limit of many samples, with all parameters at a batch."""
    samples = BATCH if parameters == "all" else None
    found = ns.predict(spec, theory=theory, parameters=parameters, samples=samples)
    return float(found.lambda_max or math.nan)


def critical(lambda_max: float) -> float:
    """Eq. (7): 2 (1 + momentum) / lambda_max."""
    return 2 * (1 + MOMENTUM) / lambda_max


def rate_of(spec: ns.NetworkSpec, theory: str = "corrected", parameters: str = "weights") -> float:
    """The critical rate of a theory."""
    return critical(lambda_of(spec, theory, parameters))


def named(gamma: float | None) -> str:
    """What a part of an observation is called."""
    return "vanilla" if gamma is None else f"gamma {gamma:g}"


def at_minimum(seed: int, generator: Any) -> dict[str, tuple[Any, Any, Any]]:
    """A regression and a tanh network that are their own targets, with inputs and targets."""
    inputs = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    specs = {"quadratic": ns.mlp([5, 1]),
             "tanh network": ns.mlp([5, 6, 2], activation="tanh", bias_variance=0.5)}  # fmt: skip
    nets = {name: ns.build(spec, seed).double() for name, spec in specs.items()}
    return {name: (net, inputs, net(inputs).detach()) for name, net in nets.items()}
