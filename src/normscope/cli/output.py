"""What every subcommand prints: tables and JSON on stdout, all else on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PIPED_WIDTH = 80  # text is wrapped here when nobody's terminal says otherwise
WIDEST = 400  # a piped table is never cut
# A name in a saved file must not steer the terminal it is printed on.
CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd") | {9: "\t", 10: "\n"}


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: bool = False,
    width: int = WIDEST,
) -> None:
    """An aligned table, numbers to the right; plain text when piped.

    Args:
        columns: their names.
        rows: the cells of each.
        left: all of it to the left, for texts; names in the first column are never broken.
        width: widest that it may be; longer cells go on in the next line.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else width)
    console.width = min(console.width, width)
    needed = sum(max(map(len, cells)) for cells in zip(columns, *rows, strict=True))
    gap = 2 if needed + 2 * (len(columns) - 1) <= console.width else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(
            Text(column, style="bold"), justify="left" if left else "right", overflow="fold",
            no_wrap=left and not place,
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(cell.translate(CONTROLS)) for cell in row))
    if sys.stdout.isatty():
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")


def print_text(paragraph: str, *, bullet: str = "") -> None:
    """A paragraph, wrapped to the terminal; a bullet makes the other lines hang."""
    width = PIPED_WIDTH
    if sys.stdout.isatty():
        from rich.console import Console

        width = min(Console(file=sys.stdout).width, 100)
    lines = textwrap.wrap(
        paragraph, width, initial_indent=bullet, subsequent_indent=" " * len(bullet)
    )
    write("\n".join(lines))


def print_summary(result: Any) -> None:
    """What a result says of itself: in colour for a person, plain and unwrapped when piped."""
    if sys.stdout.isatty() and hasattr(result, "__rich__"):
        from rich.console import Console

        Console(file=sys.stdout).print(result)
    else:
        write(result.summary())


def print_json(data: Any) -> None:
    """JSON alone on stdout, for other programs: NaN is null, infinities "inf" and "-inf"."""
    write(json.dumps(_untagged(data), allow_nan=False))


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


def write(text: str) -> None:
    """A text and the end of its line on stdout, without characters that steer a terminal."""
    sys.stdout.write(text.translate(CONTROLS) + "\n")


def note(message: str) -> None:
    """One line on stderr, where it does not disturb what is piped; nothing if it is gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(message.translate(CONTROLS) + "\n")


@contextlib.contextmanager
def working(message: str) -> Iterator[None]:
    """A spinner on stderr while a computation runs; nothing unless a person is watching."""
    from rich.console import Console

    status = Console(file=sys.stderr).status(message) if sys.stderr.isatty() else None
    try:
        with contextlib.suppress(OSError):  # the terminal may be closed meanwhile
            if status:
                status.start()
        yield
    finally:
        with contextlib.suppress(OSError):
            if status:
                status.stop()


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
