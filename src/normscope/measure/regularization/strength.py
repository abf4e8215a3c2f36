"""The gamma decay of norm layers: curvatures, exact or by probes, and noise in the right units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.checks import Array, checked_count, checked_list
from normscope.errors import InputError
from normscope.measure.regularization import _curvature
from normscope.measure.regularization._sites import Site, sites_of
from normscope.measure.regularization._view import PopulationView
from normscope.measure.regularization.pool import pool_of
from normscope.registry import check_choice
from normscope.seeds import child_seed
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.theory import regularization as theory

SMALL = 64  # channels up to which the Hessian of a layer without positions is computed exactly
CURVATURES = ("auto", "exact", "probes")


@dataclass(frozen=True)
class LayerCurvature:
    """Curvatures of the loss in one layer's noise variables, without gamma.

    ``by_deviation`` and ``by_mean`` are the diagonal, second derivatives in gamma_i and beta_i;
    ``matrix`` is the whole mean Hessian, (2C, 2C), if it was computed.
    """

    by_deviation: Array  # (channels,)
    by_mean: Array  # (channels,)
    matrix: Array | None
    description: str


def decay_strengths(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int,
    max_samples: int | None = 1000,
    curvature: str = "auto",
    probes: int = 4,
    chunk_size: int = 256,
    seed: int = 0,
) -> dict[str, Array]:
    """Gamma decay zeta of every scale of every norm layer, clipped at 0, by the layer's name.

    As in ``bn_regularization``, for population norms too, with the variances of mean and deviation
    that independent batches of ``batch_size`` samples have: exact for the mean, to order 1/M for
    the deviation.
    """
    check_curvature(curvature)
    (size,) = checked_batch_sizes(batch_size)
    problem = as_problem(model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, seed=seed)
    sites = sites_of(problem.model, population=True)
    _check_scales(sites)
    found = {}
    with torch.inference_mode(False):
        pool = pool_of(problem, max_samples=max_samples)
        view = PopulationView(problem, sites, pool, chunk=chunk_size)
        moments = view.moments()
        for site in (each for each in view.sites if each.scaled):
            curved = layer_curvature(
                view, site, curvature=curvature, probes=probes, seed=child_seed(seed, site.name)
            )
            zeta = theory.measured_decay(
                curved.by_deviation,
                curved.by_mean * noise_unit(site) ** 2,
                mean_variance=moments[site.name].means.var(axis=0) / size,
                deviation_variance=moments[site.name].squares.var(axis=0) / (4 * size),
            )
            found[site.name] = np.maximum(zeta, 0.0)
    return found


def _check_scales(sites: Sequence[Site]) -> None:
    if not any(site.scaled for site in sites):
        raise InputError(
            f"{sites[0].kind} {sites[0].name!r} and all other norm layers have affine=False, so "
            "that there are no scales to decay. Gamma decay needs layers with affine=True."
        )


def check_curvature(curvature: str) -> str:
    """The way to get curvatures; an unknown one is refused."""
    check_choice("curvature", curvature, CURVATURES)
    return curvature


def checked_batch_sizes(
    batch_size: int | Sequence[int], samples: int | None = None
) -> tuple[int, ...]:
    """Batch sizes from 2 to the number of samples, smallest first."""
    alone = isinstance(batch_size, str) or hasattr(batch_size, "__index__")
    given: list[Any] = [batch_size] if alone else checked_list(batch_size, "batch_size")
    if not given:
        raise InputError("batch_size is empty: name at least one batch size.")
    why = "a batch of 1 has no deviation, and batch norm would divide by zero"
    sizes = sorted({checked_count(size, "batch_size", least=2, why=why) for size in given})
    if samples is not None and sizes[-1] > samples:
        raise InputError(
            f"batch_size={sizes[-1]} is larger than the population of {samples} samples. Pass more "
            "data, raise max_samples, or use smaller batches."
        )
    return tuple(sizes)


def layer_curvature(
    view: PopulationView, site: Site, *, curvature: str, probes: int, seed: int
) -> LayerCurvature:
    """The curvatures of one layer, exact for small layers, else by probes."""
    channels = 0 if site.mean is None else len(site.mean)
    if curvature == "exact" or (curvature == "auto" and channels <= SMALL and site.positions == 1):
        matrix = _curvature.mean_curvature(view, site)
        diagonal = np.diagonal(matrix)
        return LayerCurvature(diagonal[:channels], diagonal[channels:], matrix, "exact Hessian")
    if view.loss.custom:  # a loss that names no distribution to draw labels from
        found = _curvature.probed_diagonal(view, site, probes=probes, seed=seed)
        return LayerCurvature(*found, None, f"Hessian, {probes} probes")
    found = _curvature.gauss_newton_diagonal(view, site, probes=probes, seed=seed)
    return LayerCurvature(*found, None, f"Gauss-Newton, {probes} label draws")


def noise_unit(site: Site) -> Array:
    """What an increase of mu_B by sigma_P adds to the layer's output over gamma, (channels,)."""
    unit = site.unit().double().cpu().numpy()
    return np.ones_like(unit) if site.divides else unit


def effective_gamma(site: Site) -> Array:
    """Gamma in the units of the noise, (channels,)."""
    return site.gamma().double().cpu().numpy() * noise_unit(site)
