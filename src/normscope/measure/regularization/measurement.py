"""Batch norm as a regularizer, measured on a network: `bn_regularization`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.checks import Array, checked_count
from normscope.errors import InputError
from normscope.measure.progress import progress
from normscope.measure.regularization import _curvature, strength
from normscope.measure.regularization._noise import SAMPLING, Draw, LayerNoise, measured_gap
from normscope.measure.regularization._sites import Site, chosen, sites_of
from normscope.measure.regularization._view import PopulationView, SampleMoments
from normscope.measure.regularization.pool import pool_of
from normscope.results.regularization import BatchNormRegularization, LayerRegularization
from normscope.seeds import child_seed
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.statistics import frozen_norms
from normscope.theory import regularization as theory

MOST = 10_000_000  # batches or probes
STATISTICS = (
    "batch against population: evaluation mode, no dropout; each measured layer alone, then all of "
    "them, by the statistics of drawn batches, the others by those of the population"
)


@measurement
def bn_regularization(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | Sequence[int],
    layers: str | Sequence[str] | None = None,
    num_batches: int = 128,
    max_samples: int | None = 2048,
    sampling: str = "independent",
    curvature: str = "auto",
    probes: int = 8,
    chunk_size: int = 256,
    seed: int = 0,
) -> BatchNormRegularization:
    """How strongly the noise of batch statistics regularizes ``model``, layer by layer.

    For each batch-norm layer and batch size: the variances of batch mean (exact) and deviation
    (exact to order 1/M, the rest from drawn batches), the gamma decay zeta of every channel (Luo
    et al. 2019, App. C.4), the gap between the loss under batch norm and under population norm that
    theory predicts, complete and in the paper's diagonal form, and that gap measured: this layer
    under batch statistics, all others under population statistics; then all layers together, since
    their contributions do not add.

    The error of ``predicted`` is that of its random probes alone. It does not hold what an
    expansion to second order leaves out: at small batches, with heavy-tailed inputs, or labels
    that the network cannot fit, the prediction was off by a factor of 2 to 5 in tests, and
    ``measured`` is the number to trust. From M = 64 on, in networks of one norm, they agree.

    The network runs in evaluation mode (no dropout); nothing of it is changed.

    Args:
        model: a network with ``nn.BatchNorm1d``, ``2d``, ``3d`` or normscope's ``BatchNorm``.
        data: training data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a
            torch ``Dataset``, a loader or a list of batches. Their samples are the population.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss, or ``loss(outputs, targets)``, a mean or
            a sum over samples.
        loss_fn: not possible here: it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: size of the batches to draw; one number or several.
        layers: names of the layers to measure; None is all.
        num_batches: number of batches for each measured gap.
        max_samples: size of the population: the first samples in the seeded order; None is all.
        sampling: ``"independent"`` (batches drawn with replacement: the data stand for a larger
            set) or ``"epoch"`` (without: the data are all there is, as in an epoch of training).
        curvature: ``"exact"``: the Hessian; ``"probes"``: zeta from the Gauss-Newton matrix with
            labels drawn from the model, the gap from random directions; ``"auto"``: exact for
            layers of up to 64 channels without positions.
        probes: random directions per sample.
        chunk_size: samples per pass with derivatives.
        seed: seed for subset, batches and probes.

    Example:
        >>> from normscope.nn import network
        >>> net = network("mlp:64-16-10")
        >>> found = bn_regularization(net, "digits", "cross_entropy", batch_size=[16, 64],
        ...                           num_batches=20, max_samples=200)
        >>> found.batch_sizes.tolist(), [layer.layer for layer in found.layers]
        ([16, 64], ['norm1'])
    """
    strength.check_curvature(curvature)
    checked_count(probes, "probes", most=MOST)
    if checked_count(num_batches, "num_batches", most=MOST) < 2:
        raise InputError("num_batches must be at least 2: one batch has no standard error.")
    problem = as_problem(model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, seed=seed)
    sites = sites_of(problem.model)
    wanted = chosen(sites, layers, frozen_norms(problem.model))
    with torch.inference_mode(False):
        pool = pool_of(problem, max_samples=max_samples)
        sizes = strength.checked_batch_sizes(batch_size, pool.size)
        draw = Draw(pool.size, sampling, problem.seed)
        view = PopulationView(problem, sites, pool, chunk=checked_count(chunk_size, "chunk_size"))
        used = [site for site in wanted if site.mean is not None]
        if not used:
            raise InputError(
                f"{', '.join(view.unused)}: never used in the forward pass, so that there is "
                "nothing to measure."
            )
        run = _Run(view, draw, sizes, num_batches, curvature, probes, seed)
        return run.result(used, asked=layers is not None)


@dataclass
class _Run:
    """One call of `bn_regularization` under way."""

    view: PopulationView
    draw: Draw
    sizes: tuple[int, ...]
    num_batches: int
    curvature: str
    probes: int
    seed: int

    def result(self, sites: list[Site], *, asked: bool) -> BatchNormRegularization:
        moments = self.view.moments()
        losses = self.view.losses()
        steps = len(sites) * (1 + len(self.sizes)) + len(self.sizes)
        with progress("batch-norm regularization", steps) as tick:
            noises, records = [], []
            for site in sites:
                noise, curved = self._noise(site, moments[site.name])
                tick()
                noises.append(noise)
                records.append(self._layer(noise, curved, losses, tick))
            together = []
            for size in self.sizes:
                together.append(self._gap([n.site for n in noises], losses, size, noises))
                tick()
            everywhere = [self._gap(self.view.sites, losses, size) for size in self.sizes if asked]
            whole = everywhere or together  # every batch norm of the network, asked for or not
        gaps, all_gaps = np.array(together), np.array(whole)
        return BatchNormRegularization(
            layers=tuple(records),
            batch_sizes=np.array(self.sizes),
            together=gaps[:, 0],
            together_error=gaps[:, 1],
            everywhere=all_gaps[:, 0],
            everywhere_error=all_gaps[:, 1],
            population_loss=float(losses.mean()),
            samples=self.view.pool.size,
            num_batches=self.num_batches,
            sampling=SAMPLING[self.draw.sampling],
            loss=self.view.loss.description,
            seed=self.seed,
            notes=tuple(self._notes(sites, moments, asked=asked)),
            convention=self._convention(),
        )

    def _convention(self) -> dict[str, Any]:
        return {
            "loss": self.view.loss.description,
            "statistics": STATISTICS,
            "samples": f"{self.view.pool.size} as the population",
            "batch_sizes": self.sizes,
            "parameters": "scales and shifts of the norm layers",
            "left out": "none",
            "batches": f"{self.num_batches} behind each measured gap",
            "sampling": SAMPLING[self.draw.sampling],
            "curvature": self.curvature,
            "probes": self.probes,
            "precision": str(self.view.function.parameters.dtype).removeprefix("torch."),
            "seed": self.seed,
        }

    def _noise(
        self, site: Site, moments: SampleMoments
    ) -> tuple[LayerNoise, strength.LayerCurvature]:
        by_deviation, by_mean = _curvature.slopes(self.view, site)
        gamma = strength.effective_gamma(site)
        curved = strength.layer_curvature(
            self.view, site, curvature=self.curvature, probes=self.probes, seed=self._seed(site)
        )
        matrix = curved.matrix
        if matrix is None:  # of which a diagonal explains less
            matrix = np.diag(np.concatenate([curved.by_deviation, curved.by_mean]))
        both = np.tile(gamma, 2)
        matrix = matrix * np.outer(both, both)
        noise = LayerNoise(site, moments, by_deviation * gamma, by_mean * gamma, matrix)
        return noise, curved

    def _seed(self, site: Site) -> int:
        return child_seed(self.seed, "curvature", site.name)

    def _gap(
        self, sites: Sequence[Site], losses: Array, size: int, noises: Sequence[LayerNoise] = ()
    ) -> tuple[float, float]:
        """The gap with these layers under batch statistics."""
        how = {"batch_size": size, "num_batches": self.num_batches}
        return measured_gap(self.view, sites, losses, self.draw, noises=noises, **how)

    def _layer(
        self, noise: LayerNoise, curved: strength.LayerCurvature, losses: Array, tick: Any
    ) -> LayerRegularization:
        site, moments = noise.site, noise.moments
        variances, gaps, wide = [], [], []
        second = self._second_order(noise, exact=curved.matrix is not None)
        for size in self.sizes:
            variances.append(noise.variances(self.draw, size))
            wide.append(self._wide(noise, losses, size))
            gaps.append(self._gap([site], losses, size, [noise]))
            tick()
        v_mean, v_deviation = (np.array(table) for table in zip(*variances, strict=True))
        shares = np.array([self.draw.shrinkage(size) / size for size in self.sizes])
        gap, widened = np.array(gaps), np.array(wide)
        by_mean = curved.by_mean * strength.noise_unit(site) ** 2
        return LayerRegularization(
            layer=site.name,
            kind=site.kind,
            positions=site.positions,
            batch_sizes=np.array(self.sizes),
            gamma=site.gamma().double().cpu().numpy(),
            excess_kurtosis=moments.excess_kurtosis,
            skewness=moments.skewness,
            mean_variance=v_mean,
            deviation_variance=v_deviation,
            zeta_mean=theory.measured_decay(
                0.0, by_mean, mean_variance=v_mean, deviation_variance=0.0
            ),
            zeta_deviation=theory.measured_decay(
                curved.by_deviation, 0.0, mean_variance=0.0, deviation_variance=v_deviation
            ),
            first_order=np.array([self._first_order(noise, size) for size in self.sizes]),
            second_order=second[0] * shares,
            second_order_error=second[1] * shares,
            wide_second_order=widened[:, 0],
            wide_second_order_error=widened[:, 1],
            measured=gap[:, 0],
            measured_error=gap[:, 1],
            curvature=curved.description,
            scaled=site.scaled,
        )

    def _first_order(self, noise: LayerNoise, batch_size: int) -> float:
        squares = noise.moments.squares
        gap = theory.correlated_first_order(
            noise.deviation_slopes,
            noise.mean_slopes,
            sample_means=noise.moments.means,
            # without division there is no noise of the deviation, nor its product with the mean
            sample_squares=squares if noise.site.divides else np.zeros_like(squares),
            batch_size=batch_size,
            centered=noise.site.card.centred,
        )
        return gap * self.draw.shrinkage(batch_size)

    def _second_order(self, noise: LayerNoise, *, exact: bool) -> tuple[float, float]:
        """M R_q and its standard error."""
        if exact:
            covariance = theory.noise_covariance(noise.moments.means, noise.moments.squares)
            gap = theory.correlated_second_order(noise.curvature, covariance, batch_size=2)
            return 2 * gap, 0.0
        factor, how = self._factor(noise), self._drawing(noise.site)
        value, error = _curvature.probed_second_order(self.view, noise.site, factor, **how)
        return value / 2, error / 2

    def _wide(self, noise: LayerNoise, losses: Array, batch_size: int) -> tuple[float, float]:
        if not self.draw.shrinkage(batch_size):  # the whole population: no noise
            return 0.0, 0.0
        width = float(np.sqrt(self.draw.shrinkage(batch_size) / batch_size))
        factor, how = width * self._factor(noise), self._drawing(noise.site)
        return _curvature.wide_second_order(self.view, noise.site, factor, losses, **how)

    def _drawing(self, site: Site) -> dict[str, int]:
        return {"probes": max(self.probes, 2), "seed": self._seed(site)}

    @staticmethod
    def _factor(noise: LayerNoise) -> torch.Tensor:
        """F with F F^T the covariance of the noise of one sample, gamma included."""
        gamma = np.tile(strength.effective_gamma(noise.site), 2)
        covariance = theory.noise_covariance(noise.moments.means, noise.moments.squares)
        return _curvature.root_of(covariance * np.outer(gamma, gamma))

    def _notes(
        self, sites: list[Site], moments: dict[str, SampleMoments], *, asked: bool
    ) -> list[str]:
        notes = []
        if frozen := frozen_norms(self.view.function.model):
            names = ", ".join(frozen)
            notes.append(f"Left out, as they are in evaluation mode: {names}.")
        if self.view.unused:
            names = ", ".join(self.view.unused)
            notes.append(f"Never used in the forward pass: {names}.")
        for site in sites:
            if count := moments[site.name].constant:
                total = len(moments[site.name].skewness)
                notes.append(
                    f"{site.name}: {count} of {total} channels are constant over the data."
                )
        if asked and len(sites) < len(self.view.sites):
            notes.append("Layers not asked for keep the population's statistics throughout.")
        return notes
