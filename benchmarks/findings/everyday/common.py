"""Data, scores and words that several everyday set-ups share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.findings.setup import Parts, Setup

Split = tuple[Tensor, Tensor, Tensor, Tensor]
Score = Callable[[Any], float]

RATE_TOO_HIGH = (
    r"(learning|step)[ -]?(rate|size).*(too (high|large|big)|lower|reduce|smaller|decrease)",
    r"(lower|reduce|smaller|decrease|divide).*(learning|step)[ -]?(rate|size)",
    r"\b(lr|rate)\b.*(too (high|large|big)|times (higher|larger|too)|above|exceeds|over the)",
    r"\b(lower|reduce|smaller|decrease)\b.*\b(lr|rate)\b",
    r"(steps?|updates?) (is|are) (far |much )?too (large|big|long|high)",
    r"overshoot",
)
RATE_TOO_LOW = (
    r"(learning|step)[ -]?(rate|size).*(too (low|small|tiny)|raise|increase|higher|larger)",
    r"(raise|increase|higher|larger|multiply).*(learning|step)[ -]?(rate|size)",
    r"\b(lr|rate)\b.*(too (low|small|tiny)|times (lower|smaller|too)|below)",
    r"\b(raise|increase|higher|larger)\b.*\b(lr|rate)\b",
    r"(steps?|updates?) (is|are) (far |much )?too (small|tiny|short|low)",
    r"(hardly|barely|scarcely) (move|change|learn|train)",
)
UNSCALED_INPUTS = (
    r"inputs?\b.*(normali[sz]|standardi[sz]|scale|large|magnitude|range|centred|centered)",
    r"(normali[sz]|standardi[sz]|rescale|scale|divide).*\b(inputs?|features?|data|images?|pixels?)",
    r"features?\b.*(scales?|normali[sz]|standardi[sz]|magnitudes?|units?)",
    r"data (is|are) not (scaled|normali[sz]ed|standardi[sz]ed)",
)


def healthy(name: str, family: str, make: Callable[..., Parts], updates: int = 150) -> Setup:
    """A set-up with nothing wrong."""
    return Setup(name, family, make, updates=updates)


def alike(*words: str | tuple[str, ...]) -> tuple[str, ...]:
    """Several sets of words as one; in a text they are set apart by semicolons."""
    sets = (re.split(r";\s+", each) if isinstance(each, str) else each for each in words)
    return tuple(word for each in sets for word in each)


def setups(twin: Setup, **broken: tuple[str, str, str | tuple[str, ...]]) -> list[Setup]:
    """A healthy set-up and those that one option breaks: by option, name, defect and words."""
    return [twin] + [
        replace(
            twin,
            name=name,
            make=partial(twin.make, wrong=wrong),
            defect=defect,
            words=alike(words),
            twin=twin.name,
        )
        for wrong, (name, defect, words) in broken.items()
    ]


def posed(
    model: nn.Module,
    data: Any,
    optimizer: torch.optim.Optimizer,
    test: Sequence[Tensor],
    loss: Any = "cross_entropy",
    loss_fn: Any = None,
    score: Score | None = None,
) -> Parts:
    """The parts, with held-out batches; scored by accuracy unless told otherwise."""
    return Parts(
        model,
        data,
        optimizer,
        None if loss_fn else loss,
        loss_fn,
        batches(test[0], test[1], 50),
        score or accuracy(test[0], test[1]),
    )


def loader(x: Tensor, y: Tensor, seed: int, batch: int = 64, shuffle: bool = True) -> DataLoader:
    """Batches of these pairs, shuffled anew in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        TensorDataset(x, y), batch, shuffle=shuffle, generator=generator, drop_last=True
    )


def batches(x: Tensor, y: Tensor, batch: int = 100) -> list[tuple[Tensor, Tensor]]:
    """Held-out batches."""
    return list(zip(x.split(batch), y.split(batch), strict=True))


def evaluated(model: nn.Module, x: Tensor) -> Any:
    """What the network says of ``x`` in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    for module, training in modes:
        module.training = training
    return outputs


def accuracy(x: Tensor, y: Tensor) -> Score:
    """Score: the share of right classes."""
    return lambda model: float((evaluated(model, x).argmax(-1) == y).float().mean())


def accuracy_at_0(x: Tensor, y: Tensor) -> Score:
    """Score: the share of right yes-or-no answers, from logits."""
    return lambda model: float(((evaluated(model, x) > 0).float() == y).float().mean())


def minus(error: float | Tensor) -> float:
    """A score of this error; what is not finite is as bad as can be."""
    value = float(error)
    return -min(value, 1e6) if np.isfinite(value) else -1e6


def minus_mse(x: Tensor, y: Tensor, unit: float = 1.0) -> Score:
    """Score: minus the mean squared error, in units in which the targets have size one."""
    return lambda model: minus(((evaluated(model, x).reshape(y.shape) - y) / unit).square().mean())


def mlp(
    *widths: int,
    act: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
    drop: float = 0.0,
) -> nn.Sequential:
    """Linear layers with norm, activation and dropout between."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers.append(nn.Linear(fan_in, fan_out))
        if norm:
            layers.append(norm(fan_out))
        layers.append(act())
        if drop:
            layers.append(nn.Dropout(drop))
    return nn.Sequential(*layers, nn.Linear(*widths[-2:]))


def conv_bn(fan_in: int, fan_out: int, stride: int = 1) -> nn.Sequential:
    """Convolution, batch normalization and ReLU."""
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU()
    )


def fitted(model: nn.Module, data: Any, optimizer: Any, updates: int, loss: Any = None) -> None:
    """Train, as the author did before."""
    loss = loss or nn.functional.cross_entropy
    done = 0
    while done < updates:
        for x, y in data:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            done += 1
            if done == updates:
                return


def split(x: Any, y: Any, held_out: float = 0.25) -> Split:
    """Training and held-out part, always the same."""
    order = np.random.default_rng(0).permutation(len(x))
    first = int(len(x) * (1 - held_out))
    x, y = torch.as_tensor(np.asarray(x))[order], torch.as_tensor(np.asarray(y))[order]
    return x[:first], y[:first], x[first:], y[first:]


def standardized(parts: Split) -> Split:
    """Every feature with mean 0 and variance 1, by the training part."""
    x, y, x_test, y_test = parts
    mean, std = x.mean(0), x.std(0)
    return (x - mean) / std, y, (x_test - mean) / std, y_test


@cache
def digits() -> Split:
    """Handwritten digits in 8 x 8 grey values from 0 to 1, flat."""
    data = datasets.load_digits()
    return split((data.data / 16).astype(np.float32), data.target)


@cache
def table(name: str) -> Split:
    """``"breast_cancer"``, ``"wine"`` or ``"diabetes"``, not scaled."""
    options = {"scaled": False} if name == "diabetes" else {}
    data = getattr(datasets, f"load_{name}")(**options)
    target = data.target.astype(np.float32 if name == "diabetes" else np.int64)
    return split(data.data.astype(np.float32), target)


@cache
def houses() -> Split:
    """Made-up districts with income, age, rooms, people and place; the price in dollars."""
    rng = np.random.default_rng(1)
    n = 2400
    income = rng.gamma(4, 1, n)
    age = rng.uniform(1, 52, n)
    rooms = rng.normal(5.4, 1.2, n)
    people = rng.lognormal(7, 0.7, n)
    north, west = rng.uniform(-1, 1, (2, n))
    near = np.exp(-3 * ((north - 0.4) ** 2 + (west + 0.3) ** 2))
    near += np.exp(-5 * ((north + 0.6) ** 2 + (west - 0.2) ** 2))
    price = 30e3 * income * (0.4 + near) + 90e3 * near + 8e3 * (rooms - 5.4) * (age < 20)
    price += rng.normal(0, 8e3, n) + 40e3
    x = np.stack([income, age, rooms, people, 36 + 4 * north, -119 + 4 * west], 1)
    return split(x.astype(np.float32), price.astype(np.float32))


@cache
def shapes(n: int = 1400, size: int = 16) -> Split:
    """Made-up photographs of five coloured shapes, channels last, grey values from 0 to 255."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 5, n)
    rows, columns = np.mgrid[:size, :size]
    images = np.empty((n, size, size, 3), np.float32)
    for image, kind in zip(images, y, strict=True):
        r, c = rng.uniform(5, size - 6, 2)
        radius = rng.uniform(3, 5)
        dr, dc = rows - r, columns - c
        box = np.maximum(abs(dr), abs(dc))
        mask = [
            dr**2 + dc**2 < radius**2,
            (box < radius) & (box > radius - 1.6),
            (box < radius) & ((abs(dr) < 1) | (abs(dc) < 1)),
            (box < radius) & (rows % 2 == 0),
            (box < radius) & (dr + dc > 0),
        ][kind]
        back, front = rng.uniform(20, 235, (2, 3))
        front = np.where(abs(front - back) < 50, (back + 90) % 255, front)
        image[:] = np.where(mask[..., None], front, back) + rng.normal(0, 12, (size, size, 3))
    return split(images.clip(0, 255).round(), y)
