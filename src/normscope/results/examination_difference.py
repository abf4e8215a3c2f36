"""Two examinations side by side: which numbers moved, which findings came and went."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope._version import __version__
from normscope.record import Record
from normscope.render import report_package
from normscope.results.base import DataFrame, Drawable, listed
from normscope.results.examination import Examination
from normscope.results.finding import SEVERITIES, UNJUDGED, Finding
from normscope.results.key_numbers import key_numbers

if TYPE_CHECKING:
    from pathlib import Path

HEADLINE = ""  # measurement of the numbers at the head of an examination
CHANGES = ("appeared", "worse", "better", "disappeared", "same", "not judged")


@dataclass(frozen=True, eq=False)
class NumberChange(Record):
    """One number of both examinations; NaN in one that does not have it.

    Attributes:
        measurement: where it comes from; empty for the numbers at the head.
        quantity: what it is.
        first: in the first examination.
        second: in the second.
        ratio: second over first; NaN where there is none.
    """

    measurement: str
    quantity: str
    first: float
    second: float
    ratio: float


@dataclass(frozen=True, eq=False)
class FindingChange(Record):
    """What one rule says of both networks, by its most severe finding.

    Attributes:
        rule: its name.
        change: ``"appeared"``, ``"disappeared"``, ``"worse"``, ``"better"``, ``"same"``, or
            ``"not judged"`` if one examination lacks what the rule needs.
        first: severity in the first examination; empty if not judged.
        second: in the second.
        title: title of the finding in the second examination, or in the first if only it has one.
        layers: where, in the first and the second; None for the whole network.
    """

    rule: str
    change: str
    first: str
    second: str
    title: str
    layers: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True, eq=False)
class SettingChange(Record):
    """A setting in which the examinations differ."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True, eq=False, repr=False)
class ExaminationDifference(Drawable):
    """What is different between two examinations.

    The chart: ratios of all numbers.

    Attributes:
        names: names of the two, as they were called.
        models: in words.
        numbers: those that both or one have, the head first.
        findings: one per rule, changes first.
        settings: in which they differ.
        version: version of normscope that compared them.
    """

    names: tuple[str, str]
    models: tuple[str, str]
    numbers: tuple[NumberChange, ...]
    findings: tuple[FindingChange, ...]
    settings: tuple[SettingChange, ...]
    version: str = ""

    def changed(self, *changes: str) -> tuple[FindingChange, ...]:
        """The findings of some kinds of change."""
        return tuple(f for f in self.findings if f.change in changes)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Settings that make numbers of the two hard to compare."""
        return tuple(
            f"{s.name} differs ({s.first} and {s.second}), on which the numbers depend"
            for s in self.settings
            if s.name in ("loss", "batch")
        )

    def to_frame(self) -> DataFrame:
        """One row per number."""
        return listed(self.numbers, "measurement", "quantity", "first", "second", "ratio")

    def findings_frame(self) -> DataFrame:
        """One row per rule."""
        return listed(self.findings, "rule", "change", "first", "second", "title")

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"A  {self.names[0]}: {self.models[0]}", f"B  {self.names[1]}: {self.models[1]}"]
        lines += [f"! {caution}" for caution in self.cautions]
        for n in self.numbers:
            if n.measurement == HEADLINE:
                lines.append(f"  {n.quantity}: {n.first:.4g} -> {n.second:.4g}{_times(n.ratio)}")
        for f in self.changed("appeared", "worse", "better", "disappeared"):
            lines.append(f"  {f.change}: {f.title} ({f.first or 'none'} -> {f.second or 'none'})")
        same = len(self.changed("same"))
        lines.append(f"  {same} rules say the same of both")
        return "\n".join(lines)

    def save(self, path: str | Path) -> Path:
        """Write the page of the comparison, to a file that ends in .html."""
        saved: Path = report_package().save_difference(self, path)
        return saved

    def __repr__(self) -> str:
        moved = len(self.changed("appeared", "worse", "better", "disappeared"))
        return f"ExaminationDifference({len(self.numbers)} numbers, {moved} findings changed)"


def compare_examinations(
    first: Examination, second: Examination, *, names: tuple[str, str] = ("A", "B")
) -> ExaminationDifference:
    """What is different between two examinations, from what they store alone."""
    return ExaminationDifference(
        names=names,
        models=(first.model, second.model),
        numbers=_numbers(first, second),
        findings=_findings(first, second),
        settings=_settings(first, second),
        version=__version__,
    )


def _numbers(first: Examination, second: Examination) -> tuple[NumberChange, ...]:
    a, b = _numbers_of(first), _numbers_of(second)
    pairs = {key: (a.get(key, math.nan), b.get(key, math.nan)) for key in [*a, *b]}
    return tuple(NumberChange(*key, *pair, _ratio(*pair)) for key, pair in pairs.items())


def _numbers_of(examination: Examination) -> dict[tuple[str, str], float]:
    found = {(HEADLINE, n.quantity): n.value for n in examination.numbers}
    for name, result in examination.measurements.items():
        found |= {(name, n.quantity): n.value for n in key_numbers(result)}
    return found


def _findings(first: Examination, second: Examination) -> tuple[FindingChange, ...]:
    a, b = _most_severe(first), _most_severe(second)
    changes = [_change(rule, a.get(rule), b.get(rule)) for rule in dict.fromkeys([*b, *a])]
    severe = {f.rule: f.rank for found in (a, b) for f in found.values()}
    return tuple(sorted(changes, key=lambda c: (CHANGES.index(c.change), -severe[c.rule])))


def _most_severe(examination: Examination) -> dict[str, Finding]:
    found: dict[str, Finding] = {}
    for finding in examination.findings:
        if finding.rule not in found or finding.rank > found[finding.rule].rank:
            found[finding.rule] = finding
    return found


def _change(rule: str, first: Finding | None, second: Finding | None) -> FindingChange:
    shown = second or first
    assert shown is not None
    if shown.severity == UNJUDGED and (first is None or second is None):
        change = "appeared" if first is None else "disappeared"
    elif first is None or second is None:
        change = "not judged"
    elif first.severity == second.severity:
        change = "same"
    elif first.severity == SEVERITIES[0]:
        change = "appeared"
    elif second.severity == SEVERITIES[0]:
        change = "disappeared"
    else:
        change = "worse" if second.rank > first.rank else "better"
    return FindingChange(
        rule,
        change,
        first.severity if first else "",
        second.severity if second else "",
        first.title if change == "disappeared" and first else shown.title,
        (first.layer if first else None, second.layer if second else None),
    )


def _settings(first: Examination, second: Examination) -> tuple[SettingChange, ...]:
    a = first.convention | {"data": first.plan.data, "version": first.version}
    b = second.convention | {"data": second.plan.data, "version": second.version}
    names = list(dict.fromkeys([*a, *b]))
    keys = [key for key in names if a.get(key) != b.get(key)]
    return tuple(SettingChange(key, a.get(key), b.get(key)) for key in keys)


def _ratio(first: float, second: float) -> float:
    if first == second:
        return 1.0
    known = math.isfinite(first) and math.isfinite(second)
    return second / first if known and first else math.nan


def _times(ratio: float) -> str:
    return "" if math.isnan(ratio) else f" (x {ratio:.3g})"
