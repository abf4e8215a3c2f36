"""All that a training is made of, and the same in words."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from normscope.train._feed import Feed
from normscope.train._objective import Objective
from normscope.train.divergence import Divergence
from normscope.train.gamma_decay import Penalty
from normscope.train.run import Event
from normscope.train.schedules import Schedule

__all__ = ["Callback", "Plan", "Refresher", "Stateful", "model_in_words", "shown"]

Callback = Callable[[Event], object]


@runtime_checkable
class Stateful(Protocol):
    """Something with a state, of tensors and plain values, that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state: Any, /) -> object:
        """Take a state back."""


class Refresher(Stateful, Protocol):
    """Something to do before every update, such as ``nn.PopulationRefresher``."""

    def step(self) -> object:
        """Do it."""


@dataclass(frozen=True)
class Plan:
    """The parts of a training; ``convention`` is every setting in words and numbers."""

    model: nn.Module
    feed: Feed
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    device: torch.device
    seed: int
    steps: int | None
    epochs: int | None
    penalty: Penalty | None
    clip: float | None
    divergence: Divergence | None
    refreshers: tuple[Refresher, ...]
    callbacks: tuple[Callback, ...]
    convention: dict[str, Any]

    @property
    def total(self) -> int | None:
        """Number of updates; None if it is not known beforehand."""
        if self.steps is not None:
            return self.steps
        if self.epochs is None or self.feed.per_epoch is None:
            return None
        return self.epochs * self.feed.per_epoch

    @property
    def stateful(self) -> list[Stateful]:
        """The helpers whose state belongs into a checkpoint, in a fixed order."""
        helpers = (self.penalty, *self.refreshers, *self.callbacks)
        return [helper for helper in helpers if isinstance(helper, Stateful)]


def model_in_words(model: nn.Module) -> str:
    """Class, size and a checksum of the names and shapes of parameters and buffers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    listing = ";".join(f"{name}{tuple(t.shape)}{t.dtype}" for name, t in tensors)
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    name = type(model).__name__
    return f"{name}, {numbers} trainable numbers, layout {zlib.crc32(listing.encode()):08x}"


def shown(thing: object) -> Any:
    """A setting in words that are the same in every process (no addresses)."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if dataclasses.is_dataclass(thing):
        return repr(thing)
    return getattr(thing, "__qualname__", type(thing).__name__)
