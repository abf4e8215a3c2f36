"""Square roots S of the matrix that stands between J^T and J: F = J^T S S^T J.

Each maps between the flat outputs of one batch, length n, and a space of length ``size`` in which
the dual matrix S^T J J^T S lives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor


class OutputRoot(ABC):
    """S, known by its products with stacks of vectors."""

    size: int

    @abstractmethod
    def spread(self, vectors: Tensor) -> Tensor:
        """S z, (k, size) -> (k, n)."""

    @abstractmethod
    def gather(self, vectors: Tensor) -> Tensor:
        """S^T u, (k, n) -> (k, size)."""


class DiagonalRoot(OutputRoot):
    """S = diag(d): squared loss (d constant), independent Bernoulli or Poisson outputs."""

    def __init__(self, diagonal: Tensor) -> None:
        self._diagonal = diagonal  # (n,)
        self.size = diagonal.numel()

    def spread(self, vectors: Tensor) -> Tensor:
        return vectors * self._diagonal

    def gather(self, vectors: Tensor) -> Tensor:
        return vectors * self._diagonal


class SoftmaxRoot(OutputRoot):
    r"""S_t = (diag(sqrt p) - p sqrt(p)^T) sqrt(scale), so that S S^T = scale (diag p - p p^T)."""

    def __init__(self, probabilities: Tensor, scale: float) -> None:
        self._p = probabilities  # (T, C, *positions)
        self._r = probabilities.sqrt()
        self._scale = math.sqrt(scale)
        self.size = probabilities.numel()

    def spread(self, vectors: Tensor) -> Tensor:
        z = self._r * vectors.reshape(-1, *self._p.shape)
        centred: Tensor = z - self._p * z.sum(2, keepdim=True)
        return (self._scale * centred).reshape(vectors.shape)

    def gather(self, vectors: Tensor) -> Tensor:
        u = vectors.reshape(-1, *self._p.shape)
        centred: Tensor = u - (self._p * u).sum(2, keepdim=True)
        return (self._scale * self._r * centred).reshape(vectors.shape)


class ColumnRoot(OutputRoot):
    """One column per sample: S z = column of each sample times its entry of z."""

    def __init__(self, columns: Tensor, owner: Tensor) -> None:
        self._columns = columns  # (n,) the columns, laid out as the outputs
        self._owner = owner  # (n,) which sample an output belongs to
        self.size = int(owner.max()) + 1

    def spread(self, vectors: Tensor) -> Tensor:
        return vectors[:, self._owner] * self._columns

    def gather(self, vectors: Tensor) -> Tensor:
        total = vectors.new_zeros(vectors.shape[0], self.size)
        return total.index_add(1, self._owner, vectors * self._columns)


def sample_owner(shapes: list[torch.Size], device: torch.device) -> Tensor:
    """Which sample (index on the first axis) each entry of the flat outputs belongs to."""
    owners = []
    for shape in shapes:
        rows = shape[0] if len(shape) else 1
        index = torch.arange(rows, device=device)
        owners.append(index.repeat_interleave(max(shape.numel() // max(rows, 1), 0)))
    return torch.cat(owners)


def label_owner(shape: torch.Size, device: torch.device) -> Tensor:
    """Which label each entry of flat scores (samples, classes, *positions) belongs to."""
    count = shape.numel() // max(shape[1], 1)
    index = torch.arange(count, device=device).reshape(shape[0], 1, *shape[2:])
    return index.expand(shape).reshape(-1)
