"""The loss in train and in evaluation mode, with the statistics that belong to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import out_of_memory
from normscope.measure.probes.moments import ChannelMoments
from normscope.messages import said
from normscope.results.modes import Modes, NormModes, Score
from normscope.subject.batch import Batch, float_leaves, readable_failures
from normscope.subject.functional import ModelFunction
from normscope.subject.losses import right_answers
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import Problem, as_problem
from normscope.subject.process import drawn_since, measurement, random_state
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.running import RunningStatistics, is_frozen, running_norms
from normscope.subject.statistics import coupling_layers, in_words

Change = Callable[[nn.Module], None]


@measurement
def mode_losses(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    eval_data: Any = None,
    seed: int = 0,
) -> Modes:
    """The loss with batch and with running statistics, and with the latter made again.

    The model is left as it was, bit by bit.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches: what the model is trained on.
        loss: ``"cross_entropy"`` (the default), ``"mse"``, a torch loss or
            ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; then there is no accuracy.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        eval_data: what the model is evaluated on, of any form that ``data`` may have.
        seed: seed for dropout and the order of a data set.

    Example:
        >>> import normscope as ns
        >>> net = ns.network("mlp:64-32-10,norm=batch")
        >>> found = mode_losses(net, "digits")
        >>> found.norms[0].updates, found.norms[0].initial
        (0, 1.0)
    """
    problem = as_problem(
        model, data, loss, loss_fn, outputs_fn, batch_size, seed, default="cross_entropy"
    )
    other = None
    if eval_data is not None:
        other = as_problem(
            problem.model, eval_data, problem.objective, batch_size=batch_size, seed=seed
        )
    return modes_of(problem, other, num_batches)


@measurement
def modes_of(problem: Problem, other: Problem | None, num_batches: int | None) -> Modes:
    """``mode_losses`` for data that was read before; ``other`` has the evaluation data."""
    stream = problem.source.stream(num_batches)
    batches, model = list(stream), problem.model
    layers = running_norms(model)
    frozen = {name for name, layer in layers.items() if is_frozen(layer, model)}
    passes = _Passes(problem)
    remade = RunningStatistics(name for name in layers if name not in frozen)
    train = passes.score(batches, "batch", remade.collecting)
    drawn, scores = passes.drew, {"batch": train}
    if frozen:  # what they would hold: a pass with all of them in train mode
        remade = RunningStatistics(layers)
        scores["thawed"] = passes.score(batches, "batch", remade.collecting)
    reason = ""
    try:
        scores["running"] = passes.score(batches, "running")
        if drawn:
            live = [*coupling_layers(model), *(n for n in layers if n not in frozen)]
            scores["batch"] = passes.score(batches, "running", _in_train_mode(live))
        if layers:
            scores["recomputed"] = passes.score(batches, "running", remade.using)
        if other is not None:
            scores |= _on_eval_data(other, layers, num_batches)
    except Exception as error:  # whatever the model raises in this mode
        if out_of_memory(error):
            raise
        reason = said(error).rstrip(".")
    shift = (math.nan, math.nan) if other is None else _shift(problem, other, num_batches)
    return Modes(
        train=train,
        **scores,
        norms=tuple(_norm_modes(model, name, remade, name in frozen) for name in layers),
        coupled=len(coupling_layers(model)),
        evaluating=not model.training,
        shift=shift[0],
        scale_shift=shift[1],
        reason=reason,
        convention={
            "loss": problem.objective.loss.description,
            "statistics": in_words(model, "batch"),
            "parameters": "none: nothing is differentiated",
            **stream.convention,
            "seed": str(problem.seed),
        },
    )


def _on_eval_data(
    other: Problem, layers: Iterable[str], num_batches: int | None
) -> dict[str, Score]:
    batches, passes = list(other.source.stream(num_batches)), _Passes(other)
    found = {"eval_running": passes.score(batches, "running")}
    if layers:
        remade = RunningStatistics(layers)
        passes.score(batches, "batch", remade.collecting)
        found["eval_recomputed"] = passes.score(batches, "running", remade.using)
    return found


class _Passes:
    """Forward passes of one problem.

    Attributes:
        drew: whether the last ones drew random numbers, as dropout does.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.drew = False

    def score(self, batches: list[Batch], statistics: str, change: Change | None = None) -> Score:
        """Loss and accuracy over ``batches``."""
        model, objective = self._problem.model, self._problem.objective
        function = ModelFunction(
            model, every_parameter(model), objective, statistics=statistics, seed=self._problem.seed
        )
        where = "in evaluation mode" if statistics == "running" else "in train mode"
        total, right, answers, self.drew = 0.0, 0, 0, False
        for number, batch in enumerate(batches):
            with readable_failures(model, batch, f"{where} on batch {number}"):
                batch = function.with_targets(batch)  # noqa: PLW2901
                with function.open(change=change), torch.no_grad():
                    before = random_state(function.device)
                    outputs = function(function.values, batch)
                    self.drew |= drawn_since(before, function.device)
                targets = function.targets(batch)
                value = objective.judged(outputs, targets)
            total += float(value.detach()) * (1 if objective.loss.summed else max(batch.size, 1))
            if objective.has_outputs:
                hits, known = right_answers(outputs, targets)
                right, answers = right + hits, answers + known
        samples = sum(max(batch.size, 1) for batch in batches)
        # a sum over the samples of a batch is compared with one over as many
        share = batches[0].size if objective.loss.summed else 1
        accuracy = right / answers if answers else math.nan
        return Score(total / samples * share, accuracy, samples)


def _in_train_mode(names: Iterable[str]) -> Change:
    """Only these layers, in a model in evaluation mode: they use each batch's own statistics."""

    def change(model: nn.Module) -> None:
        for name in names:
            model.get_submodule(name).training = True

    return change


def _norm_modes(model: nn.Module, name: str, remade: RunningStatistics, frozen: bool) -> NormModes:
    layer: Any = model.get_submodule(name)
    tracked, affine = layer.num_batches_tracked, [*layer.parameters(recurse=False)]
    updates = -1 if tracked is None else int(tracked)
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        updates = -1  # which counts no batches
    momentum = math.nan if layer.momentum is None else float(layer.momentum)
    return NormModes(
        name,
        type(layer).__name__,
        *_distance(layer, remade.statistics(name)),
        updates=updates,
        momentum=momentum,
        initial=1.0 if _untouched(layer) else _initial(momentum, updates),
        frozen=frozen,
        affine=bool(affine),
        trainable=any(p.requires_grad for p in affine),
        values=remade.counts.get(name, 0),
    )


def _untouched(layer: Any) -> bool:
    """Whether its statistics are those of a new layer."""
    return not bool(layer.running_mean.any()) and bool((layer.running_var == 1).all())


def _initial(momentum: float, updates: int) -> float:
    """Share of their initial values in statistics that were updated so often."""
    rate = 1.0 if math.isnan(momentum) else momentum
    return 0.0 if updates < 0 else float((1 - rate) ** updates)


def _distance(layer: Any, remade: tuple[Tensor, Tensor] | None) -> tuple[float, float, float]:
    """How far running statistics are from those made again, as `NormModes` has them."""
    if remade is None:
        return math.nan, math.nan, math.nan
    mean, variance = (t.detach().double().cpu() for t in (layer.running_mean, layer.running_var))
    batch_mean, batch_variance = (t.double().cpu() for t in remade)
    # A constant channel has no variance, and none of it matters beside the layer's eps.
    eps = max(layer.eps, torch.finfo(torch.float32).tiny)
    scaled = ((batch_mean - mean) / (variance + eps).sqrt()).nan_to_num(math.inf, math.inf)
    logs = torch.log((batch_variance + eps) / (variance + eps)).nan_to_num(math.inf, math.inf)
    apart = logs.square().mean().sqrt()
    return float(scaled.square().mean().sqrt()), float(logs.mean().exp()), float(apart.exp())


def _shift(problem: Problem, other: Problem, num_batches: int | None) -> tuple[float, float]:
    """Distance of the means of the inputs, in deviations, and the ratio of their variances.

    Over all features (or channels) together, so that one that is constant does no harm.
    """
    one, two = (_input_moments(p, num_batches) for p in (problem, other))
    if not one or len(one) != len(two):
        return math.nan, math.nan
    shifts, ratios = [], []
    for mine, its in zip(one, two, strict=True):
        variance = float(mine.variance.mean())
        if len(mine.mean) != len(its.mean) or not variance > 0:
            continue
        shifts.append(float((its.mean - mine.mean).square().mean() / variance) ** 0.5)
        ratios.append(float(its.variance.mean()) / variance)
    if not shifts:
        return math.nan, math.nan
    return max(shifts), max(ratios, key=lambda r: abs(math.log(r)) if r > 0 else math.inf)


def _input_moments(problem: Problem, num_batches: int | None) -> list[ChannelMoments]:
    """Moments of each floating-point input, by feature or channel."""
    found: list[ChannelMoments] = []
    for batch in problem.source.stream(num_batches):
        leaves = [t for t in float_leaves(batch.inputs) if t.ndim > 1]
        found = found or [ChannelMoments() for _ in leaves]
        for moments, leaf in zip(found, leaves, strict=True):
            moments.add(leaf.movedim(1, -1))
    return found
