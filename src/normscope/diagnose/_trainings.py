"""Trainings of copies of a subject, all under the conditions it was given with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from normscope.diagnose._race import climb
from normscope.diagnose.subject import Subject
from normscope.errors import NormscopeError
from normscope.measure.progress import progress
from normscope.results import StabilityLimit, StabilityTrial
from normscope.subject.data import repeatable
from normscope.train.run import INTERRUPTED
from normscope.train.stability import max_stable_lr
from normscope.train.stability.copies import Origin
from normscope.train.stability.trials import Bench, Recipe, SearchEnded

MARGIN = 0.5  # of the largest rate that did not diverge: no race above


@dataclass(frozen=True, eq=False)
class Trainings:
    """How copies are trained.

    Attributes:
        subject: model, data, loss and how it is trained.
        steps: updates that a training is judged by.
        seeds: of the order of the samples; the first one is searched with.
        tol: relative width of a bisected interval.
        deadline: of ``time.monotonic``.
    """

    subject: Subject
    steps: int
    seeds: tuple[int, ...]
    tol: float
    deadline: float = math.inf

    @property
    def seconds(self) -> float | None:
        """What is left of the time; None if it is unlimited."""
        return None if self.deadline == math.inf else self.deadline - time.monotonic()

    def limit(self, *, criterion: str = "does-not-learn") -> StabilityLimit:
        """The bisected limits of the model."""
        how = self.subject.training
        return max_stable_lr(
            self.subject.model,
            self.subject.data,
            self.subject.objective,
            optimizer=how.optimizer,
            momentum=how.momentum,
            batch_size=how.batch_size,
            steps=self.steps,
            criterion=criterion,
            seeds=self.seeds,
            tol=self.tol,
            max_seconds=None if self.seconds is None else max(self.seconds, 1e-3),
        )

    def bench(self, *, steps: int, tick: Callable[[], None]) -> Bench:
        """Where copies of the model are trained for ``steps`` updates, rate by rate."""
        subject = self.subject
        data = repeatable(subject.data, steps + 1)
        recipe = Recipe(data, subject.objective, subject.training)
        origin = Origin(subject.model, None)
        return Bench(origin, recipe, steps=steps, deadline=self.deadline, tick=tick)

    def race(self, limit: StabilityLimit, *, steps: int) -> tuple[list[StabilityTrial], str]:
        """Trainings of ``steps`` updates, downhill from the best of the bisection.

        Returns:
            The trainings by learning rate, and why they ended early, if so.
        """
        if not limit.trials or limit.diverges.low == 0 or INTERRUPTED in limit.ended:
            return [], limit.ended
        ended = [limit.ended]
        cap = MARGIN * limit.diverges.low if limit.diverges.high < math.inf else math.inf
        learned = [t for t in limit.trials if t.learned]
        # Without one that learned the first guess is as good a start as any: at rates far above it
        # a network may die and stand still at a loss that looks low.
        best = min(learned, key=lambda t: t.final) if learned else limit.trials[0]
        with progress("further trainings") as tick:
            bench = self.bench(steps=steps, tick=tick)

            def run(lr: float) -> StabilityTrial | None:
                try:
                    bench.run(lr, self.seeds[0])
                except SearchEnded as signal:
                    ended.append(str(signal))
                    return None
                return bench.trials[-1]

            return climb(run, min(best.lr, cap), cap), "; ".join(filter(None, ended))


def said(error: Exception) -> str:
    """An error in one line; ours without the name of its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NormscopeError) else f"{type(error).__name__}: {text}"
