"""The ledger as pages: one for each paper, and one for all."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope._version import __version__
from normscope.files import write_atomically
from normscope.refs import Reference, references
from normscope.report.claims import Card, card
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
# what a chart and a claim are named after: "Fig. 8", "Table A", "Sec. 2.1", "Theorem 3.4"
LABEL = re.compile(r"\b(Fig|Table|Eq|Sec|App|Theorem)(?:s|\.)* ?\(?(\w[\w.]*\w|\w)")


@dataclass(frozen=True)
class Block:
    """A claim with the charts of the figure it names.

    Attributes:
        card: the claim.
        figures: charts before it.
    """

    card: Card
    figures: list[Figure]


@dataclass(frozen=True)
class Section:
    """One experiment in a page.

    Attributes:
        id: its identifier.
        title: what it does.
        figures: charts that no claim names.
        blocks: the claims that read it.
    """

    id: str
    title: str
    figures: list[Figure]
    blocks: list[Block]


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
        name = key.replace("/", "-")
        panels = enumerate(ledger.panels.get(key, ()))
        figures = [_figure(panel, f"{name}-{i}", stills) for i, panel in panels]
        rows = [row for row in ledger.rows if row.experiment == key]
        sections.append(_section(name, ledger.titles[key], figures, rows))
        drawn += figures
    if read := [row for row in ledger.rows if not row.experiment]:
        sections.append(_section("reading", "Decided by reading the text", [], read))
    wrong = [row for row in ledger.rows if row.wrong and row.verdict in EVIDENCE[row.kind]]
    return filled(
        "paper.html.jinja",
        drawn,
        reference=_reference(ledger.paper),
        version=__version__,
        totals=Ledger([ledger]).totals()[0],
        apart=Ledger([ledger]).totals(misprints=False)[0],
        wrong={
            name: rows
            for name, misprint in (("Errors", False), ("Misprints", True))
            if (rows := [row for row in wrong if (row.group == "misprint") == misprint])
        },
        sections=[section for section in sections if section.blocks or section.figures],
        **_shared(),
    )


def _section(name: str, title: str, figures: list[Figure], rows: list[LedgerRow]) -> Section:
    """Each chart stands before the first claim that names its figure or table."""
    places = [_labels(row.item) for row in rows]
    found: dict[int, list[Figure]] = {}
    for one in figures:
        label = _labels(one.title)[:1]
        first = next((i for i, place in enumerate(places) if label and label[0] in place), -1)
        found.setdefault(first, []).append(one)
    blocks = [Block(card(row), found.get(i, [])) for i, row in enumerate(rows)]
    return Section(name, title, found.get(-1, []), blocks)


def _labels(text: str) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in LABEL.findall(text)]


def papers_page(ledger: Ledger) -> str:
    """All papers: totals by verdict, a line with both numbers for each claim, links."""
    lines = {
        key: [card(row) for row in one.rows if row.kind == "paper"]
        for key, one in ledger.papers.items()
    }
    return filled(
        "papers.html.jinja",
        [],
        version=__version__,
        references={key: _reference(key) for key in ledger.papers},
        totals=ledger.totals(),
        apart=ledger.totals(misprints=False),
        ours=sum(row.kind != "paper" for row in ledger),
        done={k: [c for c in cards if c.row.verdict in VERDICTS[:4]] for k, cards in lines.items()},
        rest={k: [c for c in cards if c.row.verdict in VERDICTS[4:]] for k, cards in lines.items()},
        **_shared(),
    )


def _figure(panel: Panel, name: str, stills: str) -> Figure:
    return figure(panel_chart(panel).configure(**theme()).to_dict(), name, stills)


def _reference(key: str) -> Reference:
    return references()[key]


def _shared() -> dict[str, Any]:
    return {"verdicts": VERDICTS, "marks": MARKS}
