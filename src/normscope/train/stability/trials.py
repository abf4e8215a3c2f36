"""Trainings at one learning rate each, on copies, all under the same conditions."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError, NormscopeError
from normscope.results.stability import StabilityTrial
from normscope.subject.batch import failed_on
from normscope.subject.interrupts import interruptible
from normscope.subject.random import isolated_random
from normscope.train._objective import (
    LossFunction,
    LossObjective,
    Objective,
    as_objective,
    kept_mode,
    model_device,
    moved,
    refuse_single_samples,
)
from normscope.train.divergence import Divergence
from normscope.train.loop import fit
from normscope.train.optim import OptimizerFactory, build_optimizer, check_optimizer
from normscope.train.run import Event, TrainingRun
from normscope.train.schedules import Schedule
from normscope.train.stability.copies import Origin
from normscope.train.stability.feeds import batches, kept_generators
from normscope.train.stability.judge import Reference, Watch, chance_loss, late, verdict

__all__ = ["Bench", "Recipe", "SearchEnded"]

PATIENCE = 20  # times the number of updates, at most, while the loss keeps rising
GUESS = 0.1  # where neither loss nor gradient suggests a rate


class SearchEnded(Exception):  # noqa: N818 - a signal
    """Time is up, or the user stopped it; its text is the reason."""


@dataclass(frozen=True)
class Recipe:
    """How every trial trains, all but rate, seed and length; the fields are those of ``fit``."""

    data: Any
    loss: LossFunction | None
    loss_fn: Callable[[nn.Module, Any], Tensor] | None
    optimizer: str | OptimizerFactory
    momentum: float
    weight_decay: float
    batch_size: int | None
    rule: Divergence

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)

    def train(
        self,
        model: nn.Module,
        *,
        lr: float,
        seed: int,
        steps: int,
        callbacks: Sequence[Callable[[Event], object]] = (),
        schedule: str | Schedule = "constant",
    ) -> TrainingRun:
        """Train ``model`` in place, at ``lr`` or by a schedule from there."""
        optimizer = self.optimizer
        named = isinstance(optimizer, str)
        with kept_generators(self.data):
            return fit(
                model,
                self.data,
                self.loss,
                lr=lr if named else None,
                optimizer=optimizer if isinstance(optimizer, str) else _at_rate(optimizer, lr),
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                steps=steps,
                batch_size=self.batch_size,
                schedule=schedule,
                divergence=self.rule,
                loss_fn=self.loss_fn,
                callbacks=callbacks,
                seed=seed,
            )

    def reference(self, model: nn.Module, *, seed: int, steps: int) -> Reference:
        """What ``model`` does untrained; it runs in train mode, so pass a copy."""
        objective = as_objective(self.loss, self.loss_fn)
        place = model_device(model)
        stream = batches(self.data, model, objective, batch_size=self.batch_size, seed=seed)
        window = range(steps + 1)[late(steps)]
        values: list[float] = []
        seen: list[tuple[Any, Any]] = []
        with (
            isolated_random(seed, place),
            kept_mode(model, training=True),
            kept_generators(self.data),
            interruptible(),
        ):
            first = moved(next(stream), place)
            initial, guess = self._first_step(model, _first_loss(model, objective, first))
            for k, batch in enumerate(itertools.chain([first], stream)):
                if k in window:
                    here = moved(batch, place)
                    values.append(_value(model, objective, here, seen))
                if k == steps:
                    break
        chance = math.nan
        if isinstance(objective, LossObjective):
            chance = chance_loss(objective.loss, seen)
        return Reference(initial, math.fsum(values) / len(values), chance, guess)

    def _first_step(self, model: nn.Module, loss: Tensor) -> tuple[float, float]:
        """The loss, and the rate at which a linear loss would come down to zero in one step."""
        initial = float(loss.detach())
        if not math.isfinite(initial):
            raise MeasurementError(
                f"The loss is {initial} before the first update, so no learning rate can be "
                f"judged. {_broken(model)}"
            )
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = build_optimizer(
            model,
            self.optimizer,
            lr=GUESS if isinstance(self.optimizer, str) else None,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        if not loss.requires_grad:
            raise InputError(
                "The loss does not depend on any trainable parameter, so no learning rate can be "
                "judged. Does the model detach its output, or run under no_grad?"
            )
        found = torch.autograd.grad(loss, trainable, allow_unused=True)
        slopes = [g.detach().double() for g in found if g is not None]
        size = sum(float(g.abs().sum()) for g in slopes)
        if size == 0:
            raise InputError(
                "The gradient of the loss is exactly zero in every trainable parameter, so that no "
                "learning rate changes anything. Does the loss depend on the model, and are its "
                "units alive?"
            )
        if not isinstance(self.optimizer, str):
            return initial, float(optimizer.param_groups[0]["lr"]) or GUESS
        square = sum(float(g.square().sum()) for g in slopes)
        # Adam and its kin move every parameter by the rate itself, whatever the gradient's size.
        guess = abs(initial) / (square if self.optimizer == "sgd" else size)
        return initial, guess if 0 < guess < math.inf else GUESS


class Bench:
    """Runs trials, keeps them, and watches the clock.

    Args:
        origin: of the models.
        recipe: of the trainings.
        steps: updates that a trial is judged by.
        deadline: on the monotonic clock.
        tick: called after each trial.
    """

    def __init__(
        self,
        origin: Origin,
        recipe: Recipe,
        *,
        steps: int,
        deadline: float,
        tick: Callable[[], None],
    ) -> None:
        self.trials: list[StabilityTrial] = []
        self.convention: dict[str, Any] = {}
        self._origin, self._recipe, self._steps = origin, recipe, steps
        self._deadline, self._tick = deadline, tick
        self._references: dict[int, Reference] = {}

    def of(self, seed: int) -> list[StabilityTrial]:
        """The trials of one seed."""
        return [trial for trial in self.trials if trial.seed == seed]

    def reference(self, seed: int) -> Reference:
        """What the untrained model of ``seed`` does."""
        if seed not in self._references:
            with self._origin.fresh(seed) as model, interruptible():
                found = self._recipe.reference(model, seed=seed, steps=self._steps)
            self._references[seed] = found
        return self._references[seed]

    def run(self, lr: float, seed: int, *, length: int = 0) -> None:
        """One training, unless it was made before; a longer one takes the place of a shorter."""
        before = next((trial for trial in self.of(seed) if trial.lr == lr), None)
        if before is not None and (before.diverged or before.updates >= length):
            return
        if time.monotonic() > self._deadline:
            raise SearchEnded("out of time")
        reference = self.reference(seed)
        length = max(length, self._steps)
        most = PATIENCE * self._steps
        watch = Watch(length, max(most, length), self._recipe.rule, self._deadline)
        with self._origin.fresh(seed) as model, interruptible():
            run = self._recipe.train(
                model, lr=lr, seed=seed, steps=max(most, length) + 1, callbacks=[watch]
            )
        if run.outcome == "interrupted":
            raise SearchEnded(run.reason)
        if watch.late and not run.diverged:
            raise SearchEnded("out of time")
        self.convention = self.convention or {**run.convention, **self._origin.conditions(seed)}
        self.trials = [trial for trial in self.trials if trial is not before]
        self.trials.append(_trial(lr, seed, run, reference, watch, self._steps))
        self._tick()


def _trial(
    lr: float, seed: int, run: TrainingRun, reference: Reference, watch: Watch, steps: int
) -> StabilityTrial:
    if run.diverged:
        final, failure = run.final_loss, run.reason
    else:
        final, failure = verdict(run.losses, reference, steps=steps)
    return StabilityTrial(
        lr=lr,
        seed=seed,
        diverged=run.diverged,
        learned=not failure,
        updates=len(run.losses) - 1,
        start=reference.start,
        final=final,
        chance=reference.chance,
        rising=watch.rising and not run.diverged,
        reason=failure,
        losses=run.losses,
    )


def _first_loss(model: nn.Module, objective: Objective, batch: Any) -> Tensor:
    """The loss of the first batch; a model that cannot be run is told from one that diverges."""
    refuse_single_samples(model, batch, where="The first batch")
    try:
        return objective.value(model, batch)
    except NormscopeError:
        raise
    except Exception as error:
        parts = batch if isinstance(objective, LossObjective) else (batch,)
        raise MeasurementError(
            f"The model cannot be run on its first batch: {failed_on(error, model, *parts)}"
        ) from error


def _value(model: nn.Module, objective: Any, batch: Any, seen: list[tuple[Any, Any]]) -> float:
    with torch.no_grad():
        if not isinstance(objective, LossObjective):
            return float(objective.value(model, batch))
        outputs, value = objective.outputs_and_value(model, batch)
        seen.append((outputs, batch[1]))
        return float(value)


def _broken(model: nn.Module) -> str:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name!r} holds NaN or infinity: load or initialize the model again."
    return "Its parameters are finite: look for an overflow, or scale the inputs down."


def _at_rate(factory: OptimizerFactory, lr: float) -> OptimizerFactory:
    """The same optimizer with ``lr`` in its first group and the others in proportion."""

    @functools.wraps(factory)
    def scaled(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = factory(parameters)
        base = float(optimizer.param_groups[0]["lr"])
        if base == 0:
            raise InputError(
                "The first parameter group of the optimizer has lr=0, so the rates of the groups "
                "cannot be scaled together. Give it any rate above 0; the search scales it."
            )
        for group in optimizer.param_groups:
            group["lr"] = float(group["lr"]) * (lr / base)
        return optimizer

    return scaled
