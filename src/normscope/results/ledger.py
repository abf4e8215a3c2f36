"""The ledger: every claim of a paper with what was observed and the verdict, as shipped."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.files import write_atomically
from normscope.record import plain_data, plain_values
from normscope.results.base import DataFrame, framed
from normscope.results.panel import Panel

FORMAT = 1
PAPERS = ("wei2019", "karakida2019", "huang2020", "bjorck2018", "luo2019")
VERDICTS = ("reproduced", "partly", "not reproduced", "undecided", "blocked by scale", "not run")
ENOUGH_SEEDS = 5  # an undecided row is judged if it had so many


@dataclass(frozen=True)
class LedgerRow:
    """One claim, what was observed, and the verdict.

    Attributes:
        id: paper and name.
        item: where it stands in the paper.
        statement: what would have to be true.
        kind: ``"paper"``, ``"ours"`` or ``"guard"``.
        group: theorem, equation, figure, table, text or misprint.
        expected: number or words that the paper or a theory gives.
        observed: number or words that we found.
        error: distance, in the units of the tolerance.
        tolerance: largest error that passes.
        verdict: one of ``VERDICTS``.
        reason: the decision in words.
        rule: name of the rule that decided.
        parameters: what the rule was called with.
        experiment: what was run for it; empty if nothing was.
        reads: name of the observation of that experiment.
        scale: smoke, desk or paper; empty if nothing was run.
        seeds: number of independent runs behind it.
        seeds_needed: how many would decide, if it is undecided.
        settings: hash of the settings of the run.
        versions: versions of the packages that ran it.
        cpu_seconds: CPU-seconds of the whole experiment.
        limits: what the row does *not* show.
        changed: what was changed in the claim or its rule after the run had been seen.
        wrong: what the paper got wrong, in one sentence.
        stand_in: what was run in place of a row that is blocked by scale.
        hours: GPU-hours of the paper's own scale, if no desk can run it.
        observation: what the rule read, so that the verdict can be computed again.
    """

    id: str
    item: str
    statement: str
    kind: str
    group: str
    expected: float | str | None = None
    observed: float | str | None = None
    error: float | None = None
    tolerance: float | None = None
    verdict: str = "not run"
    reason: str = ""
    rule: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""
    reads: str = ""
    scale: str = ""
    seeds: int | None = None
    seeds_needed: int | None = None
    settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    limits: str = ""
    changed: str = ""
    wrong: str = ""
    stand_in: str = ""
    hours: float | None = None
    observation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Key of the paper."""
        return self.id.partition("/")[0]

    @property
    def judged(self) -> bool:
        """Whether there is a verdict; undecided counts after five seeds."""
        decided = self.verdict in VERDICTS[:3]
        return decided or (self.verdict == "undecided" and (self.seeds or 0) >= ENOUGH_SEEDS)

    @property
    def command(self) -> str:
        """What runs it again; for a row that is blocked by scale, the paper's own scale."""
        if not self.experiment:
            return ""
        scale = self.scale or ("paper" if self.verdict == "blocked by scale" else "desk")
        return f"normscope reproduce {self.id} --scale {scale}"

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in the file, with its checksum."""
        data = {f.name: plain_data(getattr(self, f.name)) for f in dataclasses.fields(self)}
        row = {"id": data.pop("id"), "source": {"paper": self.paper, "item": data.pop("item")}}
        return row | data | {"command": self.command, "checksum": self.checksum}

    @property
    def checksum(self) -> str:
        """Of all fields: a row that was edited by hand has another."""
        data = {f.name: plain_data(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return _checksum(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LedgerRow:
        """The row that ``to_json`` gave."""
        known = {f.name for f in dataclasses.fields(cls)}
        found = {k: plain_values(v) for k, v in data.items() if k in known}
        return cls(**found, item=data["source"]["item"])


@dataclass(frozen=True)
class PaperLedger:
    """All rows of one paper, and the charts of its experiments.

    Attributes:
        paper: key of the paper.
        rows: one for each claim.
        titles: what each experiment does, by id.
        panels: charts of each experiment, by id.
        altered: ids of rows and experiments that somebody edited: their checksum does not fit.
    """

    paper: str
    rows: tuple[LedgerRow, ...]
    titles: Mapping[str, str] = field(default_factory=dict)
    panels: Mapping[str, tuple[Panel, ...]] = field(default_factory=dict)
    altered: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The text of the file."""
        made = [self._experiment(key) for key in self.titles]
        head = {"format": FORMAT, "paper": self.paper}
        data = {"claims": [row.to_json() for row in self.rows], "experiments": made}
        # a line for each claim and each experiment, so that a change is seen as one
        parts = [f'"{k}": {json.dumps(v)}' for k, v in head.items()]
        for name, entries in data.items():
            lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
            parts.append(f'"{name}": [\n{lines}\n]')
        return "{" + ",\n".join(parts) + "}\n"

    def _experiment(self, key: str) -> dict[str, Any]:
        panels = [p.to_dict() for p in self.panels.get(key, ())]
        data = {"id": key, "title": self.titles[key], "panels": panels}
        return data | {"checksum": _checksum(data)}

    @classmethod
    def from_json(cls, text: str, name: str = "The ledger") -> PaperLedger:
        """The ledger in a file."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise InputError(f"{name} has format {data['format']}, this reads {FORMAT}.")
            rows = tuple(LedgerRow.from_json(row) for row in data["claims"])
            titles = {e["id"]: e["title"] for e in data["experiments"]}
            panels = {
                e["id"]: tuple(Panel.from_dict(p) for p in e["panels"]) for e in data["experiments"]
            }
            read = cls(data["paper"], rows, titles, panels)
            made = [*(row.to_json() for row in rows), *map(read._experiment, titles)]
            pairs = zip(made, (*data["claims"], *data["experiments"]), strict=True)
            altered = tuple(ours["id"] for ours, given in pairs if ours != given)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{name} is not a valid ledger: {type(error).__name__}: {error}. Use the one "
                "that was installed, or create it again."
            ) from None
        return dataclasses.replace(read, altered=altered)


class Ledger:
    """The ledgers of all papers."""

    def __init__(self, papers: Iterable[PaperLedger]) -> None:
        self.papers = {one.paper: one for one in papers}

    @property
    def rows(self) -> list[LedgerRow]:
        """All rows, paper by paper."""
        return [row for one in self.papers.values() for row in one.rows]

    def __iter__(self) -> Iterator[LedgerRow]:
        return iter(self.rows)

    def __getitem__(self, claim: str) -> LedgerRow:
        for row in self.rows:
            if row.id == claim:
                return row
        near = near_id(claim, [row.id for row in self.rows])
        raise InputError(f"The ledger has no row {claim!r}. {near}")

    def totals(self, *, misprints: bool | None = None, kind: str = "paper") -> list[dict[str, Any]]:
        """Verdicts by paper and in all: rows, decided rows, and the count of each verdict.

        ``judged`` counts undecided rows of five seeds too, ``changed`` those whose claim or rule
        was changed after the run.

        Args:
            misprints: only misprints, or only all else; None for both.
            kind: kind of the rows.
        """
        made: list[dict[str, Any]] = []
        for paper in self.papers:
            chosen = [
                row
                for row in self.papers[paper].rows
                if row.kind == kind
                and (misprints is None or (row.group == "misprint") == misprints)
            ]
            made.append({"paper": paper} | _counted(chosen))
        sums = {k: sum(row[k] for row in made) for k in _counted([])}
        return [*made, {"paper": "all"} | sums]

    def to_frame(self) -> DataFrame:
        """One row per claim."""
        names = ("id", "item", "kind", "group", "expected", "observed", "error", "tolerance")
        more = ("verdict", "scale", "seeds", "rule", "reason")
        return framed([{n: getattr(row, n) for n in (*names, *more)} for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """``{"claims": [...]}``, as the files have it."""
        return {"claims": [row.to_json() for row in self.rows], "totals": self.totals()}

    def markdown(self) -> str:
        """Totals by paper and verdict as a table for a README."""
        heads, rows = self.table()
        rule = ["---", *["---:"] * (len(heads) - 1)]
        shown = [[*map(str, row[:3]), *(str(n or "") for n in row[3:])] for row in rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *shown])

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Head and lines of the totals; misprints have a column of their own."""
        heads = ["paper", "claims", "decided", *VERDICTS[:3], "misprints", *VERDICTS[3:]]
        lines: list[list[Any]] = []
        for row, apart in zip(self.totals(), self.totals(misprints=False), strict=True):
            cells = [*(apart[v] for v in VERDICTS[:3]), row["rows"] - apart["rows"]]
            lines.append([row["paper"], row["rows"], row["decided"], *cells,
                          *(apart[v] for v in VERDICTS[3:])])  # fmt: skip
        return heads, lines

    def summary(self) -> str:
        """Totals in words."""
        whole = self.totals()[-1]
        shown = ", ".join(f"{whole[v]} {v}" for v in VERDICTS if whole[v]) or "none"
        return f"{whole['rows']} claims of {len(self.papers)} papers: {shown}."


def _counted(rows: list[LedgerRow]) -> dict[str, int]:
    verdicts = Counter(row.verdict for row in rows)
    counts = {"rows": len(rows), "decided": sum(verdicts[v] for v in VERDICTS[:3])}
    counts |= {"judged": sum(row.judged for row in rows)}
    counts |= {"changed": sum(bool(row.changed) for row in rows)}
    return counts | {v: verdicts[v] for v in VERDICTS}


def near_id(name: str, known: Iterable[str]) -> str:
    """The sentence that helps after an unknown id; there are too many to name them all."""
    candidates = list(dict.fromkeys([*PAPERS, *known])) if "/" in name else PAPERS
    close = difflib.get_close_matches(name, candidates, n=3, cutoff=0.4)
    near = [difflib.SequenceMatcher(None, name, one).ratio() for one in close]
    close = [one for one, ratio in zip(close, near, strict=True) if ratio > near[0] - 0.1]
    hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}`normscope reproduce` lists all experiments, with --ledger all claims."


def _checksum(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def shipped_ledger() -> Ledger:
    """The ledger that comes with the package; nothing is run."""
    return read_ledger(ledger_folder())


def ledger_folder() -> Path:
    """Where the package keeps its ledger."""
    return Path(str(resources.files("normscope") / "experiments"))


def read_ledger(folder: str | os.PathLike[str]) -> Ledger:
    """The ledgers in a folder: ``PAPER/ledger.json``."""
    paths = {paper: Path(folder) / paper / "ledger.json" for paper in PAPERS}
    found = {k: path for k, path in paths.items() if path.is_file()}
    return Ledger(
        PaperLedger.from_json(path.read_text(encoding="utf-8"), str(path))
        for path in found.values()
    )


def write_ledger(ledger: Ledger, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``PAPER/ledger.json`` for each paper; each file is whole or not there."""
    written = []
    for paper, one in ledger.papers.items():
        path = Path(folder) / paper / "ledger.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, one.to_json())
        written.append(path)
    return written
