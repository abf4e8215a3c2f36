"""An examination as a terminal shows it: the numbers, then the findings, most severe first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope.results.examination import Examination
    from normscope.results.finding import Finding

SEVERE = "bold red"
COLOURS = {
    "ok": "green", "note": "cyan", "warning": "yellow", "unjudged": "red", "problem": "red",
}  # fmt: skip


def terminal_view(examination: Examination) -> Any:
    """What rich prints; ``rich.print(examination)`` calls it."""
    from rich.console import Group
    from rich.text import Text

    findings = examination.above("note")
    return Group(
        Text(examination.answer, style=_colour(examination)),
        *([Text(f"NOT COMPLETE: {examination.partial}", style=SEVERE)]
          if examination.partial else []),
        Text(examination.model, style="bold"),
        Text(_conditions(examination), style="dim"),
        "",
        _numbers(examination),
        "",
        *_findings(findings),
        *(Text(line, style="dim") for line in examination.remarks),
    )  # fmt: skip


def _colour(examination: Examination) -> str:
    return f"bold {COLOURS['ok' if examination.worst == 'note' else examination.worst]}"


def _conditions(examination: Examination) -> str:
    convention = examination.convention
    words = [
        examination.plan.data,
        f"loss {convention.get('loss')}",
        str(convention.get("optimizer")),
    ]
    words += [f"{name} {convention[name]:g}" for name in ("lr", "momentum") if convention.get(name)]
    return ", ".join(words)


def _numbers(examination: Examination) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for number in examination.numbers:
        spread = f"({number.spread})" if number.spread else ""
        table.add_row(Text(number.quantity), f"[bold]{number.value:.4g}", Text(spread, style="dim"))
    return table


def _findings(findings: tuple[Finding, ...]) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 1, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in findings:
        said = Text(finding.title, style="bold")
        said.append(f"  [{finding.layer}]" if finding.layer else "", style="not bold dim")
        for item in finding.evidence[:1]:  # the page has them all
            said.append(f"\n{item}", style="not bold dim")
        said.append(f"\n{finding.meaning}", style="not bold")
        said.append(f"\n-> {finding.advice}" if finding.advice else "", style="not bold green")
        table.add_row(
            Text(finding.severity.upper(), style=f"bold {COLOURS[finding.severity]}"), said
        )
    return [table]
