"""The measurements of an examination: the question of each, its preset and its cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from normscope.diagnose.subject import Subject
from normscope.registry import check_choice

PRESETS = ("fast", "standard", "full")  # each contains the one before
Results = dict[str, Any]
Cost = Callable[[Subject], float]
Make = Callable[[Subject, Results], Any]


@dataclass(frozen=True)
class Measurement:
    """One step of an examination.

    Attributes:
        name: key among the results.
        question: what it answers, in words.
        preset: the first preset that has it.
        gradients: its cost, in gradients of the loss of all batches that are kept; a function of
            the subject where that decides.
        run: makes the result, given those made before.
        obstacle: why it cannot be measured on this subject, or None.
        gives: keys of its results, if not its name alone.
        vectors: how many vectors as long as the parameters, in float64, it keeps.
        anytime: whether it ends by the subject's deadline, with what it knows by then.
    """

    name: str
    question: str
    preset: str
    gradients: float | Cost
    run: Make
    obstacle: Callable[[Subject], str | None] = lambda _: None
    gives: tuple[str, ...] = ()
    vectors: Cost = lambda _: 0.0
    anytime: bool = False

    def cost(self, subject: Subject) -> float:
        """Gradients that it takes for this subject."""
        return self.gradients(subject) if callable(self.gradients) else self.gradients


def probed(subject: Subject, probe: Callable[..., Any], **options: Any) -> Any:
    """What ``probe`` finds on all batches, with the graph that was read before."""
    problem = replace(subject.problem, graph=subject.graph)
    return probe(subject.model, problem, num_batches=None, seed=subject.seed, **options)


STEPS: dict[str, Measurement] = {}  # in the order in which they are made


def steps_of(preset: str) -> list[Measurement]:
    """The measurements of ``preset``, in the order in which they are made."""
    check_choice("preset", preset, PRESETS)
    wanted = PRESETS[: PRESETS.index(preset) + 1]
    return [measurement for measurement in STEPS.values() if measurement.preset in wanted]


def step(name: str, preset: str, gradients: float | Cost, **options: Any) -> Callable[[Make], Make]:
    """Decorator that adds a function to the registry; its docstring is the question."""

    def add(run: Make) -> Make:
        question = " ".join((run.__doc__ or name).split())
        STEPS[name] = Measurement(name, question, preset, gradients, run, **options)
        return run

    return add
