"""All that a training run is made of, and the same in words."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from normscope.subject.objective import Objective
from normscope.subject.problem import model_device
from normscope.subject.reading import BATCH_SIZE, Source
from normscope.subject.statistics import in_words as statistics_in_words
from normscope.train.options import TrainingOptions
from normscope.train.run import Event
from normscope.train.schedules import Schedule, as_schedule

Callback = Callable[[Event], object]


@runtime_checkable
class Stateful(Protocol):
    """Something with a state, of tensors and plain values, that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint keeps."""

    def load_state_dict(self, state: Any, /) -> object:
        """Take a state back."""


class Refresher(Stateful, Protocol):
    """Something to do before every update, such as ``nn.PopulationRefresher``."""

    def step(self) -> object:
        """Do what is due before this update."""


@dataclass(frozen=True)
class Plan:
    """The parts of a training run."""

    model: nn.Module
    source: Source
    objective: Objective
    optimizer: torch.optim.Optimizer
    device: torch.device
    options: TrainingOptions
    refreshers: tuple[Refresher, ...]
    callbacks: tuple[Callback, ...]
    validation: Source | None = None

    @property
    def schedule(self) -> Schedule:
        """Of the learning rate."""
        return as_schedule(self.options.schedule)

    @property
    def total(self) -> int | None:
        """Number of updates; None if it is not known beforehand."""
        steps, epochs, whole = self.options.steps, self.options.epochs, self.source.per_epoch
        return epochs * whole if steps is None and epochs and whole else steps

    @property
    def stateful(self) -> list[Stateful]:
        """The helpers whose state belongs into a checkpoint, in a fixed order."""
        helpers = (self.options.penalty, *self.refreshers, *self.callbacks)
        return [helper for helper in helpers if isinstance(helper, Stateful)]

    @property
    def convention(self) -> dict[str, Any]:
        """Every setting, in words and numbers."""
        words = in_words(self.model, self.source, self.objective, self.options)
        seen = self.validation
        return words if seen is None else words | {"validation": seen.description}


def in_words(
    model: nn.Module, source: Source, objective: Objective, options: TrainingOptions
) -> dict[str, Any]:
    """What a training run is: every setting, in words and numbers."""
    return {
        "model": model_in_words(model),
        "data": source.description,
        "loss": objective.loss.description,
        "statistics": statistics_in_words(model, "batch"),
        "parameters": f"{_trainable(model)} trainable numbers",
        **options.in_words(),
        "batch_size": None if source.own_batches else options.batch_size or BATCH_SIZE,
        "batches": _per_epoch(source.per_epoch),
        "left out": "the last batch if it is shorter" if options.drop_last else "none",
        "device": str(model_device(model)),
    }


def _per_epoch(number: int | None) -> str:
    if number is None:
        return "a number of batches an epoch that is not known"
    return f"{number} batch{'es' if number > 1 else ''} an epoch"


def model_in_words(model: nn.Module) -> str:
    """Class, size and a checksum of the names and shapes of parameters and buffers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    listing = ";".join(f"{name}{tuple(t.shape)}{t.dtype}" for name, t in tensors)
    name = type(model).__name__
    numbers = _trainable(model)
    return f"{name}, {numbers} trainable numbers, layout {zlib.crc32(listing.encode()):08x}"


def _trainable(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
