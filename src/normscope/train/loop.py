"""The training loop as a user calls it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normscope.checks import checked_count
from normscope.data.dataset import Augment
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.subject.data import as_source
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn, as_objective
from normscope.subject.problem import check_model, model_device
from normscope.subject.process import training
from normscope.subject.usable import usable_device
from normscope.train._training import Training
from normscope.train.checkpoint import Checkpoint
from normscope.train.gamma_decay import Penalty
from normscope.train.optim import OptimizerFactory
from normscope.train.options import TrainingOptions
from normscope.train.plan import Callback, Plan, Refresher
from normscope.train.run import TrainingRun
from normscope.train.schedules import Schedule

RULE = Divergence()


@training
def fit(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    lr: float | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    num_batches: int | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    augment: Augment | None = None,
    validation: Any = None,
    schedule: str | Schedule = "constant",
    penalty: Penalty | None = None,
    clip: float | None = None,
    divergence: Divergence | None = RULE,
    refreshers: Sequence[Refresher] = (),
    callbacks: Sequence[Callback] = (),
    device: torch.device | str | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
) -> TrainingRun:
    """Train ``model`` in place, in train mode, and record what happened.

    The result depends on the model, the data and ``seed`` alone: the global random generators are
    seeded for the training and given back as they were, and so is each module's mode. Divergence
    is an outcome, not an error; the weights are then those that gave the diverged loss.

    Args:
        model: any module; a model in evaluation mode is put into train mode meanwhile.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches. Floating-point tensors take the type of the model's
            parameters. Batches that can be read only once are kept, unless ``epochs=1``.
        loss: ``"cross_entropy"``, ``"mse"`` (labels become one-hot), ``"bce"``, a torch loss, or
            ``loss(outputs, targets)``.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``, for batches of any form.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)`` beside ``loss``, for batches
            that are not (inputs, targets).
        lr: learning rate; the base rate of ``schedule``.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, or a function of the parameters.
        momentum: SGD momentum, in torch's convention.
        weight_decay: as in torch; 0 unless set.
        epochs: passes over the data; exactly one of ``epochs`` and ``steps``.
        steps: updates, over as many epochs as they take.
        batch_size: 128 by default; a loader (or ``DataSet.batches``) brings its own, as with
            ``shuffle``, ``drop_last`` and ``augment``.
        num_batches: the first so many batches of every epoch; None for all.
        shuffle: a new order every epoch, a function of ``seed`` and the epoch.
        drop_last: leave out a last batch with fewer samples.
        augment: such as ``FlipAndCrop()``.
        validation: data of any form that ``data`` can have. After every epoch its loss and
            accuracy are taken in evaluation mode, with the statistics of population norms
            brought up to the weights if a refresher can (``PopulationRefresher.refreshed``). They
            are in ``TrainingRun.validation`` and in the events; training goes on as without it.
        schedule: ``"constant"``, ``"step"``, ``"epoch"``, ``"inverse-time"``, ``"exponential"``,
            ``"warm-start"`` or a ``Schedule``.
        penalty: ``penalty(model) -> tensor`` added to the loss before the gradient is taken, such
            as ``gamma_decay(0.01)``; it is no part of the losses recorded.
        clip: largest norm of the gradient; None does not clip.
        divergence: the rule that ends a training; None never ends it.
        refreshers: objects whose ``step()`` is called before every update.
        callbacks: functions of an ``Event``, the first of which comes before the first update; one
            may raise ``StopTraining``.
        device: where to train; by default where the model is. Batches are moved there.
        seed: seed for order, augmentation and dropout.
        checkpoint: file to write the whole state to, atomically.
        checkpoint_every: updates between two checkpoints; None is each epoch, and each minute;
            0 is each minute only.
        resume: continue from ``checkpoint`` if it exists (bit for bit on a CPU; its settings must
            be the same); False starts again and replaces it.

    Returns:
        Losses, learning rates, outcome, and every setting.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> run = fit(net, "digits", "cross_entropy", lr=0.1, steps=20)
        >>> run.outcome, run.updates
        ('finished', 20)
    """
    options = TrainingOptions(
        optimizer, lr, momentum, weight_decay, epochs, steps, batch_size, num_batches, shuffle,
        drop_last, augment, schedule, penalty, clip, divergence, seed,
    )  # fmt: skip
    check_model(model)
    place = usable_device(device) if device is not None else model_device(model)
    objective = as_objective(loss, loss_fn, outputs_fn)
    helpers = refreshers, callbacks, checkpoint, checkpoint_every
    return train(
        model.to(place), data, objective, options, *helpers, resume=resume, validation=validation
    )


def train(
    model: nn.Module,
    data: Any,
    objective: Objective,
    options: TrainingOptions,
    refreshers: Sequence[Refresher] = (),
    callbacks: Sequence[Callback] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    *,
    resume: bool = True,
    validation: Any = None,
) -> TrainingRun:
    """``fit`` with its settings in one record, where the model is."""
    options.require_length()
    if not isinstance(callbacks, Sequence) or not all(callable(c) for c in callbacks):
        raise InputError(
            f"callbacks must be a list of functions of an event. Got {callbacks!r}: put a single "
            "one in a list."
        )
    if isinstance(refreshers, str) or not all(hasattr(r, "step") for r in refreshers):
        raise InputError(f"refreshers must be a list of objects with step(). Got {refreshers!r}.")
    source = as_source(data, options.reading(model, objective))
    if source.own_batches:
        options.refuse_batch_options()
    device, optimizer = model_device(model), options.build_optimizer(model)
    helpers = tuple(refreshers), tuple(callbacks)
    seen = None
    if validation is not None:
        seen = as_source(validation, TrainingOptions(seed=options.seed).reading(model, objective))
    plan = Plan(model, source, objective, optimizer, device, options, *helpers, seen)
    file = _checkpoint(checkpoint, plan, checkpoint_every)
    return Training(plan, file).run(resume=resume)


def _checkpoint(
    path: str | os.PathLike[str] | None, plan: Plan, every: int | None
) -> Checkpoint | None:
    if path is None:
        return None
    every = None if every is None else checked_count(every, "checkpoint_every", least=0)
    settings = {k: v for k, v in plan.convention.items() if k != "device"}
    content = [s.fingerprint() for s in (plan.source, plan.validation) if s is not None]
    return Checkpoint(path, {**settings, "content": "+".join(content)}, every=every)
