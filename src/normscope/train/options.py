"""How a network is trained: what `fit` and all searches for a learning rate have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import checked_count, checked_positive
from normscope.data.dataset import Augment
from normscope.errors import InputError
from normscope.measure.divergence import Divergence
from normscope.seeds import checked_seed
from normscope.subject.objective import Objective
from normscope.subject.parameters import floating_dtype
from normscope.subject.reading import Reading
from normscope.train.optim import OptimizerFactory, build_optimizer
from normscope.train.schedules import Schedule, as_schedule


@dataclass(frozen=True)
class TrainingOptions:
    """The settings of a training run; ``fit`` explains each of them.

    Attributes:
        optimizer: a name, or a function of the parameters.
        lr: learning rate, if the optimizer is named.
        momentum: SGD momentum.
        weight_decay: as in torch.
        epochs: passes over the data.
        steps: updates.
        batch_size: samples in a batch; None is 128, or the loader's own.
        num_batches: batches in an epoch, at most.
        shuffle: a new order every epoch.
        drop_last: leave out a last, shorter batch.
        augment: augmentation of the images.
        schedule: learning-rate schedule.
        penalty: added to the loss.
        clip: largest norm of the gradient.
        divergence: the rule that ends a training run.
        seed: seed for order, augmentation and dropout.
    """

    optimizer: str | OptimizerFactory = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    shuffle: bool = True
    drop_last: bool = False
    augment: Augment | None = None
    schedule: str | Schedule = "constant"
    penalty: Callable[[nn.Module], Tensor] | None = None
    clip: float | None = None
    divergence: Divergence | None = field(default_factory=Divergence)
    seed: int = 0

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", self.optimizer.lower())
        as_schedule(self.schedule)
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", self.optimizer.lower())
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, checked_count(getattr(self, name), name))
        if self.clip is not None:
            checked_positive(self.clip, "clip")
        if self.penalty is not None and not callable(self.penalty):
            raise InputError(
                "penalty must be a function of the model, such as gamma_decay(0.01). Got "
                f"{self.penalty!r}."
            )
        if self.divergence is not None and not isinstance(self.divergence, Divergence):
            raise InputError(
                "divergence must be a rule such as Divergence(floor=1e3), or None. Got "
                f"{self.divergence!r}."
            )

    def require_length(self) -> None:
        """Refuse anything but exactly one of ``epochs`` and ``steps``."""
        if (self.epochs is None) == (self.steps is None):
            given = "neither" if self.epochs is None else "both"
            raise InputError(f"Pass exactly one of epochs= and steps=. Got {given}.")

    def reading(self, model: nn.Module, objective: Objective) -> Reading:
        """How the data is read for this training run."""
        return Reading(
            batch_size=self.batch_size,
            num_batches=self.num_batches,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            augment=self.augment,
            pairs=objective.pairs,
            dtype=floating_dtype(model),
            again=self.epochs != 1,
        )

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the model's trainable parameters."""
        return build_optimizer(
            model, self.optimizer, self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def refuse_batch_options(self) -> None:
        """Refuse settings of batches where a loader makes them."""
        names = ("shuffle", "drop_last", "augment")
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        given = [name for name in names if getattr(self, name) != usual[name]]
        if given:
            raise InputError(
                f"{', '.join(given)} cannot be set here: the loader decides. Set it in the loader, "
                "or pass a DataSet or a pair of tensors."
            )

    def in_words(self) -> dict[str, Any]:
        """Every setting, in words that are the same in every process."""
        settings = {f.name: shown(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return settings | {"schedule": shown(as_schedule(self.schedule))}


def shown(thing: object) -> Any:
    """A setting in words without addresses."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if dataclasses.is_dataclass(thing):
        return repr(thing)
    return getattr(thing, "__qualname__", type(thing).__name__)
