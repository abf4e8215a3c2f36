"""Sums over batches that can be merged: float64, and never a difference of large squares."""

from __future__ import annotations

import torch
from torch import Tensor

REACH = (1e-12, 1e12)  # magnitudes whose squares can be summed in float32


class ChannelMoments:
    """Mean and variance of each channel, merged over batches (Chan et al.).

    Attributes:
        count: rows seen.
        mean: mean of each channel, (channels,) float64.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (n, channels) of any floating-point type."""
        rows = rows.reshape(-1, rows.shape[-1])
        n = rows.shape[0]
        mean = rows.mean(0, dtype=torch.float64)
        # Deviations from a rounded mean are small, so that float32 squares lose nothing.
        deviations = rows - mean.to(rows.dtype)
        shift = mean - mean.to(rows.dtype).double()
        squares = deviations.square().sum(0, dtype=torch.float64) - n * shift.square()
        self.merge(n, mean.cpu(), squares.cpu())

    def add_maps(self, maps: Tensor) -> None:
        """Take in maps (samples, channels, positions): as rows, without laying them out anew."""
        n = maps.shape[0] * maps.shape[2]
        reach = float(max(maps.amax(), -maps.amin()))
        if not REACH[0] < reach < REACH[1]:  # squares in float32 would overflow, or vanish
            maps = maps.double()
        mean = maps.mean(2).double().mean(0)
        rounded = mean.to(maps.dtype)
        deviations = maps - rounded[:, None]
        # The mean of float32 sums is itself a little off: the deviations know by how much.
        rest = deviations.sum(2).double().sum(0) / n
        squares = deviations.square_().sum(2).double().sum(0) - n * rest.square()
        self.merge(n, (rounded.double() + rest).cpu(), squares.cpu())

    def merge(self, n: int, mean: Tensor, squares: Tensor) -> None:
        """Take in ``n`` rows by their mean and their summed squared deviations."""
        if self.count == 0:
            self.count, self.mean, self._squares = n, mean, squares
            return
        total = self.count + n
        step = mean - self.mean
        self.mean = self.mean + step * (n / total)
        self._squares = self._squares + squares + step.square() * (self.count * n / total)
        self.count = total

    @property
    def variance(self) -> Tensor:
        """Of each channel, divided by the number of rows."""
        return (self._squares / self.count).clamp(min=0)


class SecondMoment:
    """E[v v^T] over rows, and E[v], merged over batches in float64.

    Attributes:
        count: rows seen.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros(0, dtype=torch.float64)
        self._centred = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (n, d)."""
        rows = rows.reshape(-1, rows.shape[-1]).double()
        n, mean = rows.shape[0], rows.mean(0)
        centred = rows - mean
        scatter = centred.T @ centred
        if self.count == 0:
            self.count, self._mean, self._centred = n, mean, scatter
            return
        total = self.count + n
        step = mean - self._mean
        self._centred += scatter + torch.outer(step, step) * (self.count * n / total)
        self._mean = self._mean + step * (n / total)
        self.count = total

    def matrix(self, *, centred: bool = False) -> Tensor:
        """E[v v^T], or the covariance, (d, d)."""
        covariance = self._centred / self.count
        return covariance if centred else covariance + torch.outer(self._mean, self._mean)

    @property
    def mean(self) -> Tensor:
        """The mean E[v], of shape (d,)."""
        return self._mean


class UnitMoments(SecondMoment):
    """A `SecondMoment` that also keeps third and fourth central moments (Pebay's updates).

    Rows are shifted by the first one, so that a unit that never changes has no variance at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shift = self._third = self._fourth = torch.zeros(0, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Take in rows (n, d)."""
        rows = rows.reshape(-1, rows.shape[-1]).double()
        self._shift = self._shift if self.count else rows[0].clone()
        rows = rows - self._shift
        b, mean = len(rows), rows.mean(0)
        centred = rows - mean
        squares = centred.square()
        two, three = squares.sum(0), (squares * centred).sum(0)
        four = squares.square_().sum(0)
        if self.count:
            a, own, d = self.count, self._centred.diagonal(), mean - self._mean
            n = a + b
            four += self._fourth + d**4 * (a * b * (a * a - a * b + b * b) / n**3)
            four += 6 * d**2 * (a * a * two + b * b * own) / n**2
            four += 4 * d * (a * three - b * self._third) / n
            three += self._third + d**3 * (a * b * (a - b) / n**2)
            three += 3 * d * (a * two - b * own) / n
        self._third, self._fourth = three, four
        super().add(rows)

    @property
    def mean(self) -> Tensor:
        """The mean E[v], of shape (d,)."""
        return self._mean + self._shift

    def standardized(self) -> tuple[Tensor, Tensor]:
        """Skewness and excess kurtosis of each entry; NaN or infinite where it is constant."""
        variance = self._centred.diagonal() / self.count
        skewness = self._third / self.count / variance**1.5
        return skewness, self._fourth / self.count / variance**2 - 3
