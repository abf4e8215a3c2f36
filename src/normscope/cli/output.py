"""What every subcommand writes: tables and JSON to stdout, all else to stderr."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError

PIPED_WIDTH = 80  # text is wrapped here when nobody's terminal says otherwise
WIDEST = 400  # a piped table is never cut


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """An aligned table, numbers to the right; plain text when piped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDEST)
    needed = sum(max(map(len, cells)) for cells in zip(columns, *rows, strict=True))
    gap = 2 if needed + 2 * (len(columns) - 1) <= console.width else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        table.add_column(Text(column, style="bold"), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if sys.stdout.isatty():
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    lines = (line.rstrip() for line in captured.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n")


def print_text(paragraph: str, *, bullet: str = "") -> None:
    """A paragraph, wrapped to the terminal; a bullet makes the other lines hang."""
    width = PIPED_WIDTH
    if sys.stdout.isatty():
        from rich.console import Console

        width = min(Console(file=sys.stdout).width, 100)
    lines = textwrap.wrap(
        paragraph, width, initial_indent=bullet, subsequent_indent=" " * len(bullet)
    )
    sys.stdout.write("\n".join(lines) + "\n")


def print_summary(result: Any) -> None:
    """What a result says of itself: in colour for a person, plain and unwrapped when piped."""
    if sys.stdout.isatty() and hasattr(result, "__rich__"):
        from rich.console import Console

        Console(file=sys.stdout).print(result)
    else:
        sys.stdout.write(result.summary() + "\n")


def print_json(data: Any) -> None:
    """JSON alone on stdout, for other programs: NaN is null, infinities "inf" and "-inf"."""
    sys.stdout.write(json.dumps(_untagged(data), allow_nan=False) + "\n")


def _untagged(data: Any) -> Any:
    """Numbers that JSON lacks, tagged in the data of a record, as other programs take them."""
    if isinstance(data, list | tuple):
        return [_untagged(item) for item in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None if math.isnan(data) else repr(data)
    if not isinstance(data, dict):
        return data
    if "$float" in data:
        return _untagged(float(data["$float"]))
    return {key: _untagged(value) for key, value in data.items()}


def note(message: str) -> None:
    """One line on stderr, where it does not disturb what is piped."""
    sys.stderr.write(message + "\n")


def working(message: str) -> Any:
    """A spinner on stderr while a computation runs; nothing unless a person is watching."""
    from rich.console import Console

    return Console(file=sys.stderr).status(message)


def number(value: float | int | str | None, *, digits: int = 5) -> str:
    """A few digits, exponents short; a dash where there is no value."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    mantissa, mark, exponent = f"{value:.{digits}g}".partition("e")
    return mantissa + mark + (str(int(exponent)) if mark else "")


def print_result(
    result: Any, given: dict[str, Any], show: Callable[[Any], None] = print_summary
) -> None:
    """``result`` as JSON if --json was given, else by ``show``."""
    if given.get("json"):
        print_json(result.to_dict())
    else:
        show(result)


def chart_saver(path: str) -> Callable[[Any], None]:
    """What writes a chart to ``path``; a bad ending or a missing package is found right now."""
    from normscope.render import report_package

    report = report_package()
    report.check_path(path)

    def save(chart: Any) -> None:
        note(f"Wrote {report.save(chart, path)}")

    return save


def delivery(
    given: dict[str, Any], show: Callable[[Any], None] = print_summary, *, json_only: bool = True
) -> Callable[..., None]:
    """What prints a result and writes the files asked for; a bad file is found right now."""
    save = chart_saver(given["chart"]) if "chart" in given else None
    if "output" in given and json_only:
        check_data_file(given["output"])

    def deliver(result: Any, **chart_options: Any) -> None:
        print_result(result, given, show)
        if "output" in given:
            Path(given["output"]).write_text(result.to_json(indent=1), encoding="utf-8")
            note(f"Wrote {given['output']}")
        if save is not None:
            save(result.chart(**chart_options))

    return deliver


def check_data_file(path: str) -> None:
    """Refuse a file that no data can be written to, before anything is measured."""
    target = Path(path)
    if target.suffix.lower() != ".json":
        raise InputError(f"Data is saved as JSON, in a file that ends in .json. Got {path!r}.")
    from normscope.checks import checked_target  # numpy, which --help can do without

    checked_target(target)
