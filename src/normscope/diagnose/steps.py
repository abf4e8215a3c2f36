"""The measurements of an examination: the question of each, its preset and its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normscope.diagnose.subject import Subject
from normscope.errors import InputError
from normscope.registry import near_match

PRESETS = ("fast", "standard", "full")  # each contains the one before
Results = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One step of an examination.

    Attributes:
        name: key among the results.
        question: what it answers, in words.
        preset: the first preset that has it.
        gradients: its cost, in gradients of the loss of one batch; a function of the subject
            where that decides.
        run: makes the result, given those made before.
        obstacle: why it cannot be made for this subject, or None.
        gives: keys of its results, if not its name alone.
        vectors: how many vectors as long as the parameters, in float64, it keeps.
        anytime: whether it ends by the subject's deadline, with what it knows by then.
    """

    name: str
    question: str
    preset: str
    gradients: float | Callable[[Subject], float]
    run: Callable[[Subject, Results], Any]
    obstacle: Callable[[Subject], str | None] = lambda _: None
    gives: tuple[str, ...] = ()
    vectors: Callable[[Subject], float] = lambda _: 0.0
    anytime: bool = False

    def cost(self, subject: Subject) -> float:
        """Gradients that it takes for this subject."""
        return self.gradients(subject) if callable(self.gradients) else self.gradients


STEPS: dict[str, Measurement] = {}  # in the order in which they are made


def steps_of(preset: str) -> list[Measurement]:
    """The measurements of ``preset``, in the order in which they are made."""
    if preset not in PRESETS:
        raise InputError(f"Unknown preset {preset!r}. {near_match(str(preset), list(PRESETS))}")
    wanted = PRESETS[: PRESETS.index(preset) + 1]
    return [measurement for measurement in STEPS.values() if measurement.preset in wanted]


def step(
    name: str,
    question: str,
    *,
    preset: str,
    gradients: float | Callable[[Subject], float],
    obstacle: Callable[[Subject], str | None] = lambda _: None,
    gives: tuple[str, ...] = (),
    vectors: Callable[[Subject], float] = lambda _: 0.0,
    anytime: bool = False,
) -> Callable[[Callable[[Subject, Results], Any]], Callable[[Subject, Results], Any]]:
    """Decorator that adds a function to the registry of measurements."""

    def add(run: Callable[[Subject, Results], Any]) -> Callable[[Subject, Results], Any]:
        STEPS[name] = Measurement(
            name, question, preset, gradients, run, obstacle, gives, vectors, anytime
        )
        return run

    return add
