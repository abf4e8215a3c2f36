"""What the fresh set-ups share: their list, small data, scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.findings.setup import Parts, Setup

__all__ = ["Catalog", "accuracy", "batches", "digits", "explained", "rng", "shapes", "standardized"]

Make = Callable[..., Parts]
Split = tuple[Tensor, Tensor, Tensor, Tensor]


class Catalog:
    """Set-ups: healthy functions ``make(seed, **options)``, and broken ones with one option."""

    def __init__(self) -> None:
        self.setups: dict[str, Setup] = {}

    def healthy(self, name: str, family: str, updates: int = 150) -> Callable[[Make], Make]:
        """Enter the function below as a healthy set-up."""

        def enter(make: Make) -> Make:
            self.setups[name] = Setup(name, family, make, updates=updates)
            return make

        return enter

    def broken(
        self, name: str, twin: str, defect: str, words: Iterable[str], **options: Any
    ) -> None:
        """Enter the healthy set-up ``twin``, made with these options."""
        of = self.setups[twin]
        make = partial(of.make, **options)
        self.setups[name] = Setup(name, of.family, make, defect, tuple(words), twin, of.updates)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batches(*columns: Tensor, size: int = 32, seed: int = 0, **more: Any) -> DataLoader[Any]:
    """A shuffled loader, as in most scripts."""
    more = {"shuffle": True, "drop_last": True, "generator": rng(seed), **more}
    return DataLoader(TensorDataset(*columns), size, **more)


def standardized(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the mean and the standard deviation of every column of the training data."""
    mean, std = train.mean(0), train.std(0)
    return (train - mean) / std, (test - mean) / std


@lru_cache
def digits(flat: bool = False) -> Split:
    """Digits of 8 x 8 pixels with mean 0 and standard deviation 1: 1400 to train, 397 to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(1797, generator=rng(21))
    x = torch.tensor(found.images, dtype=torch.float32)[order, None]
    y = torch.tensor(found.target)[order]
    x = (x - x.mean()) / x.std()
    x = x.flatten(1) if flat else x
    return x[:1400], y[:1400], x[1400:], y[1400:]


@lru_cache
def shapes(n: int = 1200, m: int = 400, size: int = 16) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy pictures (3 channels, 0 to 1) of a disc, ring, cross or two bars.

    Returns:
        Pictures, classes, masks, and box centres and radius in units of the picture.
    """
    g = rng(33)
    k = n + m
    kind = torch.randint(4, (k,), generator=g)
    radius = 3.0 + 2.0 * torch.rand(k, generator=g)
    centre = 5 + (size - 11) * torch.rand(k, 2, generator=g)
    rows, cols = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dy = rows - centre[:, 0, None, None]
    dx = cols - centre[:, 1, None, None]
    r = radius[:, None, None]
    disc, square = dy**2 + dx**2 < r**2, (dy.abs() < r) & (dx.abs() < r)
    inside = torch.stack([
        disc,
        disc & (dy**2 + dx**2 > (0.6 * r) ** 2),
        square & ((dy.abs() < 0.35 * r) | (dx.abs() < 0.35 * r)),
        square & (dx.abs() > 0.4 * r),
    ])  # fmt: skip
    mask = inside[kind, torch.arange(k)].float()
    colour = 0.35 + 0.5 * torch.rand(k, 3, 1, 1, generator=g)
    colour[:, 0] += 0.1
    ground = 0.05 + 0.2 * torch.rand(k, 3, 1, 1, generator=g)
    x = ground + (colour - ground) * mask[:, None]
    x = (x + 0.05 * torch.randn(k, 3, size, size, generator=g)).clamp(0, 1)
    box = torch.cat([centre / size, radius[:, None] / size], 1)
    return x, kind, mask[:, None], box


def accuracy(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    """The share of right answers in evaluation mode."""

    def score(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            out = model(x)
        if out.shape == y.shape:  # one logit for two classes
            return float(((out > 0) == (y > 0.5)).float().mean())
        return float((out.argmax(1) == y).float().mean())

    return score


def explained(x: Tensor, y: Tensor, scale: float = 1.0) -> Callable[[nn.Module], float]:
    """The share of the variance that predictions explain; -1 at the worst."""

    def score(model: nn.Module) -> float:
        model.eval()
        with torch.no_grad():
            error = ((model(x) / scale - y) ** 2).mean() / y.var()
        return max(-1.0, 1 - float(error)) if math.isfinite(float(error)) else -1.0

    return score
