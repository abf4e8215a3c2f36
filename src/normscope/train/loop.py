"""The training loop as a user calls it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import checked_count
from normscope.data.dataset import Augment
from normscope.errors import InputError
from normscope.seeds import checked_seed
from normscope.subject.process import training
from normscope.train._feed import FeedOptions, as_feed
from normscope.train._objective import LossFunction, as_objective, floating_dtype, model_device
from normscope.train._plan import Callback, Plan, Refresher, model_in_words, shown
from normscope.train._training import Training
from normscope.train.checkpoint import Checkpoint
from normscope.train.divergence import Divergence
from normscope.train.gamma_decay import Penalty
from normscope.train.optim import OptimizerFactory, build_optimizer
from normscope.train.run import TrainingRun
from normscope.train.schedules import Schedule, as_schedule

__all__ = ["fit"]

RULE = Divergence()


@training
def fit(
    model: nn.Module,
    data: Any,
    loss: LossFunction | None = None,
    *,
    lr: float | None = None,
    optimizer: str | OptimizerFactory = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    augment: Augment | None = None,
    schedule: str | Schedule = "constant",
    penalty: Penalty | None = None,
    clip: float | None = None,
    divergence: Divergence | None = RULE,
    loss_fn: Callable[[nn.Module, Any], Tensor] | None = None,
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
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), or a loader of pairs
            (with ``loss_fn`` of anything) that can be iterated over again. Floating-point tensors
            take the type of the model's parameters.
        loss: ``"cross_entropy"``, ``"mse"`` (labels become one-hot), a torch loss, or
            ``loss(outputs, targets)``.
        lr: learning rate; the base rate of ``schedule``.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"``, or a function of the parameters.
        momentum: of sgd, in torch's convention.
        weight_decay: as in torch; 0 unless set.
        epochs: passes over the data; exactly one of ``epochs`` and ``steps``.
        steps: updates, over as many epochs as they take.
        batch_size: 128 by default; a loader (or ``DataSet.batches``) brings its own, as with the
            next three.
        shuffle: a new order every epoch, a function of ``seed`` and the epoch.
        drop_last: leave out a last batch with fewer samples.
        augment: such as ``FlipAndCrop()``.
        schedule: ``"constant"``, ``"step"``, ``"epoch"``, ``"inverse-time"``, ``"exponential"``,
            ``"warm-start"`` or a ``Schedule``.
        penalty: ``penalty(model) -> tensor`` added to the loss before the gradient is taken, such
            as ``gamma_decay(0.01)``; it is no part of the losses recorded.
        clip: largest norm of the gradient; None does not clip.
        divergence: the rule that ends a training; None never ends it.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``, for batches of any form.
        refreshers: objects whose ``step()`` is called before every update.
        callbacks: functions of an ``Event``; one may raise ``StopTraining``.
        device: where to train; by default where the model is. Batches are moved there.
        seed: of order, augmentation and dropout.
        checkpoint: file to write the whole state to, atomically.
        checkpoint_every: updates between two checkpoints; None is each epoch, and each minute.
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
    _check_length(epochs, steps)
    _check_kinds(model, penalty=penalty, divergence=divergence, callbacks=callbacks)
    objective = as_objective(loss, loss_fn)
    place = torch.device(device) if device is not None else model_device(model)
    model.to(place)
    options = FeedOptions(
        batch_size=batch_size,
        seed=checked_seed(seed),
        shuffle=shuffle,
        drop_last=drop_last,
        augment=augment,
        one_hot=objective.one_hot,
        dtype=floating_dtype(model),
    )
    feed = as_feed(data, options)
    if feed.own_batches:
        _refuse_batch_options(options)
    plan = Plan(
        model=model,
        feed=feed,
        objective=objective,
        optimizer=build_optimizer(
            model, optimizer, lr=lr, momentum=momentum, weight_decay=weight_decay
        ),
        schedule=as_schedule(schedule),
        device=place,
        seed=checked_seed(seed),
        steps=steps,
        epochs=epochs,
        penalty=penalty,
        clip=_checked_clip(clip),
        divergence=divergence,
        refreshers=tuple(refreshers),
        callbacks=tuple(callbacks),
        convention={
            "model": model_in_words(model),
            "data": feed.description,
            "loss": objective.description,
            "optimizer": shown(optimizer),
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "epochs": epochs,
            "steps": steps,
            "batch_size": None if feed.own_batches else options.size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "augment": shown(augment),
            "schedule": shown(as_schedule(schedule)),
            "penalty": shown(penalty),
            "clip": clip,
            "divergence": shown(divergence),
            "seed": seed,
            "device": str(place),
        },
    )
    file = _checkpoint(checkpoint, plan, checkpoint_every)
    return Training(plan, file).run(resume=resume)


def _check_length(epochs: int | None, steps: int | None) -> None:
    if (epochs is None) == (steps is None):
        given = "neither" if epochs is None else "both"
        raise InputError(f"Pass exactly one of epochs= and steps=. Got {given}.")
    if epochs is not None:
        checked_count(epochs, "epochs")
    if steps is not None:
        checked_count(steps, "steps")


def _check_kinds(model: Any, *, penalty: Any, divergence: Any, callbacks: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"fit trains a torch module. Got a {type(model).__name__}.")
    if penalty is not None and not callable(penalty):
        raise InputError(
            f"penalty must be a function of the model, such as gamma_decay(0.01). Got {penalty!r}."
        )
    if divergence is not None and not isinstance(divergence, Divergence):
        raise InputError(
            f"divergence must be a rule such as Divergence(floor=1e3), or None. Got {divergence!r}."
        )
    if not isinstance(callbacks, Sequence) or not all(callable(c) for c in callbacks):
        raise InputError(
            f"callbacks must be a list of functions of an event. Got {callbacks!r}: put a single "
            "one in a list."
        )


def _refuse_batch_options(options: FeedOptions) -> None:
    plain = FeedOptions()
    names = ("batch_size", "shuffle", "drop_last", "augment")
    given = [name for name in names if getattr(options, name) != getattr(plain, name)]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be set here: the loader decides. Set it in the loader, or "
            "pass a DataSet or a pair of tensors."
        )


def _checked_clip(clip: float | None) -> float | None:
    if clip is not None and not 0 < clip < math.inf:
        raise InputError(f"clip must be a number above 0, or None. Got {clip!r} instead.")
    return clip


def _checkpoint(
    path: str | os.PathLike[str] | None, plan: Plan, every: int | None
) -> Checkpoint | None:
    if path is None:
        return None
    every = None if every is None else checked_count(every, "checkpoint_every")
    settings = {k: v for k, v in plan.convention.items() if k != "device"}
    return Checkpoint(path, {**settings, "content": plan.feed.fingerprint()}, every=every)
