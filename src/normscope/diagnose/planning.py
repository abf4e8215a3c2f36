"""Before an examination: what can be measured, how long it takes, and how much memory."""

from __future__ import annotations

import math
import time

from normscope.diagnose.architecture import architecture
from normscope.diagnose.steps import Measurement
from normscope.diagnose.subject import Subject
from normscope.errors import MeasurementError
from normscope.measure.setup import set_up
from normscope.results import Plan, Step
from normscope.subject.graph import Graph
from normscope.subject.memory import PASSING_TWICE, forward_bytes

TIMES, ENOUGH = 3, 0.2  # gradients that are timed; seconds after which no other is


def timed_gradient(subject: Subject) -> float:
    """Seconds that one gradient of the loss takes on the batches that are kept.

    A loss that is not finite, or has no gradient, is to be found: here it only costs its time.
    """
    began = time.perf_counter()
    try:
        return _timed(subject)
    except MeasurementError:
        found = set_up(subject.problem, subject.batches[0], subject.held, subject.foreign).wiring
        if math.isfinite(found.loss) and any(p.gradient > 0 for p in found.parameters):
            raise
        return time.perf_counter() - began


def _timed(subject: Subject) -> float:
    risk = subject.risk()  # runs a few samples, and warms up
    taken: list[float] = []
    while len(taken) < TIMES and sum(taken) < ENOUGH:
        began = time.perf_counter()
        risk.gradient()
        taken.append(time.perf_counter() - began)
    return min(taken)  # what others do on the machine only adds to it


def plan_of(subject: Subject, measurements: list[Measurement], seconds: float) -> Plan:
    """The plan, given the seconds of one gradient."""
    steps = []
    for m in measurements:
        obstacle = m.obstacle(subject)
        status = "planned" if obstacle is None else "skipped"
        cost = 0.0 if obstacle else m.cost(subject) * seconds
        steps.append(Step(m.name, m.question, status, obstacle or "", cost, gives=m.gives))
    planned = [m for m, s in zip(measurements, steps, strict=True) if s.status == "planned"]
    return Plan(
        steps=tuple(steps),
        seconds=sum(s.estimate for s in steps),
        bytes=_bytes(subject, planned),
        model=architecture(subject),
        data=subject.source.convention["batches"],
        coverage=_known(subject.graph),
    )


def _bytes(subject: Subject, measurements: list[Measurement]) -> int:
    try:
        risk = subject.risk()
    except MeasurementError:  # no loss that could be differentiated
        return 0
    saved = forward_bytes(risk.function(), risk.batches[0])
    parameters = sum(p.numel() * p.element_size() for p in subject.model.parameters())
    numbers = sum(p.numel() for p in subject.model.parameters())
    vectors = max((m.vectors(subject) for m in measurements), default=0.0)
    return int(PASSING_TWICE * saved + 10 * parameters + 8 * numbers * vectors)


def _known(graph: Graph | None) -> float:
    return 0.0 if graph is None else graph.coverage["layers"] + graph.coverage["norms"]
