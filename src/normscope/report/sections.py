"""The sections of a page: what is shown of each measurement, and how much of it unfolded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from normscope.errors import InputError
from normscope.messages import said
from normscope.report.charts import CHARTS, chart
from normscope.report.html import Figure, figure
from normscope.report.tables import table
from normscope.report.wording import wording
from normscope.results import Examination, Layout
from normscope.results.key_numbers import key_numbers

# what answers the reader's question; all else is unfolded where a warning rests on it
OPEN = ("trial", "modes", "layout", "advice", "stability", "what_if")
LETTERS = 4  # of a word that counts when headings are compared


def sections_of(examination: Examination, stills: str) -> list[dict[str, Any]]:
    """What is shown of each measurement; those without content are left out."""
    found = examination.measurements
    warned = {e.source for f in examination.findings if f.warns for e in f.evidence}
    sections = [
        _section(f"m{place}-{_slug(name)}", name, result, stills)
        | {"open": name in warned or (name in OPEN and not _plain(result))}
        for place, (name, result) in enumerate(found.items(), start=1)
        if not (name == "stability" and "advice" in found)  # whose chart holds its runs
    ]
    order = {name: place for place, name in enumerate(OPEN)}
    sections.sort(key=lambda section: order.get(section["name"], len(order)))
    return [section for section in sections if _said(section)]


def _section(anchor: str, name: str, result: Any, stills: str) -> dict[str, Any]:
    words = wording(name)
    known = hasattr(result, "to_dict")  # another version's records come back as plain data
    lost: list[str] = []
    figures = [
        replace(one, title="") if _alike(one.title, words.title) else one
        for one in _figures(anchor, result, stills, lost)
    ]
    numbers = _tried(lambda: key_numbers(result), (), lost)
    rows = (
        _tried(lambda: table(result.to_frame()), None, lost)
        if hasattr(result, "to_frame")
        else None
    )
    return {
        "id": anchor,
        "name": name,
        "title": words.title,
        "short": words.short,
        "reading": words.reading if figures else "",
        "unknown": "" if known else _kind(result),
        "figures": figures,
        "numbers": numbers,
        "coverage": _tried(lambda: _coverage(result), "", lost),
        "table": rows,
        "summary": _tried(result.summary, "", lost)
        if hasattr(result, "summary") and not (figures or numbers or rows)
        else "",
        "lost": list(dict.fromkeys(lost)),
    }


def _plain(result: Any) -> bool:
    """Whether it is the layout of a network without norms, which one need not look at."""
    return isinstance(result, Layout) and not result.norms


def _said(section: dict[str, Any]) -> bool:
    parts = ("unknown", "figures", "numbers", "table", "summary", "lost")
    return any(section[part] for part in parts)


def single(section: dict[str, Any]) -> bool:
    """Whether it is a few numbers, which need no section of their own."""
    rows = section["table"]
    short = rows is None or rows.total == 1 or (rows.short and section["numbers"])
    return short and not any(section[p] for p in ("unknown", "figures", "summary", "lost"))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _tried(make: Callable[[], Any], default: Any, lost: list[str]) -> Any:
    """What it makes; where it fails a note, so that the rest of the page is not lost too."""
    try:
        return make()
    except Exception as error:
        lost.append(f"Left out here: {said(error)}")
        return default


def _kind(result: Any) -> str:
    return str(result.get("type", "data") if isinstance(result, dict) else type(result).__name__)


def _figures(anchor: str, result: Any, stills: str, lost: list[str]) -> list[Figure]:
    if type(result).__name__ not in CHARTS or _few(result):
        return []
    reason = str(getattr(result, "reason", ""))

    def drawn() -> Figure | None:
        try:
            spec = chart(result).to_dict()
        except InputError:  # nothing to draw, such as a matrix that is zero: the table says so
            return None
        return figure(spec, f"{anchor}-chart1", stills, sentence=reason)

    made = _tried(drawn, None, lost)
    return [] if made is None else [made]


def _few(result: Any) -> bool:
    """Whether it is too little for a chart: one eigenvalue, one batch size, equal modes."""
    counts: dict[str, Callable[[], int]] = {
        "Spectrum": lambda: len(result.values),
        "BatchNormRegularization": lambda: len(result.batch_sizes),
        "Modes": lambda: 1 + len(result.norms) + result.coupled + (result.eval_running is not None),
    }
    count = counts.get(type(result).__name__)
    return type(result).__name__ == "Comparison" or (count is not None and count() == 1)


def _alike(one: str, other: str) -> bool:
    """Whether two headings share a word, so that one of them is enough."""
    words = [set(re.findall(rf"[a-z]{{{LETTERS},}}", text.lower())) for text in (one, other)]
    return bool(words[0] & words[1])


def _coverage(result: Any) -> str:
    coverage = getattr(result, "coverage", None)
    if coverage is None or not coverage.left_out:
        return ""
    return "; ".join(line.strip() for line in coverage.summary().splitlines())
