"""The tables of false alarms and misses, from the raw rows.

A set-up is counted once, by the worse of its seeds: a false alarm at one seed is a false alarm, and
a defect is named where it is named at every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import norm

from benchmarks.findings.child import HARM
from benchmarks.findings.contestants import NORMSCOPE
from benchmarks.findings.matching import Correction, Verdict, judged
from benchmarks.findings.setup import Setup

__all__ = ["MARK", "page", "wilson", "with_tables"]

MARK = "<!-- Everything below is written by python -m benchmarks findings --page. -->"
Row = dict[str, Any]
Known = dict[str, tuple[str, Setup]]


def wilson(hits: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's interval of a share; everything where nothing was counted."""
    if not of:
        return 0.0, 1.0
    z = float(norm.ppf(0.5 + level / 2))
    share, spread = hits / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Outcome:
    """What a contestant said of one set-up, over all seeds."""

    setup: Setup
    verdicts: tuple[Verdict, ...]

    @property
    def failed(self) -> bool:
        return any(v.failure for v in self.verdicts)

    @property
    def place(self) -> int:
        """The last place at which the defect is named; 0 if it is not named at every seed."""
        places = [v.place for v in self.verdicts]
        return max(places) if all(places) else 0

    @property
    def noted(self) -> bool:
        """Whether the defect is at least named in a note, at every seed."""
        return not self.place and all(v.place or v.noted for v in self.verdicts)

    @property
    def silent(self) -> bool:
        """Whether at some seed there was no alarm at all."""
        return any(not v.alarms for v in self.verdicts)

    @property
    def false(self) -> int:
        return max(v.false for v in self.verdicts)

    @property
    def cell(self) -> str:
        """In one word: the place, or what came instead."""
        if self.failed:
            return "no answer"
        if not self.setup.defect:
            return str(self.false or "")
        if self.place:
            return f"**{self.place}**"
        others = f"{self.false} other" + "s" * (self.false != 1) if self.false else ""
        return ", ".join(filter(None, ["note" if self.noted else "", others])) or "silent"


Outcomes = dict[str, dict[str, Outcome]]


def outcomes(rows: Iterable[Row], known: Known, corrected: Sequence[Correction]) -> Outcomes:
    """By contestant and set-up."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["contestant"] != HARM and row["setup"] in known:
            of = found.setdefault(row["contestant"], {})
            of.setdefault(row["setup"], []).append(row)
    return {
        name: {
            setup: Outcome(
                known[setup][1], tuple(judged(known[setup][1], r, corrected) for r in of[setup])
            )
            for setup in known
            if setup in of
        }
        for name, of in found.items()
    }


def page(rows: Sequence[Row], known: Known, corrected: Sequence[Correction]) -> str:
    """All tables as Markdown."""
    found = outcomes(rows, known, corrected)
    names = sorted({module for module, _ in known.values()})
    halves = {"All set-ups": names, **({_half(n): [n] for n in names} if len(names) > 1 else {})}
    parts = []
    for title, chosen in halves.items():
        inside = {n: {k: o for k, o in of.items() if known[k][0] in chosen}
                  for n, of in found.items()}  # fmt: skip
        parts += [f"## {title}", healthy_table(inside), broken_table(inside)]
    parts += ["## Set-ups", setups_table(found, rows, known)]
    parts += ["## Rules", rules_table(found)]
    parts += ["## Time", time_table(rows)]
    parts += ["## Words corrected by hand", corrections_table(corrected)]
    if lost := failures_table(rows, known):
        parts += ["## No answer", lost]
    return "\n\n".join(parts) + "\n"


def with_tables(text: str, tables: str) -> str:
    """A page with its own text, and these tables below the mark."""
    return f"{text.partition(MARK)[0].rstrip()}\n\n{MARK}\n\n{tables}"


def markdown(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    shown = [[str(cell) for cell in line] for line in lines]
    rows = [list(head), ["---"] * len(head), *shown]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def healthy_table(found: Outcomes) -> str:
    head = ["contestant", "healthy", "with a false alarm", "95 % interval", "false alarms",
            "findings of any kind", "no answer"]  # fmt: skip
    lines = []
    for name, of in found.items():
        asked = [o for o in of.values() if not o.setup.defect]
        some = [o for o in asked if not o.failed]
        loud = sum(o.false > 0 for o in some)
        total = [sum(v.total for v in o.verdicts) / len(o.verdicts) for o in some]
        lines.append([name, len(asked), loud, _interval(loud, len(some)),
                      sum(o.false for o in some), f"{sum(total):.0f}",
                      sum(o.failed for o in asked)])  # fmt: skip
    return markdown(head, lines)


def broken_table(found: Outcomes) -> str:
    head = ["contestant", "broken", "named first", "first or second", "95 % interval",
            "named at all", "only in a note", "silent"]  # fmt: skip
    lines = []
    for name, of in found.items():
        some = [o for o in of.values() if o.setup.defect]
        second = sum(0 < o.place <= 2 for o in some)
        lines.append([
            name, len(some), sum(o.place == 1 for o in some), second,
            _interval(second, len(some)), sum(o.place > 0 for o in some),
            sum(o.noted for o in some), sum(o.silent for o in some),
        ])  # fmt: skip
    return markdown(head, lines)


def setups_table(found: Outcomes, rows: Sequence[Row], known: Known) -> str:
    """One line for each set-up; harm is the score of the defect beside that of its twin."""
    by = [*found]
    parts = [
        "Healthy: the number of false alarms. Broken: the place at which the defect is named, in "
        "bold, or what came instead. Scores are means over the seeds, higher is better."
    ]
    for broken in (False, True):
        head = ["set-up", *(["score, twin's"] if broken else []), *by]
        lines = []
        for name, (_, setup) in known.items():
            if bool(setup.defect) == broken:
                cells = [found[n][name].cell if name in found[n] else "not run" for n in by]
                lines.append([name, *([harm(rows, setup)] if broken else []), *cells])
        parts.append(markdown(head, lines))
    told = [f"- {n}: {s.defect}" for n, (_, s) in known.items() if s.defect]
    return "\n\n".join([*parts, "Defects:\n\n" + "\n".join(told)])


def harm(rows: Iterable[Row], setup: Setup) -> str:
    """Mean scores of a defect and of its twin; shown if every seed is worse than every twin."""
    scores: dict[str, list[float]] = {setup.name: [], setup.twin: []}
    for row in rows:
        same = row["contestant"] == HARM and row.get("updates") == setup.updates
        if same and row["setup"] in scores:
            scores[row["setup"]].append(row["score"] if math.isfinite(row["score"]) else -math.inf)
    own, twin = scores[setup.name], scores[setup.twin]
    if not own or not twin:
        return "not run"
    shown = "" if max(own) < min(twin) else " (not shown)"
    return f"{sum(own) / len(own):.3g}, {sum(twin) / len(twin):.3g}{shown}"


def rules_table(found: Outcomes) -> str:
    """How often each rule of normscope warns: on healthy set-ups, on its own defects, on others."""
    parts = []
    for name, of in found.items():
        if not name.startswith(NORMSCOPE):
            continue
        counts: dict[str, list[int]] = {}
        healthy = sum(not o.setup.defect for o in of.values())
        for outcome in of.values():
            fired: dict[str, bool] = {}
            for verdict in outcome.verdicts:
                for told, named in verdict.alarms:
                    fired[told.rule] = fired.get(told.rule, False) or named
            for rule, named in fired.items():
                place = (1 if named else 2) if outcome.setup.defect else 0
                counts.setdefault(rule, [0, 0, 0])[place] += 1
        head = [name, f"on {healthy} healthy", "on its own defect", "on other defects"]
        ordered = sorted(counts.items(), key=lambda item: (-item[1][0], item[0]))
        parts.append(markdown(head, ([rule, *count] for rule, count in ordered)))
    return "\n\n".join(parts)


def time_table(rows: Sequence[Row]) -> str:
    """Median over the set-ups; gradients of the loss where they were measured."""
    head = ["contestant", "version", "seconds", "gradients, trial", "gradients, rest"]
    lines = []
    for name in dict.fromkeys(row["contestant"] for row in rows if row["contestant"] != HARM):
        mine = [row for row in rows if row["contestant"] == name and "seconds" in row]
        costs = [row["gradients"] for row in mine if "gradients" in row]
        cells = [_median(c[part] for c in costs) for part in ("trial", "rest")]
        version = next((row["version"] for row in mine), None)
        lines.append([name, version, _median(row["seconds"] for row in mine), *cells])
    return markdown(head, lines)


def corrections_table(corrected: Sequence[Correction]) -> str:
    if not corrected:
        return "None."
    head = ["set-up", "contestant", "title", "counts", "why"]
    lines = [[c.setup, c.contestant, f"`{c.title}`", "yes" if c.counts else "no",
              c.why + ("" if c.used else " (nothing like it was said)")]
             for c in corrected]  # fmt: skip
    return markdown(head, lines)


def failures_table(rows: Iterable[Row], known: Known) -> str:
    lines = {(row["contestant"], row["setup"], row["failure"]): None
             for row in rows if row.get("failure") and row["setup"] in known}  # fmt: skip
    return markdown(["contestant", "set-up", "why"], lines) if lines else ""


def _half(module: str) -> str:
    return f"Half: {module.rpartition('setups_')[2]}"


def _interval(hits: int, of: int) -> str:
    low, high = wilson(hits, of)
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def _median(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2g}" if ordered else ""
