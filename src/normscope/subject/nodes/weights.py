"""Whether weights are what the theory is about: independent draws around zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.nn.init import WEIGHT_VARIANCES, fans
from normscope.record import Record

FAR = 6.0  # standard errors that a draw is not from what is expected
NEAR = 4.0  # standard errors within which a scheme is named
ROWS = 1024  # looked at; more cost much and tell little


@dataclass(frozen=True, eq=False)
class LayerWeights(Record):
    """The weights of one layer.

    Attributes:
        name: the layer.
        fan_in: inputs of one unit.
        weight_variance: fan_in times the mean square of the weights.
        standard_error: error of that if the weights are independent.
        schemes: the initializations whose variance that is, within four standard errors, those
            first that more layers of the network agree with.
        doubt: why the weights are no independent draws around zero; None if they may be.
        orthogonal: whether that is because they are orthogonal.
    """

    name: str
    fan_in: int
    weight_variance: float
    standard_error: float
    schemes: tuple[str, ...]
    doubt: str | None
    orthogonal: bool = False


def read_layer_weights(name: str, weight: Tensor, outputs: int) -> LayerWeights:
    """Variance, scheme and doubts of one weight, stored in whatever order."""
    w = weight.detach().to("cpu", torch.float64)
    w = (w if len(w) == outputs else w.transpose(0, 1)).reshape(outputs, -1)
    count, fan_in = w.numel(), w.shape[1]
    square = float(w.square().mean())
    if square == 0:
        return LayerWeights(name, fan_in, 0.0, 0.0, (), None)
    kurtosis = float(w.pow(4).mean()) / square**2
    variance = fan_in * square
    error = variance * math.sqrt(max(kurtosis - 1, 0.0) / count)
    doubt, orthogonal = _doubt(w, square, kurtosis)
    ins, outs = fans(weight) if weight.ndim > 2 else (fan_in, outputs)
    found = tuple(
        scheme for scheme, rule in WEIGHT_VARIANCES.items()
        if abs(variance - fan_in * rule(ins, outs)) <= max(NEAR * error, 1e-6 * variance)
    )  # fmt: skip
    return LayerWeights(name, fan_in, variance, error, found, doubt, orthogonal)


def ranked(weights: Sequence[LayerWeights]) -> tuple[LayerWeights, ...]:
    """The same, with the schemes first that most layers agree with."""
    votes = Counter(scheme for read in weights for scheme in read.schemes)
    return tuple(
        replace(read, schemes=tuple(sorted(read.schemes, key=lambda name: (-votes[name], name))))
        for read in weights
    )


def _doubt(w: Tensor, square: float, kurtosis: float) -> tuple[str | None, bool]:
    mean = float(w.mean()) / math.sqrt(square / w.numel())
    if abs(mean) > FAR:
        return f"their mean is {abs(mean):.0f} standard errors from zero", False
    likeness = _likeness(w if w.shape[0] <= w.shape[1] else w.T, square, kurtosis)
    if likeness < -FAR:
        return "they are orthogonal", True
    if likeness > FAR:
        return "their rows are correlated", False
    for what, x in (("rows", w), ("columns", w.T)):
        if _spread(x, square, kurtosis) > FAR:
            return f"their {what} differ in size", False
    return None, False


def _spread(w: Tensor, square: float, kurtosis: float) -> float:
    """How far the mean squares of rows differ, in standard errors of independent draws."""
    rows, columns = w.shape
    expected = square**2 * (kurtosis - 1) / columns
    if rows < 2 or expected <= 0:
        return 0.0
    ratio = float(w.square().mean(1).var()) / expected
    return _deviation(ratio, 2 / (rows - 1) + 12 / (columns * rows))


def _likeness(w: Tensor, square: float, kurtosis: float) -> float:
    """How far the products of different rows are from those of independent draws."""
    w = w[:ROWS]
    rows, columns = w.shape
    if rows < 2:
        return 0.0
    products = w @ w.T
    total = float(products.square().sum() - products.diagonal().square().sum())
    ratio = total / (rows * (rows - 1)) / (columns * square**2)
    variance = 2 + (kurtosis**2 - 3) / columns
    return _deviation(ratio, 2 * variance / (rows * (rows - 1)))


def _deviation(ratio: float, variance: float) -> float:
    """A ratio of mean 1, like chi squared, in standard errors (Wilson and Hilferty 1931)."""
    small = variance / 9
    return float((max(ratio, 0.0) ** (1 / 3) - (1 - small)) / math.sqrt(small))
