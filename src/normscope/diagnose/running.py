"""Carrying out a plan: one measurement after the other, whatever happens to one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from normscope.diagnose.steps import Measurement
from normscope.diagnose.subject import Subject
from normscope.errors import MeasurementError, TheoryError, out_of_memory
from normscope.measure.progress import progress
from normscope.messages import said
from normscope.results import Plan, Step
from normscope.subject.interrupts import hold_rest, interruptible
from normscope.train.run import INTERRUPTED

SMALLEST = 8  # samples below which a batch is not halved again when memory runs out
LEAST = 0.1  # share of its time without which a measurement that could end early is not begun
Found = TypeVar("Found")


class Run:
    """What became of a plan.

    Attributes:
        results: by name.
        steps: the plan's steps, with their outcome.
        notes: what to know about the conditions.
        partial: why the run is not complete; empty if it is.
    """

    def __init__(self, subject: Subject, plan: Plan, deadline: float) -> None:
        self._subject = subject
        self._deadline = deadline
        self.results: dict[str, Any] = {}
        self.steps = list(plan.steps)
        self.notes: list[str] = []
        self.partial = ""

    @property
    def samples(self) -> int:
        """In a batch, by the end: fewer than at first where memory ran out."""
        return self._subject.samples

    def ended_by(self, why: str) -> list[Step]:
        """The steps, those that were not reached left out for this reason."""
        return [
            replace(step, status="left out", reason=why) if step.status == "planned" else step
            for step in self.steps
        ]

    def make(self, place: int, measurement: Measurement) -> bool:
        """Make one measurement, or note why not; whether it was made, and the next may be."""
        step, left = self.steps[place], self._deadline - time.monotonic()
        if step.status != "planned" or self.partial:
            return False  # it cannot be made, and says why
        if left < step.estimate * (LEAST if measurement.anytime else 1):
            why = f"takes about {step.estimate:.3g} s; {max(left, 0):.3g} s were left"
            step = replace(step, status="left out", reason=f"{why} of max_seconds")
        else:
            began = time.monotonic()
            step = replace(self._outcome(measurement, step), seconds=time.monotonic() - began)
        self.steps[place] = step
        return step.status == "ok"

    def _outcome(self, measurement: Measurement, step: Step) -> Step:
        try:
            with interruptible():  # and nothing else here: what was measured is kept
                found = self._measured(measurement)
        except KeyboardInterrupt:
            self.partial = f"interrupted during {measurement.name!r}"
            return replace(step, status="interrupted", reason=self.partial)
        except TheoryError as error:  # no failure: there is no theory of such networks
            return replace(step, status="skipped", reason=said(error))
        except Exception as error:
            return replace(step, status="failed", reason=said(error))
        made = found if isinstance(found, dict) else {measurement.name: found}
        self.results.update(made)
        # trainings that time or Ctrl-C ended give what they knew by then
        ended = next(filter(None, (getattr(one, "ended", "") for one in made.values())), "")
        if INTERRUPTED in ended:
            self.partial = f"interrupted during {measurement.name!r}"
        return replace(step, status="interrupted" if ended else "ok", reason=ended)

    def _measured(self, measurement: Measurement) -> Any:
        what = repr(measurement.name)
        found, self._subject, notes = within_memory(
            self._subject, what, lambda subject: measurement.run(subject, self.results)
        )
        self.notes += notes
        return found


def within_memory(
    subject: Subject, what: str, action: Callable[[Subject], Found]
) -> tuple[Found, Subject, list[str]]:
    """What ``action`` makes of the subject, with half the samples each time memory runs out.

    Returns:
        What was made, the subject it was made of, and a note for every time it was halved.
    """
    notes: list[str] = []
    while True:
        try:
            return action(subject), subject, notes
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            if subject.samples < 2 * SMALLEST:
                raise MeasurementError(
                    f"Memory ran out during {what} with batches of {subject.samples} samples. "
                    "Smaller ones would tell little. Examine a smaller network, or use a larger "
                    "machine."
                ) from error
        subject = subject.smaller()
        notes.append(
            f"Memory ran out during {what}; from there on batches of {subject.samples} samples "
            "were used."
        )


def carried_out(
    subject: Subject,
    measurements: list[Measurement],
    plan: Plan,
    deadline: float,
    after_step: Callable[[Run, str], None],
) -> Run:
    """Make the measurements of ``plan`` until ``deadline`` (of ``time.monotonic``).

    ``after_step`` is told of each that was made, and why the run would not be complete if it were
    killed now. Only measurements can be interrupted.
    """
    hold_rest()
    run = Run(subject, plan, deadline)
    with progress("examining", len(measurements)) as tick:
        for place, measurement in enumerate(measurements):
            if run.make(place, measurement):
                after_step(run, f"interrupted after {measurement.name!r}")
            tick()
    run.steps = run.ended_by(run.partial)
    missing = [f"{step.name} ({step.status})" for step in run.steps if step.missing]
    if run.results and missing and not run.partial:
        run.partial = f"not made: {', '.join(missing)}"
    if not run.results and not run.partial:
        reasons = " ".join(f"{step.name}: {step.reason}." for step in run.steps)
        raise MeasurementError(
            f"Nothing could be measured. {reasons} Allow more time, or examine fewer samples."
        )
    return run
