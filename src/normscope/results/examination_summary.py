"""The summary of an examination: the answer first, in at most 25 lines of 100 characters."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normscope.results.examination import Examination
    from normscope.results.finding import Finding

LINES, WIDTH = 25, 100
ANSWER, PARAGRAPH = 4, 3  # lines, at most, of the answer and of a paragraph
TAIL = 6  # lines of remarks, at most


def summary_lines(examination: Examination) -> list[str]:
    """The answer, what to do, the network, further findings, and what was not measured."""
    warned = [f for f in examination.findings if f.warns]
    lines = _wrapped(examination.answer, ANSWER)
    if examination.partial:
        lines += _wrapped(f"NOT COMPLETE: {examination.partial}")
    for finding in examination.findings:
        if finding in warned[:1]:
            lines += _wrapped(finding.meaning, indent="  ") + _advice(finding)
        elif finding.severity == "unjudged":
            lines += _wrapped(f"{finding.title}." if warned else "")
            lines += _wrapped(finding.meaning, indent="  ")
    lines += ["", *_wrapped(f"{examination.model}: {examination.plan.data}")]
    lines += [_cut(f"  {number}") for number in examination.numbers]
    tail = [_cut(line) for line in examination.remarks]
    if len(tail) > TAIL:
        tail = [*tail[: TAIL - 1], f"and {len(tail) - TAIL + 1} further remarks: see .remarks"]
    others = [f for f in examination.above("note") if f not in warned[:1]]
    others = [f for f in others if f.severity != "unjudged"]
    return [*lines, *_fitting(others, LINES - len(lines) - len(tail) - 2), "", *tail][:LINES]


def _fitting(findings: list[Finding], room: int) -> list[str]:
    """As many findings as there is room for, the less important ones without advice."""
    blocks = [_block(f, advised=True) for f in findings]
    if sum(map(len, blocks)) > room:
        blocks = [_block(f, advised=f.warns) for f in findings]
    lines: list[str] = []
    for shown, block in enumerate(blocks):
        left = len(blocks) - shown
        if len(lines) + len(block) + (left > 1) > room:
            return [*lines, f"and {left} further finding{'s' * (left > 1)}: see .findings"]
        lines += block
    return ["", *lines] if lines else []


def _block(finding: Finding, *, advised: bool) -> list[str]:
    where = f"  [{finding.layer}]" if finding.layer else ""
    title = _wrapped(f"{finding.severity.upper()}  {finding.title}{where}", 2)
    return [*title, *(_advice(finding) if advised else [])]


def _advice(finding: Finding) -> list[str]:
    return _wrapped(f"-> {finding.advice}", indent="  ") if finding.advice else []


def _wrapped(text: str, most: int = PARAGRAPH, indent: str = "") -> list[str]:
    lines: list[str] = textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", max_lines=most,
        placeholder=" ...",
    )  # fmt: skip
    return lines


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."
