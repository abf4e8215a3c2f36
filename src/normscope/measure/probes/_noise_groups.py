"""Gradients summed in a few groups: what noise, signal and their standard errors need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.checks import Array

GROUPS = 16  # of draws, for the jackknife; each keeps one gradient


@dataclass(frozen=True)
class NoiseEstimate:
    """What N independent draws g_i of a gradient tell, for each part; s.e. by the jackknife.

    Attributes:
        noise: mean |g_i - g|^2 over the draws themselves.
        gradient2: |g|^2 of their mean.
        trace: unbiased trace of the covariance, N/(N - 1) times ``noise``.
        signal: unbiased |E g|^2, which is |g|^2 - trace/N.
        ratio: trace / signal; infinite where the signal is not above zero.
    """

    noise: Array  # (parts,)
    gradient2: Array  # (parts,)
    trace: Array  # (parts,)
    trace_error: Array  # (parts,)
    signal: Array  # (parts,)
    signal_error: Array  # (parts,)
    ratio: Array  # (parts,)
    ratio_error: Array  # (parts,)


class GroupSums:
    """Sums of draws, dealt out to groups in turn: one gradient and squared lengths for each.

    Args:
        slices: where each layer stands in a flat gradient: several pieces, as a layer may own
            several parameters.

    Attributes:
        count: draws taken in.
    """

    def __init__(self, slices: list[list[slice]]) -> None:
        self._slices = slices
        self._sums: list[Tensor] = []
        self._squares: list[Tensor] = []
        self._counts: list[int] = []
        self._turn = 0

    @property
    def count(self) -> int:
        """Number of draws taken in so far."""
        return sum(self._counts)

    def add(self, draws: int, total: Tensor, squares: Tensor) -> None:
        """Take in ``draws`` gradients by their sum and their summed squares in each layer."""
        if len(self._sums) < GROUPS:
            self._sums.append(total.clone())
            self._squares.append(squares.double().cpu())
            self._counts.append(draws)
            return
        group = self._turn % GROUPS
        self._turn += 1
        self._sums[group] += total
        self._squares[group] += squares.double().cpu()
        self._counts[group] += draws

    def estimate(self) -> NoiseEstimate:
        """All of it: the first part is the sum over layers."""
        counts = np.array(self._counts, np.float64)
        squares = _with_total(torch.stack(self._squares, 1).numpy())  # (parts, groups)
        grams = _with_total(np.stack([self._gram(pieces) for pieces in self._slices]))
        trace, signal, ratio = zip(
            _figures(counts.sum(), squares.sum(1), grams.sum((1, 2))),
            _jackknife(counts, squares, grams),
            strict=True,
        )
        gradient2 = grams.sum((1, 2)) / counts.sum() ** 2
        noise = np.maximum(squares.sum(1) / counts.sum() - gradient2, 0.0)
        return NoiseEstimate(noise, gradient2, *trace, *signal, *ratio)

    def _gram(self, pieces: list[slice]) -> Array:
        """Inner products of the groups' sums within one layer, (groups, groups)."""
        gram = torch.zeros(len(self._sums), len(self._sums), dtype=torch.float64)
        for piece in pieces:
            rows = torch.stack([total[piece] for total in self._sums]).double()
            gram += (rows @ rows.T).cpu()
        return gram.numpy()


def _with_total(layers: Array) -> Array:
    return np.concatenate([layers.sum(0, keepdims=True), layers])


def _figures(n: float, squares: Array, length2: Array) -> Array:
    """Unbiased trace, signal and their ratio from sums over n draws, (3, parts)."""
    if n < 2:
        return np.full((3, len(squares)), np.nan)
    trace = np.maximum((squares - length2 / n) / (n - 1), 0.0)
    signal = length2 / n**2 - trace / n
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(signal > 0, trace / signal, np.where(trace > 0, np.inf, np.nan))
    return np.stack([trace, signal, ratio])


def _jackknife(counts: Array, squares: Array, grams: Array) -> Array:
    """Standard errors of trace, signal and ratio by leaving out one group at a time."""
    groups = len(counts)
    if groups < 3:
        return np.full((3, len(squares)), np.nan)
    found = []
    for k in range(groups):
        kept = np.arange(groups) != k
        length2 = grams[:, kept][:, :, kept].sum((1, 2))
        found.append(_figures(counts[kept].sum(), squares[:, kept].sum(1), length2))
    with np.errstate(invalid="ignore"):  # a ratio may be infinite
        errors: Array = np.sqrt((groups - 1) * np.var(np.stack(found), axis=0))
    return errors
