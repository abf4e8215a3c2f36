"""Training runs on copies of a subject, all under the same conditions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from normscope.diagnose._race import Choice, choose, climb
from normscope.diagnose.subject import Subject
from normscope.measure.progress import progress
from normscope.results import StabilityLimit, StabilityTrial
from normscope.subject.data import repeatable
from normscope.train.run import INTERRUPTED
from normscope.train.stability import max_stable_lr
from normscope.train.stability.copies import Origin
from normscope.train.stability.trials import Bench, Recipe, SearchEnded

MARGIN = 0.5  # of the largest rate that did not diverge: no race above


@dataclass(frozen=True, eq=False)
class Race:
    """Training runs at several rates.

    Attributes:
        trials: by learning rate, with one order of the samples.
        again: some of these rates with another order.
        cap: no rate above is recommended.
        ended: why they ended early; empty if they did not.
    """

    trials: list[StabilityTrial]
    again: list[StabilityTrial]
    cap: float
    ended: str

    @property
    def choice(self) -> Choice | None:
        """The rate that the race speaks for."""
        return choose([t for t in self.trials if t.lr <= self.cap * (1 + 1e-9)], self.again)

    def untested(self, own: float | None) -> set[float]:
        """Rates that the other order of the samples is wanted for."""
        choice = self.choice
        if choice is None:
            return set()
        wanted = {choice.best.lr, *choice.tried} | {t.lr for t in self.trials if t.lr == own}
        return wanted - {t.lr for t in self.again}


@dataclass(frozen=True, eq=False)
class TrainingRuns:
    """How copies are trained.

    Attributes:
        subject: model, data, loss and how it is trained.
        steps: updates that a training is judged by.
        seeds: seeds for the order of the samples; the search uses the first one, the others test.
        tol: relative width of a bisected interval.
        deadline: time (``time.monotonic``) after which training runs end.
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

    def race(self, limit: StabilityLimit, *, steps: int, own: float | None = None) -> Race:
        """Training runs of ``steps`` updates, downhill from the best of the bisection.

        With a second seed the best rate and the ends of its interval are trained with that order
        of the samples too. ``own``: a rate to train at in any case.
        """
        cap = MARGIN * limit.diverges.low if limit.diverges.high < math.inf else math.inf
        if not limit.trials or limit.diverges.low == 0 or INTERRUPTED in limit.ended:
            return Race([], [], cap, limit.ended)
        ended = [limit.ended]
        learned = [t for t in limit.trials if t.learned]
        # Without one that learned the first guess is as good a start as any: at rates far above it
        # a network may die and stand still at a loss that looks low.
        best = min(learned, key=lambda t: t.final) if learned else limit.trials[0]
        with progress("further training runs") as tick:
            bench = self.bench(steps=steps, tick=tick)

            def run(lr: float, seed: int = self.seeds[0]) -> StabilityTrial | None:
                try:
                    bench.run(lr, seed)
                except (SearchEnded, KeyboardInterrupt) as signal:
                    ended.append(str(signal) or INTERRUPTED)
                    return None
                return next(t for t in bench.of(seed) if t.lr == lr)

            def found() -> Race:
                orders = [sorted(bench.of(s), key=lambda t: t.lr) for s in self.seeds[:2]]
                return Race(orders[0], orders[-1] if len(orders) > 1 else [], cap, _said(ended))

            if climb(run, min(best.lr, cap), cap) and own:  # a rate of 0 trains nothing
                run(own)
            for seed in self.seeds[1:2]:
                while left := found().untested(own):
                    if not all(run(lr, seed) for lr in left):
                        break
            return found()


def _said(ended: list[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, ended)))
