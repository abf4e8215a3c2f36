"""A few updates of a copy at the rate asked about, where the curvature alone cannot tell."""

from __future__ import annotations

from typing import Any

from normscope.diagnose._curvature import descent
from normscope.diagnose._training_runs import TrainingRuns
from normscope.diagnose.subject import Subject
from normscope.subject.interrupts import interruptible
from normscope.train.run import INTERRUPTED
from normscope.train.stability.trials import SearchEnded

STEPS = 20  # updates; a rate that is much too large shows within ten


def tried_rate(subject: Subject, results: dict[str, Any]) -> str:
    """What happened at ``subject.lr``, after its outcome: diverged, rose or fell.

    Empty where no update is needed (the rate is below the local threshold, or training runs were
    made), or none could be made.
    """
    if subject.lr is None or "stability" in results or "sharpness" not in results:
        return ""
    if not subject.lr > descent(subject).threshold(results["sharpness"])[0]:
        return ""
    runs = TrainingRuns(subject, STEPS, (subject.seed,), 0.1, subject.deadline)
    try:
        with interruptible():
            bench = runs.bench(steps=STEPS, tick=lambda: None)
            bench.run(subject.lr, subject.seed)
    except SearchEnded as ended:
        if INTERRUPTED in str(ended):
            raise KeyboardInterrupt from None
        return ""
    except Exception:  # what was measured before must not be lost for it
        return ""
    [trial] = bench.trials
    outcome = "diverged" if trial.diverged else "rose" if trial.final > trial.start else "fell"
    return (
        f"{outcome}: After {trial.updates} update{'s' * (trial.updates != 1)} of a copy at this "
        f"rate the loss is {trial.final:.3g}; it was {trial.start:.3g}."
    )
