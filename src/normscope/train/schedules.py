"""Learning-rate schedules of the papers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from normscope.errors import InputError
from normscope.registry import Registry


@dataclass(frozen=True)
class When:
    """A moment of a training.

    Attributes:
        step: number of updates made before this one.
        per_epoch: updates in an epoch; None if the loader does not tell.
        total: updates in the whole training; None if that is not known.
    """

    step: int
    per_epoch: int | None
    total: int | None


class Schedule(ABC):
    """A learning rate as a function of time."""

    @abstractmethod
    def lr(self, base: float, when: When) -> float:
        """Learning rate of the update at ``when``, for a base rate ``base``."""


@dataclass(frozen=True)
class Constant(Schedule):
    """The base rate throughout."""

    def lr(self, base: float, when: When) -> float:
        """The base rate, at every step."""
        return base


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiplied by ``factor`` at each fraction of the training (He et al.: 50 % and 75 %)."""

    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def lr(self, base: float, when: When) -> float:
        """``base`` times ``factor`` for each fraction passed."""
        total = _known(when.total, "StepDecay", "steps=")
        return base * self.factor ** sum(when.step >= share * total for share in self.at)


@dataclass(frozen=True)
class EpochDecay(Schedule):
    """Multiplied by ``factor`` at the start of each named epoch (Luo et al. B.1: 30, 60, 90)."""

    epochs: tuple[int, ...] = (30, 60, 90)
    factor: float = 0.1

    def lr(self, base: float, when: When) -> float:
        """``base`` times ``factor`` for each epoch reached."""
        length = _known(when.per_epoch, "EpochDecay", "a loader with a length")
        return base * self.factor ** sum(when.step >= epoch * length for epoch in self.epochs)


@dataclass(frozen=True)
class InverseTime(Schedule):
    """lr / (1 + rate t) after t updates: Luo et al.'s decay "by 1e-4 each step", as we read it."""

    rate: float = 1e-4

    def lr(self, base: float, when: When) -> float:
        """``base / (1 + rate t)``."""
        return base / (1 + self.rate * when.step)


@dataclass(frozen=True)
class Exponential(Schedule):
    """lr (1 - rate)^t after t updates: the other reading of the same sentence."""

    rate: float = 1e-4

    def lr(self, base: float, when: When) -> float:
        """``base (1 - rate)^t``."""
        return base * (1 - self.rate) ** when.step


@dataclass(frozen=True)
class WarmStart(Schedule):
    """A small fixed rate first, another schedule afterwards (Bjorck et al.: one epoch at 1e-4).

    The second schedule counts its steps from the start of the training.
    """

    first: float = 1e-4
    epochs: float = 1.0
    then: Schedule = field(default_factory=Constant)

    def lr(self, base: float, when: When) -> float:
        """``first`` during the first epochs, then that of ``then``."""
        length = _known(when.per_epoch, "WarmStart", "a loader with a length")
        return self.first if when.step < self.epochs * length else self.then.lr(base, when)


def _known(number: int | None, who: str, remedy: str) -> int:
    if number is None:
        raise InputError(
            f"{who} must know how long the training lasts, but the loader has no length. Pass "
            f"{remedy}, or use the constant schedule."
        )
    return number


_NAMED: dict[str, Schedule] = {
    **{"constant": Constant(), "step": StepDecay(), "epoch": EpochDecay()},
    **{"inverse-time": InverseTime(), "exponential": Exponential(), "warm-start": WarmStart()},
}
schedules: Registry[Schedule] = Registry("schedule", _NAMED)


def as_schedule(schedule: str | Schedule) -> Schedule:
    """The schedule that a name means, or the object itself."""
    if isinstance(schedule, Schedule):
        return schedule
    return schedules[schedule]
