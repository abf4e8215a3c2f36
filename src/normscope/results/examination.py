"""All that was measured, predicted and found about one network."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normscope.checks import checked_target
from normscope.errors import InputError
from normscope.files import write_atomically
from normscope.record import Record
from normscope.render import report_package
from normscope.results.base import DataFrame, framed
from normscope.results.examination_summary import summary_lines
from normscope.results.finding import SEVERITIES, UNJUDGED, Evidence, Finding
from normscope.results.terminal import terminal_view
from normscope.results.trial import Trial


@dataclass(frozen=True, eq=False)
class Step(Record):
    """One measurement of an examination, planned or done.

    Attributes:
        name: key in ``Examination.measurements``.
        question: what it answers, in words.
        status: ``"planned"``, ``"ok"``, ``"skipped"`` (it makes no sense here), ``"left out"`` (for
            want of time), ``"failed"`` or ``"interrupted"``.
        reason: why it is not ok, or what to know about it.
        estimate: seconds expected.
        seconds: seconds taken.
        gives: keys of its results, if not its name alone.
    """

    name: str
    question: str
    status: str = "planned"
    reason: str = ""
    estimate: float = 0.0
    seconds: float = 0.0
    gives: tuple[str, ...] = ()

    @property
    def missing(self) -> bool:
        """Whether it could have been made, and was not, or not to its end."""
        return self.status in ("left out", "failed", "interrupted")


@dataclass(frozen=True, eq=False)
class Plan(Record):
    """What can be measured, what not and why, and what it will take: known before any of it.

    Attributes:
        steps: in order.
        seconds: expected in all.
        bytes: expected at the peak.
        model: the network in words.
        data: the samples in words.
        coverage: share of the parameters in layers and norms that are known.
    """

    steps: tuple[Step, ...]
    seconds: float
    bytes: int
    model: str
    data: str
    coverage: float

    def summary(self) -> str:
        """A table for a terminal."""
        lines = [
            f"{self.model}, {self.data}",
            f"about {_two_digits(self.seconds)} s and {_memory(self.bytes)}; layers with "
            f"{100 * self.coverage:.0f} % of the parameters can be probed",
        ]
        for step in self.steps:
            planned = step.status == "planned"
            cost = f"{_two_digits(step.estimate):>6} s" if planned else f"{step.status:>8}"
            why = f" ({step.reason})" if step.reason else ""
            lines.append(f"  {cost}  {step.name}: {step.question}{why}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False, repr=False)
class Examination(Record):
    """The answer of ``examine``: findings first, evidence behind them.

    Attributes:
        model: the network in words.
        numbers: the few that one would want to see first.
        findings: what warns first, causes before what follows from them.
        measurements: results by name; each is a record with its own table and chart.
        plan: what was to be measured, and what became of it.
        convention: every setting that was in effect.
        seconds: time taken.
        partial: why it is not complete; empty if it is.
        version: version of normscope.
        notes: what to know about the conditions of the measurements.
        answer: the first line: will it train at this learning rate, and if not, why?
    """

    model: str
    numbers: tuple[Evidence, ...]
    findings: tuple[Finding, ...]
    measurements: dict[str, Any]
    plan: Plan
    convention: dict[str, Any]
    seconds: float
    partial: str = ""
    version: str = ""
    notes: tuple[str, ...] = field(default=())
    answer: str = ""

    def __getitem__(self, name: str) -> Any:
        """The measurement called ``name``."""
        if name not in self.measurements:
            step = next((s for s in self.plan.steps if name in (s.name, *s.gives)), None)
            why = f" {name!r} was {step.status}: {step.reason}." if step else ""
            raise InputError(
                f"There is no measurement {name!r} here; there are "
                f"{', '.join(self.measurements) or 'none'}.{why}"
            )
        return self.measurements[name]

    @property
    def worst(self) -> str:
        """The most severe one found."""
        return max((f.severity for f in self.findings), key=SEVERITIES.index, default="ok")

    @property
    def missing(self) -> tuple[Step, ...]:
        """The measurements that were planned and not made, or not to their end."""
        return tuple(step for step in self.plan.steps if step.missing)

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it."""
        return self.partial.startswith("interrupted")

    def above(self, severity: str) -> tuple[Finding, ...]:
        """The findings at or above ``severity``."""
        if severity not in SEVERITIES:
            raise InputError(f"A severity is one of {', '.join(SEVERITIES)}. Got {severity!r}.")
        return tuple(f for f in self.findings if f.rank >= SEVERITIES.index(severity))

    def to_frame(self) -> DataFrame:
        """One row per finding."""
        columns = ["severity", "rule", "layer", "title", "value", "threshold"]
        rows = [
            [f.severity, f.rule, f.layer, f.title]
            + ([f.evidence[0].value, f.evidence[0].threshold] if f.evidence else [None, None])
            + [f.advice, f.reference]
            for f in self.findings
        ]
        return framed(rows, columns=[*columns, "advice", "reference"])

    def save(self, path: str | Path) -> Path:
        """Write the page (.html), or the data (.json) that ``normscope report`` makes it from."""
        target = Path(path)
        if target.suffix.lower() == ".json":
            write_atomically(checked_target(target), self.to_json())
            return target
        saved: Path = report_package().save_page(self, target)
        return saved

    def summary(self) -> str:
        """The answer, and what was found, in at most 25 lines for a terminal."""
        return "\n".join(summary_lines(self))

    @property
    def unjudged(self) -> tuple[str, ...]:
        """That the network could not be judged; empty if it could."""
        return tuple(f.title for f in self.findings if f.severity == UNJUDGED)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How many checks passed, what was not measured, and why."""
        fine = sum(f.severity == "ok" for f in self.findings)
        other = "other " if self.above("note")[len(self.unjudged) :] else ""
        passed = f"{fine} {other}check{'' if fine == 1 else 's'} passed"
        passed = f"No issues found ({passed})" if self.worst == "ok" else passed
        reasons = dict[tuple[str, str], list[str]]()
        for step in (s for s in self.plan.steps if s.status != "ok"):
            reasons.setdefault((step.status, step.reason), []).append(step.name)
        return (
            (f"{passed}; " if fine else "") + f"{self.seconds:.1f} s{self._of_trial}",
            *(() if self.unjudged else self._unprobed),
            *(f"{', '.join(names)} {how}: {why}" for (how, why), names in reasons.items()),
            *self.notes,
        )

    @property
    def _of_trial(self) -> str:
        """What of the time the trial took."""
        trial: Trial | None = self.measurements.get("trial")
        if trial is None:
            return ""
        cost = f"{trial.seconds:.1f} s of the trial, {trial.gradients:.0f} gradients"
        return f" ({cost}{'; left out: ' * bool(trial.left_out)}{trial.left_out})"

    @property
    def _unprobed(self) -> tuple[str, ...]:
        """Which layers the probes do not know, if they hold many parameters."""
        share = self.plan.coverage
        if share > 0.995:
            return ()
        layout = self.measurements.get("layout")
        lines = layout.coverage.summary().splitlines()[1:] if layout is not None else []
        return (
            f"Checks of signals and conditioning cover {share:.0%} of the parameters."
            + (" Not covered:" if lines else ""),
            *lines,
        )

    def __rich__(self) -> Any:
        return terminal_view(self)

    def _repr_html_(self) -> str:
        html: str = report_package().page_fragment(self)
        return html

    def chart(self, name: str, **options: Any) -> Any:
        """The chart of the measurement called ``name``."""
        return self[name].chart(**options)

    def __repr__(self) -> str:
        counts = [f"{sum(f.severity == s for f in self.findings)} {s}" for s in SEVERITIES[::-1]]
        state = f", partial: {self.partial}" if self.partial else ""
        return f"Examination({self.model}: {', '.join(counts)}{state})"


def _two_digits(number: float) -> str:
    """Two digits that count, without an exponent: 0.034, 1.2, 160; 0.001 stands for less."""
    rounded = float(f"{max(number, 1e-3):.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:.2g}"


def _memory(count: int) -> str:
    return f"{_two_digits(count / 1e9)} GB" if count >= 1e9 else f"{_two_digits(count / 1e6)} MB"
