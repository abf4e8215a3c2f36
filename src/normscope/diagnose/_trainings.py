"""Trainings of copies of a subject, all under the conditions it was given with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from normscope.diagnose._race import climb
from normscope.diagnose.subject import Subject
from normscope.errors import NormscopeError
from normscope.measure.progress import progress
from normscope.results import StabilityLimit, StabilityTrial
from normscope.train.run import INTERRUPTED
from normscope.train.stability import max_stable_lr
from normscope.train.stability.copies import Origin
from normscope.train.stability.feeds import repeatable
from normscope.train.stability.limit import RULE
from normscope.train.stability.trials import Bench, Recipe, SearchEnded

__all__ = ["MARGIN", "Trainings", "said"]

MARGIN = 0.5  # of the largest rate that did not diverge: no race above


@dataclass(frozen=True, eq=False)
class Trainings:
    """How copies are trained.

    Attributes:
        subject: loss, optimizer and momentum.
        data: as ``fit`` takes it; every training reads it anew.
        steps: updates that a training is judged by.
        batch_size: of data that has none of its own.
        seeds: of the order of the samples; the first one is searched with.
        tol: relative width of a bisected interval.
        deadline: of ``time.monotonic``.
    """

    subject: Subject
    data: Any
    steps: int
    batch_size: int | None
    seeds: tuple[int, ...]
    tol: float
    deadline: float = math.inf

    @property
    def seconds(self) -> float | None:
        """What is left of the time; None if it is unlimited."""
        return None if self.deadline == math.inf else self.deadline - time.monotonic()

    def limit(self, model: nn.Module, *, criterion: str = "does-not-learn") -> StabilityLimit:
        """The bisected limits of ``model``."""
        return max_stable_lr(
            model,
            self.data,
            **self._objective(),
            **self._optimizer(),
            steps=self.steps,
            criterion=criterion,
            seeds=self.seeds,
            batch_size=self.batch_size,
            tol=self.tol,
            max_seconds=None if self.seconds is None else max(self.seconds, 1e-3),
        )

    def bench(self, model: nn.Module, *, steps: int, tick: Callable[[], None]) -> Bench:
        """Where copies of ``model`` are trained for ``steps`` updates, rate by rate."""
        recipe = Recipe(
            data=repeatable(self.data),
            **self._objective(),
            **self._optimizer(),
            weight_decay=0.0,
            batch_size=self.batch_size,
            rule=RULE,
        )
        return Bench(Origin(model, None), recipe, steps=steps, deadline=self.deadline, tick=tick)

    def race(
        self, model: nn.Module, limit: StabilityLimit, *, steps: int
    ) -> tuple[list[StabilityTrial], str]:
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
            bench = self.bench(model, steps=steps, tick=tick)

            def run(lr: float) -> StabilityTrial | None:
                try:
                    bench.run(lr, self.seeds[0])
                except SearchEnded as signal:
                    ended.append(str(signal))
                    return None
                return bench.trials[-1]

            return climb(run, min(best.lr, cap), cap), "; ".join(filter(None, ended))

    def _objective(self) -> dict[str, Any]:
        run = self.subject.task.run
        return {"loss": None if run else self.subject.loss, "loss_fn": run}

    def _optimizer(self) -> dict[str, Any]:
        """A factory holds its momentum itself."""
        chosen = self.subject.optimizer
        momentum = self.subject.momentum if isinstance(chosen, str) else 0.0
        return {"optimizer": chosen, "momentum": momentum}


def said(error: Exception) -> str:
    """An error in one line; ours without the name of its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, NormscopeError) else f"{type(error).__name__}: {text}"
