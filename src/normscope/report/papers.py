"""The ledger as pages: one for each paper, and one for all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.files import write_atomically
from normscope.refs import Reference, references
from normscope.report.html import Figure, figure, filled
from normscope.report.page import within_limit
from normscope.report.panels import panel_chart
from normscope.report.style import theme
from normscope.results.ledger import VERDICTS, Ledger, LedgerRow, PaperLedger
from normscope.results.panel import Panel

# a sign and a severity of page.css for each verdict, so that colour is not all that tells them
MARKS = {
    "reproduced": ("✓", "ok"),
    "partly": ("◐", "note"),
    "not reproduced": ("✖", "problem"),
    "undecided": ("?", "warning"),
    "blocked by scale": ("▮", "soft"),
    "not run": ("–", "soft"),
}
# verdicts that show an error: of the paper's own claim, or of ours against it
EVIDENCE = {
    "paper": ("partly", "not reproduced"),
    "ours": ("reproduced", "partly"),
    "guard": ("reproduced", "partly"),
}
KINDS = {
    "paper": "The paper's own claims",
    "ours": "Our controls and corrections",
    "guard": "Checks of the code, which cannot fail otherwise",
}


@dataclass(frozen=True)
class Section:
    """One experiment in a page.

    Attributes:
        id: its identifier.
        title: what it does.
        figures: its charts.
        rows: the claims that read it.
    """

    id: str
    title: str
    figures: list[Figure]
    rows: list[LedgerRow]


def save_papers(ledger: Ledger, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``papers.html`` and a page for each paper into a folder; each is one file."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    pages = {f"{key}.html": paper_page(one) for key, one in ledger.papers.items()}
    pages = {"papers.html": papers_page(ledger)} | pages
    for name, text in pages.items():
        write_atomically(target / name, text)
    return [target / name for name in pages]


def paper_page(ledger: PaperLedger) -> str:
    """One paper: claims, our numbers beside the paper's, charts, verdicts, commands."""
    return within_limit(lambda stills: _paper(ledger, stills))


def _paper(ledger: PaperLedger, stills: str) -> str:
    sections, drawn = [], list[Figure]()
    order = list(dict.fromkeys(row.experiment for row in ledger.rows))  # that of the paper
    known = sorted(ledger.titles, key=lambda k: order.index(k) if k in order else len(order))
    for key in known:
        title = ledger.titles[key]
        name = key.replace("/", "-")
        panels = enumerate(ledger.panels.get(key, ()))
        figures = [_figure(panel, f"{name}-{i}", stills) for i, panel in panels]
        rows = [row for row in ledger.rows if row.experiment == key]
        sections.append(Section(name, title, figures, rows))
        drawn += figures
    if read := [row for row in ledger.rows if not row.experiment]:
        sections.append(Section("reading", "Decided by reading the text", [], read))
    own = Ledger([ledger])
    return filled(
        "paper.html.jinja",
        drawn,
        reference=_reference(ledger.paper),
        version=__version__,
        totals=own.totals()[0],
        misprints=own.totals(misprints=True)[0],
        wrong=[row for row in ledger.rows if row.wrong and row.verdict in EVIDENCE[row.kind]],
        sections=[section for section in sections if section.rows or section.figures],
        **_shared(),
    )


def papers_page(ledger: Ledger) -> str:
    """All papers: totals by verdict, a line for each figure and table, links to the pages."""
    return filled(
        "papers.html.jinja",
        [],
        version=__version__,
        references={key: _reference(key) for key in ledger.papers},
        totals=ledger.totals(),
        apart=ledger.totals(misprints=False),
        misprints=ledger.totals(misprints=True),
        rows={
            key: [r for r in one.rows if r.kind == "paper" and r.group in ("figure", "table")]
            for key, one in ledger.papers.items()
        },
        **_shared(),
    )


def _figure(panel: Panel, name: str, stills: str) -> Figure:
    return figure(panel_chart(panel).configure(**theme()).to_dict(), name, stills)


def _reference(key: str) -> Reference:
    return references()[key]


def _shared() -> dict[str, Any]:
    return {"verdicts": VERDICTS, "marks": MARKS, "kinds": KINDS}
