"""The noise of stochastic gradients: how far that of a batch lies from the mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from torch import nn

from normscope.checks import checked_count, checked_list
from normscope.errors import InputError, NormscopeError
from normscope.measure.probes._noise_batches import Pool
from normscope.measure.probes._noise_groups import GROUPS, GroupSums, NoiseEstimate
from normscope.measure.probes._noise_layers import ParameterLayers, parameter_layers
from normscope.measure.probes._noise_samples import Gradients, parts_of
from normscope.measure.probes.run import Layers
from normscope.measure.progress import progress
from normscope.results.noise import GradientNoise
from normscope.subject.batch import Batch
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import Problem, as_problem
from normscope.subject.process import kept_generators, measurement
from normscope.subject.statistics import check_statistics

SIZES = (8, 32, 128, 512)  # batch sizes of the answer, as far as there are samples
FEW = 8  # samples of the pass that numbers the layers
MOST_DRAWS = 1_000_000


@measurement
def gradient_noise(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
    batch_sizes: Sequence[int] | None = None,
    draws: int = 32,
) -> GradientNoise:
    r"""Noise of the gradient of a batch, of the whole model and of each layer.

    With f_i the loss of sample i and f the mean over all N samples,

    .. math:: M = \frac1N\sum_i |\nabla f_i - \nabla f|^2,\qquad
              E|\nabla f_B - \nabla f|^2 = \frac MB\ \text{(with replacement)},\qquad
              \frac MB\,\frac{N-B}{N-1}\ \text{(without)}

    (Bjorck et al. 2018, Eq. (2); a step of learning rate a has a^2 times that). Both are exact for
    the samples given. The noise scale tr(Sigma)/|G|^2 (McCandlish et al. 2018) is that of the
    distribution the samples come from: tr(Sigma) = N/(N-1) M and |G|^2 = |grad f|^2 - tr(Sigma)/N
    are unbiased. It is the batch size at which noise and gradient are of equal length.

    Where batch statistics couple the samples (or the loss does, or a part of the model), a single
    sample has no gradient of its own and M is not defined: ``coupled`` is True, ``coupling`` says
    why, and the noise is measured: ``draws`` batches of each size are drawn, each normalized by its
    own statistics, its samples all different as in training, and the variance of their gradients
    is taken around their own mean. It need not fall as 1/B. Their noise scale carries the factor
    (N-1)/(N-B), which leads to independent samples to first order in 1/B.

    Standard errors are by the jackknife over 16 groups of draws (themselves known to about 20 %),
    which keeps 16 gradients in memory; a coupled model keeps the samples too. Dropout acts in train
    mode, and its noise counts.

    Args:
        model: any module; its trainable parameters count.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. All its samples are the population; how they are batched
            matters for ``"frozen"`` statistics only.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss or ``loss(outputs, targets)``. A summed
            loss is taken sample by sample, not summed.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: seed for the batches drawn, dropout and the order of a data set.
        batch_sizes: sizes B of the answer; None is 8, 32, 128, 512 as far as half the samples go.
        draws: batches of each size, where the samples are coupled.

    Example:
        >>> import torch
        >>> net = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(net.weight)
        >>> x, y = torch.ones(4, 1), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        >>> found = gradient_noise(net, (x, y), "mse", batch_sizes=[1, 2])
        >>> float(found.total)  # the gradients are -1, -2, -3, -4
        1.25
        >>> found.without_replacement[0].round(4)
        array([1.25  , 0.4167])
    """
    problem = as_problem(model, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, seed=seed)
    check_statistics(problem.model, statistics)
    sizes = _checked_sizes(batch_sizes)
    draws = checked_count(
        draws, "draws", least=4, most=MOST_DRAWS, why="fewer have no standard error"
    )
    source = problem.source
    with kept_generators(source.generators), contextlib.closing(source.epoch(0)) as batches:
        first = next(batches)
        found = _layers(problem, first, statistics, layers)
        gradients = Gradients(problem, found, statistics=statistics)
        prepared = gradients.prepared(first)
        with gradients.guarded(first):
            gradients.examine(prepared)
        rest = map(gradients.prepared, chain([first], batches))
        if gradients.coupling:
            return _measured(gradients, Pool(rest), found, sizes, draws, problem.seed)
        return _exact(gradients, rest, source.per_epoch, found, sizes, problem.seed)


def _layers(problem: Problem, batch: Batch, statistics: str, layers: Layers) -> ParameterLayers:
    """The layers, from a pass over few samples if the model takes few."""
    with contextlib.suppress(NormscopeError):
        few = batch.part(0, min(FEW, batch.size)) if batch.size else batch
        return parameter_layers(problem, few, statistics, layers)
    return parameter_layers(problem, batch, statistics, layers)


def _exact(
    gradients: Gradients,
    batches: Iterator[Batch],
    total: int | None,
    layers: ParameterLayers,
    sizes: tuple[int, ...] | None,
    seed: int,
) -> GradientNoise:
    """Every sample's gradient, and the formulas for batches of them."""
    sums = GroupSums(layers.slices)
    cut = total is None or total < GROUPS
    with progress("gradients of samples", total) as tick:
        for batch in batches:
            for part in parts_of(batch, groups=cut):
                with gradients.guarded(part):
                    sums.add(part.size, *gradients.of_samples(part))
            tick()
    n = sums.count
    if n < 2:
        raise InputError("Noise needs two samples at least, and the data has one.")
    estimate = sums.estimate()
    chosen = np.array(sizes or _default_sizes(n), np.int64)
    replaced = estimate.noise[:, None] / chosen
    within = np.where(chosen <= n, (n - chosen) / (n - 1), np.nan)
    route = "one backward pass per sample" if gradients.by_sample else "layer by layer"
    return _record(
        layers, [estimate] * len(chosen), gradients, n, f"gradients of single samples, {route}",
        noise=estimate.noise,
        gradient2=estimate.gradient2,
        batch_sizes=chosen,
        with_replacement=replaced,
        without_replacement=replaced * within,
        without_replacement_error=np.zeros_like(replaced),
        noise_scale=np.repeat(estimate.ratio[:, None], len(chosen), 1),
        noise_scale_error=np.repeat(estimate.ratio_error[:, None], len(chosen), 1),
        draws=0,
        seed=seed,
    )  # fmt: skip


def _measured(
    gradients: Gradients,
    pool: Pool,
    layers: ParameterLayers,
    sizes: tuple[int, ...] | None,
    draws: int,
    seed: int,
) -> GradientNoise:
    """The variance of the gradients of batches drawn anew."""
    chosen = sizes or _default_sizes(pool.size)
    for size in chosen:
        if not 2 <= size <= pool.size:
            raise InputError(
                f"batch_sizes holds {size}; batches are drawn from {pool.size} samples and "
                f"{gradients.coupling}: sizes must lie in 2..{pool.size}."
            )
    estimates = []
    with progress("gradients of batches", len(chosen) * draws) as tick:
        for size in chosen:
            sums = GroupSums(layers.slices)
            for batch in pool.draws(size, draws, seed):
                with gradients.guarded(batch):
                    sums.add(1, *gradients.of_batch(batch))
                tick()
            estimates.append(sums.estimate())
    none = np.full(1 + len(layers.names), np.nan)
    route = f"{draws} batches drawn of each size, each with its own statistics"
    with np.errstate(divide="ignore"):  # noise of different samples -> of independent ones
        whole = np.array(chosen) * (pool.size - 1) / (pool.size - np.array(chosen))
    scale = np.where(np.isfinite(whole), whole, np.nan)
    return _record(
        layers, estimates, gradients, pool.size, route,
        noise=none,
        gradient2=none.copy(),
        batch_sizes=np.array(chosen, np.int64),
        with_replacement=np.repeat(none[:, None], len(chosen), 1),
        without_replacement=np.stack([e.trace for e in estimates], 1),
        without_replacement_error=np.stack([e.trace_error for e in estimates], 1),
        noise_scale=np.stack([e.ratio for e in estimates], 1) * scale,
        noise_scale_error=np.stack([e.ratio_error for e in estimates], 1) * scale,
        draws=draws,
        seed=seed,
    )  # fmt: skip


def _record(
    layers: ParameterLayers,
    estimates: Sequence[NoiseEstimate],
    gradients: Gradients,
    num_samples: int,
    route: str,
    **fields: Any,
) -> GradientNoise:
    random = " (random masks are drawn anew in every pass)" if gradients.random else ""
    convention = {
        **layers.convention,
        "samples": str(num_samples),
        "batches": "of all samples",
        "left out": "none",
        "noise": route + random,
    }
    return GradientNoise(
        layers=layers.names,
        signal=np.stack([e.signal for e in estimates], 1),
        signal_error=np.stack([e.signal_error for e in estimates], 1),
        coupling=gradients.coupling,
        num_samples=num_samples,
        coverage=layers.coverage,
        convention=convention,
        **fields,
    )


def _default_sizes(samples: int) -> tuple[int, ...]:
    return tuple(b for b in SIZES if 2 * b <= samples) or (max(2, samples // 2),)


def _checked_sizes(sizes: Sequence[int] | None) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    given = [sizes] if isinstance(sizes, int) else checked_list(sizes, "batch_sizes")
    if not given:
        raise InputError("batch_sizes is empty. Leave it out for 8, 32, 128 and 512.")
    return tuple(sorted({checked_count(size, "each of batch_sizes") for size in given}))
