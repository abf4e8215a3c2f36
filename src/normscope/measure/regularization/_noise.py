"""Batches drawn from the pool: the noise of their statistics, and the loss that it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.measure.regularization._sites import Site
from normscope.measure.regularization._view import PopulationView, SampleMoments, group_losses
from normscope.registry import check_choice
from normscope.seeds import numpy_generator

STATISTICS_BATCHES = 1000  # behind what the variance of sigma_B has beyond order 1/M
CONTROLLED = 20  # batches per control variate before one is used
SAMPLING = {
    "independent": "independent: samples drawn with replacement, the data stand for a larger set",
    "epoch": "epoch: samples drawn without replacement, the data are the whole training set",
}


@dataclass(frozen=True)
class Draw:
    """How batches come from a pool of ``samples``."""

    samples: int
    sampling: str
    seed: int

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLING)

    def shrinkage(self, batch_size: int) -> float:
        """Factor of every 1/M: less noise where a batch is a part of the whole."""
        if self.sampling == "independent":
            return 1.0
        return (self.samples - batch_size) / (self.samples - 1)

    def batches(self, count: int, batch_size: int) -> NDArray[np.int64]:
        """Rows of the samples of ``count`` batches, (count, batch_size)."""
        generator = numpy_generator(self.seed, "batches", batch_size)
        if self.sampling == "independent":
            return generator.integers(self.samples, size=(count, batch_size))
        return np.stack([generator.permutation(self.samples)[:batch_size] for _ in range(count)])

    def counts(self, count: int, batch_size: int) -> Array:
        """How often each sample is in each batch, (count, samples)."""
        generator = numpy_generator(self.seed, "counts", batch_size)
        if self.sampling == "independent":
            even = np.full(self.samples, 1 / self.samples)
            return generator.multinomial(batch_size, even, size=count).astype(np.float64)
        table = np.zeros((count, self.samples))
        for row in table:
            row[generator.permutation(self.samples)[:batch_size]] = 1.0
        return table


@dataclass(frozen=True)
class LayerNoise:
    """What batches do to the statistics of one layer, sample by sample.

    ``deviation_slopes`` and ``mean_slopes`` are those of each sample's loss in a relative increase
    of sigma_B and in an increase of mu_B / sigma_P, gamma included.
    """

    site: Site
    moments: SampleMoments
    deviation_slopes: Array  # (samples, channels)
    mean_slopes: Array  # (samples, channels)
    curvature: Array  # (2 channels, 2 channels) in the same variables, as far as known

    def variances(self, draw: Draw, batch_size: int) -> tuple[Array, Array]:
        """Variances of mu_B and sigma_B over batches, in units of sigma_P^2, (channels,) each.

        Exact for mu_B and, to order 1/M, for sigma_B; drawn batches give the rest of it.
        """
        scale = draw.shrinkage(batch_size) / batch_size  # 0: every batch is the whole population
        exact = [x.var(axis=0) * scale for x in (self.moments.means, self.moments.squares)]
        if not scale:
            return exact[0], exact[1]
        share = draw.counts(STATISTICS_BATCHES, batch_size) / batch_size
        means, squares = share @ self.moments.means, share @ self.moments.squares
        spread = squares - means**2 if self.site.card.centred else squares
        unit = self.site.unit().double().cpu().numpy()
        eps = self.site.eps / unit**2 if self.site.divides else 0.0
        deviations = np.sqrt(np.maximum(spread, 0.0) + eps).var(axis=0)
        linear = squares.var(axis=0)  # 4 times the variance of sigma_B to order 1/M
        ratio = np.divide(deviations, linear, out=np.full_like(linear, 0.25), where=linear > 0)
        return exact[0], ratio * exact[1]

    def expansion(self, batches: NDArray[np.int64]) -> tuple[Array, Array]:
        """Change of each batch's loss, first and second order, (batches, 2); M times its mean.

        The mean is that of the same expression, exact, whatever slopes and curvature are worth.
        """
        half = (self.moments.squares - self.moments.squares.mean(axis=0)) / 2
        means = self.moments.means - self.moments.means.mean(axis=0)
        added = np.concatenate([half, means], axis=1)  # (samples, 2 channels)
        slopes = np.concatenate([self.deviation_slopes, self.mean_slopes], axis=1)
        noise = np.stack([added[rows].mean(axis=0) for rows in batches])
        tilt = np.stack([slopes[rows].mean(axis=0) for rows in batches])
        change = np.stack([tilt * noise, 0.5 * (noise @ self.curvature) * noise])
        expected = np.stack([slopes * added, 0.5 * (added @ self.curvature) * added])
        return change.sum(axis=2).T, expected.sum(axis=2).mean(axis=1)


def measured_gap(
    view: PopulationView,
    sites: Sequence[Site],
    losses: Array,
    draw: Draw,
    *,
    batch_size: int,
    num_batches: int,
    noises: Sequence[LayerNoise] = (),
) -> tuple[float, float]:
    """Mean over batches of loss with batch statistics in these layers minus loss without; s.e.

    Args:
        view: the network; all other layers keep the population's statistics.
        sites: the layers under batch statistics.
        losses: loss of every sample under population norm.
        draw: how batches are drawn.
        batch_size: M.
        num_batches: how many.
        noises: what is known of these layers; it lowers the standard error.
    """
    batches = draw.batches(num_batches, batch_size)
    found: list[float] = []
    at_once = max(1, view.chunk // batch_size)
    with view.opened(), torch.no_grad():
        for site in sites:
            site.group = batch_size
        for start in range(0, num_batches, at_once):
            rows = torch.from_numpy(batches[start : start + at_once].reshape(-1))
            batch = view.pool.rows(rows)
            found += group_losses(view, view.run(batch), batch, size=batch_size)
    gaps = np.array(found) - losses[batches].mean(axis=1)
    scale = draw.shrinkage(batch_size) / batch_size
    controls = []
    for noise in noises:
        change, mean = noise.expansion(batches)
        controls.append(change - mean * scale)
    if controls:
        gaps = _without_controls(gaps, np.concatenate(controls, axis=1))
    return float(gaps.mean()), float(gaps.std(ddof=1) / np.sqrt(num_batches))


def _without_controls(values: Array, controls: Array) -> Array:
    """The values less what the controls, of mean zero, explain of them.

    The coefficients come from the other half of the batches, so that the mean stays unbiased
    whatever the controls are worth.
    """
    count = len(values)
    if count < CONTROLLED * controls.shape[1]:
        return values
    rest = values.copy()
    order = np.arange(count) % 2
    for half in (0, 1):
        here, there = order == half, order != half
        design = np.column_stack([np.ones(int(there.sum())), controls[there]])
        fit = np.linalg.lstsq(design, values[there], rcond=None)[0]
        rest[here] -= controls[here] @ fit[1:]
    return rest
