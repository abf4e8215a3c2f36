"""Training runs at one learning rate each, on copies, all under the same conditions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError
from normscope.measure.divergence import Divergence
from normscope.results.stability import LEAVES, StabilityTrial
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.data import as_source
from normscope.subject.interrupts import interruptible
from normscope.subject.objective import Objective
from normscope.subject.problem import model_device
from normscope.subject.process import isolated_random, kept_generators, loader_generators
from normscope.train.loop import train
from normscope.train.modes import kept_mode, refuse_single_samples
from normscope.train.optim import OptimizerFactory, check_optimizer
from normscope.train.options import TrainingOptions
from normscope.train.plan import in_words
from normscope.train.run import INTERRUPTED, Event, TrainingRun
from normscope.train.schedules import Schedule
from normscope.train.stability.copies import Origin
from normscope.train.stability.judge import (
    Reference,
    Watch,
    against_best,
    chance_loss,
    late,
    verdict,
)

PATIENCE = 20  # times the number of updates, at most, while the loss keeps rising
OUT_OF_TIME = "out of time"
LEAVING = Divergence(floor=sys.float_info.min, factor=LEAVES)
GUESS = 0.1  # where neither loss nor gradient suggests a rate


class SearchEnded(Exception):  # noqa: N818 - a signal
    """Time is up, or the user stopped it; its text is the reason."""


@dataclass(frozen=True)
class Recipe:
    """How every trial trains, all but rate, seed and length.

    Attributes:
        data: what every trial reads anew, see ``repeatable``.
        objective: the loss.
        options: the settings.
    """

    data: Any
    objective: Objective
    options: TrainingOptions

    def __post_init__(self) -> None:
        check_optimizer(self.options.optimizer)

    @property
    def rule(self) -> Divergence:
        """What counts as diverged."""
        assert self.options.divergence is not None
        return self.options.divergence

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
        options = replace(self.options, lr=lr, steps=steps, seed=seed, schedule=schedule)
        if not isinstance(options.optimizer, str):
            options = replace(options, lr=None, optimizer=_at_rate(options.optimizer, lr))
        with kept_generators(loader_generators(self.data)):
            return train(model, self.data, self.objective, options, callbacks=callbacks)

    def batches(self, model: nn.Module, seed: int) -> Generator[Batch, None, None]:
        """The batches that it trains on, epoch after epoch, where the model is."""
        reading = replace(self.options, seed=seed).reading(model, self.objective)
        source, device = as_source(self.data, reading), model_device(model)
        for epoch in itertools.count():
            yield from (batch.to(device) for batch in source.epoch(epoch))

    def convention(self, model: nn.Module, options: TrainingOptions) -> dict[str, Any]:
        """What a training run with these options is, in words."""
        source = as_source(self.data, options.reading(model, self.objective))
        return in_words(model, source, self.objective, options)

    def reference(
        self, model: nn.Module, *, seed: int, steps: int, deadline: float = math.inf
    ) -> Reference:
        """What ``model`` does untrained; it runs in train mode, so pass a copy."""
        objective = self.objective
        window = range(steps + 1)[late(steps)]
        values: list[float] = []
        seen: list[tuple[Any, Any]] = []
        with (
            isolated_random(seed, model_device(model)),
            kept_mode(model, training=True),
            kept_generators(loader_generators(self.data)),
            contextlib.closing(self.batches(model, seed)) as stream,
            interruptible(),
        ):
            first = next(stream)
            initial, guess = self._first_step(model, _first_loss(model, objective, first))
            for k, batch in enumerate(itertools.chain([first], stream)):
                if time.monotonic() > deadline:
                    raise SearchEnded(OUT_OF_TIME)
                if k in window:
                    refuse_single_samples(model, objective, batch, where=f"Batch {k}")
                    with torch.no_grad(), readable_failures(model, batch, f"on batch {k}"):
                        outputs, targets, value = objective.evaluated(model, batch.copied())
                    values.append(float(value))
                    seen.append((outputs, targets))
                if k == steps:
                    break
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
        named = isinstance(self.options.optimizer, str)
        optimizer = replace(self.options, lr=GUESS if named else None).build_optimizer(model)
        if not loss.requires_grad:
            raise InputError(
                "The loss does not depend on any trainable parameter, so no learning rate can be "
                "judged. Does the model detach its output, or run under no_grad? Does "
                "a loss_fn or outputs_fn use a model of its own, not the one it is given?"
            )
        found = torch.autograd.grad(loss, trainable, allow_unused=True)
        slopes = [g.detach().double() for g in found if g is not None]
        size = sum(float(g.abs().sum()) for g in slopes)
        if size == 0:
            raise InputError(
                "The gradient of the loss is exactly zero in every trainable parameter, so that no "
                "learning rate changes anything. Does the loss depend on the model that it is "
                "given, and are its units alive?"
            )
        if not named:
            return initial, float(optimizer.param_groups[0]["lr"]) or GUESS
        square = sum(float(g.square().sum()) for g in slopes)
        # Adam and its kin move every parameter by the rate itself, whatever the gradient's size.
        guess = abs(initial) / (square if self.options.optimizer == "sgd" else size)
        return initial, guess if 0 < guess < math.inf else GUESS


@dataclass(eq=False)
class Bench:
    """Runs trials, keeps them, and watches the clock.

    Attributes:
        origin: where the models come from.
        recipe: how the training runs go.
        steps: updates that a trial is judged by.
        deadline: on the monotonic clock.
        tick: called after each trial.
        trials: those made.
        convention: what was in effect in the first of them.
        references: what the untrained models do, by seed.
        leaving: a training run whose loss rises goes on until it has left its start, too.
    """

    origin: Origin
    recipe: Recipe
    steps: int
    deadline: float
    tick: Callable[[], None]
    trials: list[StabilityTrial] = field(default_factory=list)
    convention: dict[str, Any] = field(default_factory=dict)
    references: dict[int, Reference] = field(default_factory=dict)
    leaving: bool = False

    def of(self, seed: int) -> list[StabilityTrial]:
        """The trials of one seed."""
        return [trial for trial in self.trials if trial.seed == seed]

    def reference(self, seed: int) -> Reference:
        """What the untrained model of ``seed`` does."""
        if seed not in self.references:
            with self.origin.fresh(seed) as model, interruptible():
                found = self.recipe.reference(
                    model, seed=seed, steps=self.steps, deadline=self.deadline
                )
            if self.leaving and found.initial <= 0:
                raise InputError(
                    f"criterion='leaves' compares the loss with {LEAVES:g} times its start, which "
                    f"must be above 0. Got {found.initial:.4g}. Add a constant to the loss, or use "
                    "criterion='diverges'."
                )
            self.references[seed] = found
        return self.references[seed]

    def run(self, lr: float, seed: int, *, length: int = 0) -> None:
        """One training, unless it was made before; a longer one takes the place of a shorter."""
        before = next((trial for trial in self.of(seed) if trial.lr == lr), None)
        if before is not None and (before.diverged or before.updates >= length):
            return
        if time.monotonic() > self.deadline:
            raise SearchEnded(OUT_OF_TIME)
        try:
            reference = self.reference(seed)
        except KeyboardInterrupt:  # as in a training run: what is known is kept
            raise SearchEnded(INTERRUPTED) from None
        length = max(length, self.steps)
        most = PATIENCE * self.steps
        rule = LEAVING if self.leaving else self.recipe.rule
        watch = Watch(length, max(most, length), rule, self.deadline)
        with self.origin.fresh(seed) as model, interruptible():
            run = self.recipe.train(
                model, lr=lr, seed=seed, steps=max(most, length) + 1, callbacks=[watch]
            )
        if run.outcome == "interrupted":
            raise SearchEnded(run.reason)
        if watch.late and not run.diverged:
            raise SearchEnded(OUT_OF_TIME)
        self.convention = self.convention or {**run.convention, **self.origin.conditions(seed)}
        others = [trial for trial in self.trials if trial is not before]
        self.trials = against_best([*others, _trial(lr, seed, run, reference, watch, self.steps)])
        self.tick()


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


def _first_loss(model: nn.Module, objective: Objective, batch: Batch) -> Tensor:
    """The loss of the first batch; a model that cannot be run is told from one that diverges."""
    refuse_single_samples(model, objective, batch, where="The first batch")
    with readable_failures(model, batch, "on its first batch"):
        return objective.value(model, batch.copied())


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
