"""Carrying out a plan: one measurement after the other, whatever happens to one of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from normscope.diagnose.steps import Measurement
from normscope.diagnose.subject import Subject
from normscope.errors import MeasurementError, NormscopeError
from normscope.measure.progress import progress
from normscope.results import Plan, Step

__all__ = ["Run", "carried_out"]

SMALLEST = 8  # samples below which a batch is not halved again when memory runs out


class Run:
    """What became of a plan.

    Attributes:
        results: by name.
        steps: the plan's steps, with their outcome.
        notes: what to know about the conditions.
        partial: why the run is not complete; empty if it is.
    """

    def __init__(self, subject: Subject, deadline: float) -> None:
        self._subject = subject
        self._deadline = deadline
        self.results: dict[str, Any] = {}
        self.steps: list[Step] = []
        self.notes: list[str] = []
        self.partial = ""

    def make(self, measurement: Measurement, step: Step) -> None:
        """Make one measurement, or note why not."""
        left = self._deadline - time.monotonic()
        if self.partial:
            step = replace(step, status="skipped", reason=self.partial)
        elif step.status == "planned" and left < step.estimate:
            why = (
                f"takes about {step.estimate:.0f} s; {max(left, 0):.0f} s of max_seconds were left"
            )
            step = replace(step, status="skipped", reason=why)
        elif step.status == "planned":
            began = time.monotonic()
            step = replace(self._outcome(measurement, step), seconds=time.monotonic() - began)
        self.steps.append(step)

    def _outcome(self, measurement: Measurement, step: Step) -> Step:
        try:
            found = self._measured(measurement)
        except KeyboardInterrupt:
            self.partial = f"interrupted during {measurement.name!r}"
            return replace(step, status="interrupted", reason=self.partial)
        except Exception as error:
            return replace(step, status="failed", reason=_said(error))
        self.results.update(found if isinstance(found, dict) else {measurement.name: found})
        return replace(step, status="ok")

    def _measured(self, measurement: Measurement) -> Any:
        while True:
            try:
                return measurement.run(self._subject, self.results)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error) or self._subject.samples < 2 * SMALLEST:
                    raise
                self._subject = self._subject.smaller()
                self.notes.append(
                    f"Memory ran out during {measurement.name!r}; from there on batches of "
                    f"{self._subject.samples} samples were used."
                )


def carried_out(
    subject: Subject, measurements: list[Measurement], plan: Plan, deadline: float
) -> Run:
    """Make the measurements of ``plan`` until ``deadline`` (of ``time.monotonic``)."""
    run = Run(subject, deadline)
    with progress("examining", len(measurements)) as tick:
        for measurement, step in zip(measurements, plan.steps, strict=True):
            run.make(measurement, step)
            tick()
    if not run.results and not run.partial:
        reasons = " ".join(f"{step.name}: {step.reason}." for step in run.steps)
        raise MeasurementError(f"Nothing could be measured. {reasons}")
    return run


def _out_of_memory(error: BaseException) -> bool:
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "can't allocate" in words


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, NormscopeError) else f"{type(error).__name__}: {text}"
