"""One self-contained page for one examination: findings first, charts and numbers behind them."""

from __future__ import annotations

import html
import json
import math
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError, NormscopeError
from normscope.registry import near_match
from normscope.report.charts import CHARTS, chart
from normscope.report.files import javascript_bundle, script_data, still_picture
from normscope.report.style import theme

if TYPE_CHECKING:
    import pandas as pd

    from normscope.results import Evidence, Examination, Finding

__all__ = ["LARGEST", "page", "page_fragment", "save_page"]

LARGEST = 3_000_000  # bytes of a page
ROWS = 200  # of a table in a page; the data has them all


def save_page(examination: Examination, path: str | Path) -> Path:
    """Write the page of an examination to a file that ends in .html."""
    target = Path(path)
    if target.suffix.lower() != ".html":
        raise InputError(
            "An examination is saved as .html (the page) or .json (its data). "
            f"Got {target.name!r}. "
            f"{near_match(target.suffix.lower(), ['.html', '.json'])}"
        )
    if not target.parent.is_dir():
        raise InputError(f"There is no folder {target.parent} to write {target.name!r} to.")
    target.write_text(page(examination), encoding="utf-8")
    return target


def page(examination: Examination) -> str:
    """The page as text; it loads nothing, and reads well without JavaScript and on paper."""
    for stills in ("svg", "png", "none"):
        text = _page(examination, stills)
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
    return f"<h4>{html.escape(examination.model)}</h4><table>{head}{rows}</table>"


def _page(examination: Examination, stills: str) -> str:
    specs: dict[str, Any] = {}
    sections = [
        _section(name, result, examination, specs, stills)
        for name, result in examination.measurements.items()
    ]
    known = {section["name"]: section["id"] for section in sections}
    context = {
        "title": examination.model,
        "version": examination.version,
        "lead": _lead(examination),
        "partial": examination.partial,
        "numbers": [_number(item) for item in examination.numbers],
        "findings": [_finding(f, known) for f in examination.findings if f.severity != "ok"],
        "fine": [_finding(f, known) for f in examination.findings if f.severity == "ok"],
        "sections": sections,
        "steps": [
            {"name": s.name, "status": s.status, "reason": s.reason, "seconds": f"{s.seconds:.1f}"}
            for s in examination.plan.steps
        ],
        "config": [(k, _cell(v)) for k, v in examination.config.items() if v is not None],
        "notes": examination.notes,
        "css": _file("page.css"),
        "script": _file("page.js"),
        "bundle": javascript_bundle(),
        "specs": script_data(specs),
        "configs": script_data({name: theme(dark=name == "dark") for name in ("light", "dark")}),
    }
    return _template().render(context)


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_file("page.html.jinja"))


def _file(name: str) -> str:
    return (resources.files("normscope.report") / "templates" / name).read_text(encoding="utf-8")


def _section(
    name: str, result: Any, examination: Examination, specs: dict[str, Any], stills: str
) -> dict[str, Any]:
    anchor = "m-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    questions = {step.name: step.question for step in examination.plan.steps}
    return {
        "id": anchor,
        "name": name,
        "question": questions.get(name, ""),
        "charts": _charts(result, anchor, specs, stills),
        "summary": result.summary() if hasattr(result, "summary") else "",
        "table": _table(result),
    }


def _charts(result: Any, anchor: str, specs: dict[str, Any], stills: str) -> list[dict[str, str]]:
    if type(result).__name__ not in CHARTS:
        return []
    try:
        spec = chart(result).to_dict()
    except InputError:  # nothing to draw, such as a matrix that is zero: the table says so
        return []
    identifier = f"{anchor}-chart"
    specs[identifier] = {k: v for k, v in spec.items() if k not in ("config", "$schema")}
    return [{"id": identifier, "still": still_picture(spec, stills)}]


def _table(result: Any) -> dict[str, Any] | None:
    if not hasattr(result, "to_frame"):
        return None
    frame: pd.DataFrame = result.to_frame()
    frame = frame.reset_index() if frame.index.name else frame
    shown = frame.head(ROWS)
    return {
        "columns": [str(c) for c in shown.columns],
        "rows": [[_cell(v) for v in row] for row in shown.itertuples(index=False)],
        "cut": len(frame) if len(frame) > ROWS else 0,
    }


def _number(item: Evidence) -> dict[str, str]:
    return {"name": item.quantity, "value": _cell(item.value), "note": item.spread}


def _finding(finding: Finding, known: dict[str, str]) -> dict[str, Any]:
    evidence = [
        {"text": str(e), "target": known.get(e.source, ""), "name": e.source}
        for e in finding.evidence
    ]
    return {
        "severity": finding.severity,
        "title": finding.title,
        "layer": finding.layer,
        "meaning": finding.meaning,
        "advice": finding.advice,
        "reference": finding.reference,
        "evidence": evidence,
    }


def _lead(examination: Examination) -> str:
    config = examination.config
    words = [examination.plan.data, f"loss {config.get('loss')}"]
    words.append(f"preset {config.get('preset')}, {examination.seconds:.1f} s")
    return "; ".join(words)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=str)
    return "" if value is None else str(value)
