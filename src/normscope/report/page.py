"""One self-contained page for one examination: findings first, charts and numbers behind them."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from normscope.checks import checked_target
from normscope.errors import InputError, NormscopeError
from normscope.files import write_atomically
from normscope.messages import failure
from normscope.registry import near_match
from normscope.report.charts import CHARTS, chart
from normscope.report.html import Figure, figure, filled
from normscope.report.rates import rates_chart
from normscope.report.style import theme
from normscope.report.tables import table
from normscope.report.wording import cell, column, meaning, number, wording
from normscope.results import Examination, Finding
from normscope.results.finding import SEVERITIES
from normscope.results.key_numbers import key_numbers

LARGEST = 3_000_000  # bytes of a page
STILLS = ("svg", "png", "none")  # kinds of still pictures, the best first


def save_page(examination: Examination, path: str | Path) -> Path:
    """Write the page of an examination to a file that ends in .html."""
    target = Path(path)
    if target.suffix.lower() != ".html":
        raise InputError(
            "An examination is saved as .html (the page) or .json (its data). "
            f"Got {target.name!r}. "
            f"{near_match(target.suffix.lower(), ['.html', '.json'])}"
        )
    write_atomically(checked_target(target), page(examination))
    return target


def page(examination: Examination) -> str:
    """The page as text; it loads nothing, and reads well without JavaScript and on paper."""
    return within_limit(lambda stills: _page(examination, stills))


def within_limit(made: Callable[[str], str]) -> str:
    """The page with the best still pictures that fit into ``LARGEST`` bytes."""
    for stills in STILLS:
        text = made(stills)
        if len(text.encode()) <= LARGEST:
            return text
    raise NormscopeError(
        f"The page would take {len(text.encode()) / 1e6:.1f} MB, above {LARGEST / 1e6:.0f} MB. "
        "Save the data as .json, and single charts with report.save."
    )


def page_fragment(examination: Examination) -> str:
    """The findings alone, for a notebook."""
    rows = "".join(
        f"<tr><td><b>{html.escape(f.severity)}</b></td><td>{html.escape(f.title)}"
        f"{' <code>' + html.escape(f.layer) + '</code>' if f.layer else ''}</td>"
        f"<td>{html.escape(f.advice or f.meaning)}</td></tr>"
        for f in examination.findings
        if f.severity != "ok"
    )
    head = "<tr><th></th><th>finding</th><th>what to do</th></tr>"
    said = "".join(f"<p><b>{html.escape(line)}</b></p>" for line in examination.unjudged)
    return f"<h4>{html.escape(examination.model)}</h4>{said}<table>{head}{rows}</table>"


def _page(examination: Examination, stills: str) -> str:
    sections = [
        _section(f"m{place}-{_slug(name)}", name, examination, stills)
        for place, name in enumerate(examination.measurements, start=1)
    ]
    places = {section["name"]: section for section in sections}
    findings = [_finding(f, i, places) for i, f in enumerate(examination.findings, start=1)]
    for section in sections:
        section["findings"] = [f for f in findings if section["name"] in f["sources"]]
    figures = [one for section in sections for one in section["figures"]]
    return filled(
        "page.html.jinja",
        figures,
        title=examination.model,
        version=examination.version,
        lead=_lead(examination),
        answer=examination.answer,
        unjudged=examination.unjudged,
        partial=examination.partial,
        numbers=[
            {"name": n.quantity, "value": number(n.value), "low": n.low, "high": n.high}
            | {"meaning": meaning(n.quantity), "target": _target(places.get(n.source))}
            for n in examination.numbers
        ],
        counts=_counts(examination),
        missing=[wording(step.name).title for step in examination.missing],
        findings=[f for f in findings if f["severity"] != "ok"],
        fine=[f for f in findings if f["severity"] == "ok"],
        sections=sections,
        steps=[{"title": wording(s.name).title, "step": s} for s in examination.plan.steps],
        convention=[(column(k), cell(v)) for k, v in examination.convention.items() if cell(v)],
        notes=examination.notes,
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _section(anchor: str, name: str, examination: Examination, stills: str) -> dict[str, Any]:
    result = examination.measurements[name]
    questions = {step.name: step.question for step in examination.plan.steps}
    words = wording(name)
    known = hasattr(result, "to_dict")  # another version's records come back as plain data
    lost: list[str] = []
    return {
        "id": anchor,
        "name": name,
        "title": words.title,
        "short": words.short,
        "question": questions.get(name, ""),
        "reading": words.reading,
        "unknown": "" if known else _kind(result),
        "figures": _figures(anchor, name, examination, stills, lost),
        "numbers": _tried(lambda: key_numbers(result), [], lost),
        "coverage": _tried(lambda: _coverage(result), "", lost),
        "summary": _tried(result.summary, "", lost) if hasattr(result, "summary") else "",
        "table": _tried(lambda: table(result.to_frame()), None, lost)
        if hasattr(result, "to_frame")
        else None,
        "lost": list(dict.fromkeys(lost)),
    }


def _tried(make: Callable[[], Any], default: Any, lost: list[str]) -> Any:
    """What it makes; where it fails a note, so that the rest of the page is not lost too."""
    try:
        return make()
    except Exception as error:
        own = isinstance(error, NormscopeError)
        lost.append(f"Left out here: {str(error) if own else failure(error)}")
        return default


def _kind(result: Any) -> str:
    return str(result.get("type", "data") if isinstance(result, dict) else type(result).__name__)


def _figures(
    anchor: str, name: str, examination: Examination, stills: str, lost: list[str]
) -> list[Figure]:
    drawings: list[Callable[[], Any]] = []
    result = examination.measurements[name]
    if name == "sharpness":
        drawings.append(lambda: rates_chart(examination).configure(**theme()))
    if type(result).__name__ in CHARTS and not _single(result):
        drawings.append(lambda: chart(result))
    reason = str(getattr(result, "reason", ""))

    def drawn(draw: Callable[[], Any], place: int) -> Figure | None:
        try:
            spec = draw().to_dict()
        except InputError:  # nothing to draw, such as a matrix that is zero: the table says so
            return None
        return figure(spec, f"{anchor}-chart{place}", stills, sentence=reason)

    figures = [_tried(partial(drawn, d, i), None, lost) for i, d in enumerate(drawings, start=1)]
    return [one for one in figures if one is not None]


def _single(result: Any) -> bool:
    """Whether a spectrum is one number, which needs no chart."""
    return type(result).__name__ == "Spectrum" and len(result.values) == 1


def _coverage(result: Any) -> str:
    coverage = getattr(result, "coverage", None)
    return coverage.summary() if coverage is not None and coverage.left_out else ""


def _target(section: dict[str, Any] | None) -> str:
    """Where a link to a measurement leads: its first chart, or else its section."""
    if section is None:
        return ""
    return section["figures"][0].id if section["figures"] else section["id"]


def _finding(finding: Finding, place: int, places: dict[str, Any]) -> dict[str, Any]:
    evidence = [
        {"item": e, "target": _target(places.get(e.source)), "name": wording(e.source).title}
        for e in finding.evidence
    ]
    names = ("severity", "title", "layer", "meaning", "advice", "reference")
    return {name: getattr(finding, name) for name in names} | {
        "id": f"f{place}",
        "evidence": evidence,
        "sources": {e.source for e in finding.evidence},
        "links": list({e["target"]: e["name"] for e in evidence if e["target"]}.items()),
    }


def _counts(examination: Examination) -> list[tuple[str, int]]:
    """How many findings of each severity there are, the most severe first."""
    found = Counter(f.severity for f in examination.findings)
    return [(severity, found[severity]) for severity in reversed(SEVERITIES) if found[severity]]


def _lead(examination: Examination) -> list[str]:
    convention, plan = examination.convention, examination.plan
    return [
        plan.data,
        f"loss: {convention.get('loss')}",
        f"preset {convention.get('preset')}, {examination.seconds:.1f} s",
        f"layers with {100 * plan.coverage:.0f} % of the parameters can be probed",
    ]
