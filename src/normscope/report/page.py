"""One self-contained page for one examination: the answer, the findings, the evidence behind."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normscope.checks import checked_target
from normscope.errors import InputError, NormscopeError
from normscope.files import write_atomically
from normscope.registry import near_match
from normscope.report.html import filled
from normscope.report.sections import sections_of, single
from normscope.report.wording import cell, column, is_rate, meaning, wording
from normscope.results import Evidence, Examination, Finding
from normscope.results.finding import SEVERITIES, UNJUDGED

LARGEST = 3_000_000  # bytes of a page
STILLS = ("svg", "png", "none")  # kinds of still pictures, the best first
RECOMMENDED, YOURS = "recommended learning rate", "your learning rate"
ALL_COVERED = 0.995  # share of the parameters above which nothing is said about the others


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
    """The answer and the findings alone, for a notebook."""
    rows = "".join(
        f"<tr><td><b>{html.escape(f.severity)}</b></td><td>{html.escape(f.title)}"
        f"{' <code>' + html.escape(f.layer) + '</code>' if f.layer else ''}</td>"
        f"<td>{html.escape(f.advice or f.meaning)}</td></tr>"
        for f in examination.findings
        if f.severity != "ok"
    )
    head = "<tr><th></th><th>finding</th><th>what to do</th></tr>"
    answer = f"<p><b>{html.escape(examination.answer)}</b></p>" if examination.answer else ""
    return f"{answer}<h4>{html.escape(examination.model)}</h4><table>{head}{rows}</table>"


def _page(examination: Examination, stills: str) -> str:
    sections = sections_of(examination, stills)
    places = {section["name"]: section for section in sections}
    findings = [_finding(f, i, places) for i, f in enumerate(examination.findings, start=1)]
    for section in sections:
        section["findings"] = [
            f for f in findings if section["name"] in f["sources"] and f["severity"] != "ok"
        ]
    apart = [section for section in sections if not single(section)]
    cause = _cause(examination)
    first = None if cause is None else findings[cause]
    return filled(
        "page.html.jinja",
        [one for section in apart for one in section["figures"]],
        title=examination.model,
        version=examination.version,
        answer=_answer(examination),
        lead=_lead(examination),
        partial=examination.partial,
        numbers=[_number(n, places) for n in _headline(examination)],
        rates=[_number(n, places) for n in _rates(examination)],
        counts=_counts(findings),
        missing=[wording(step.name).title for step in examination.missing],
        first=first,
        findings=[f for f in findings if f["severity"] != "ok" and f is not first],
        fine=[f for f in findings if f["severity"] == "ok"],
        shown=[section for section in apart if section["open"]],
        folded=[section for section in apart if not section["open"]],
        singles=[section for section in sections if single(section)],
        steps=[{"title": wording(s.name).title, "step": s} for s in examination.plan.steps],
        convention=[(column(k), cell(v)) for k, v in examination.convention.items() if cell(v)],
        notes=examination.notes,
    )


def _cause(examination: Examination) -> int | None:
    """The place of the finding that the answer tells, so that the page tells it once."""
    findings = list(examination.findings)
    told = [f for f in findings if f.warns] or [f for f in findings if f.severity == UNJUDGED]
    return findings.index(told[0]) if told and examination.answer else None


def _answer(examination: Examination) -> dict[str, str]:
    """The first line and what colours it; the network alone in files of older versions."""
    said, _, rest = examination.answer.partition(": ")
    if not examination.answer:
        return {"severity": "", "text": examination.model}
    known = {"OK": "ok"} | {name.upper(): name for name in SEVERITIES}
    if said in known:
        return {"severity": known[said], "text": rest}
    return {"severity": UNJUDGED, "text": examination.answer}


def _headline(examination: Examination) -> list[Evidence]:
    """The numbers at the top; of all learning rates the one recommended, beside the user's own."""
    numbers = [n for n in examination.numbers if n.source != "sharpness"]
    top = [n for n in numbers if not is_rate(n.quantity) or n.quantity == RECOMMENDED]
    if "trial" in examination.measurements and examination.answer:
        top = [n for n in top if n.quantity != "loss"]  # which the answer tells
    lr = examination.convention.get("lr")
    if lr and any(n.quantity == RECOMMENDED for n in top):
        return [Evidence(YOURS, lr, source="trial"), *top]
    return top


def _rates(examination: Examination) -> list[Evidence]:
    """All learning rates: those at the top, then the limits; the theory's last."""
    numbers = [n for n in examination.numbers if is_rate(n.quantity)]
    lr, theory = examination.convention.get("lr"), examination.measurements.get("comparison")
    own = [Evidence(YOURS, lr)] if lr else []
    predicted = getattr(theory, "loss_predicted", None)
    if predicted and predicted > 0 and any(n.source == "sharpness" for n in numbers):
        limit = 2 * (1 + float(examination.convention.get("momentum") or 0.0)) / predicted
        numbers.append(Evidence("threshold that mean-field theory predicts for the learning rate",
                                limit, source="comparison"))  # fmt: skip
    return [*own, *sorted(numbers, key=lambda n: n.quantity != RECOMMENDED)] if numbers else []


def _number(number: Evidence, places: dict[str, Any]) -> dict[str, Any]:
    return {"quantity": number.quantity, "value": number.value, "low": number.low} | {
        "high": number.high,
        "meaning": meaning(number.quantity),
        "target": _target(places.get(number.source)),
    }


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


def _counts(findings: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """How many findings of each severity there are, the most severe first, and where they begin."""
    places: dict[str, list[str]] = {}
    for finding in findings:
        places.setdefault(finding["severity"], []).append(finding["id"])
    ordered = [severity for severity in reversed(SEVERITIES) if severity in places]
    return [(s, len(places[s]), "fine" if s == "ok" else places[s][0]) for s in ordered]


def _lead(examination: Examination) -> list[str]:
    convention, plan = examination.convention, examination.plan
    covered = f"signals of layers with {100 * plan.coverage:.0f} % of the parameters can be checked"
    return [
        plan.data,
        f"loss: {convention.get('loss')}",
        f"preset {convention.get('preset')}, {examination.seconds:.1f} s",
        *([covered] if plan.coverage <= ALL_COVERED else []),
    ]
