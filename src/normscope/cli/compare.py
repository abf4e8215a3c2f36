"""``normscope compare``: two saved examinations, number by number and finding by finding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import Delivery
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results.examination_difference import ExaminationDifference

OPTIONS = (
    Option("first", opt.text, "a saved examination (.json), or a folder that holds one", "A",
           group="examinations", positional=True),
    Option("second", opt.text, "another", "B", group="examinations", positional=True),
    opt.PAGE,
    opt.CHART,
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip


DESCRIPTION = """What is different between two saved examinations: headline numbers, the
numbers of each measurement, and findings that are new, gone or changed.
Needs neither the networks nor their data."""
EPILOG = """example:
  normscope compare plain.json normalized.json --page compare.html"""


def run(given: dict[str, Any]) -> int | None:
    """Read both, compare, save, print."""
    from normscope.results.examination_difference import compare_examinations
    from normscope.results.examination_files import read_examination

    for name in ("first", "second"):
        if name not in given:
            raise InputError(f"Give two saved examinations: the {name} is missing.")
    deliver = Delivery(given, _print)
    names = (given["first"], given["second"])
    with interruptible():
        found = compare_examinations(*(read_examination(name) for name in names), names=names)
    return deliver(found)


def _print(found: ExaminationDifference) -> None:
    for letter, name, model in zip("AB", found.names, found.models, strict=True):
        output.print_text(f"{name}: {model}", bullet=f"{letter}  ")
    for caution in found.cautions:
        output.print_text(caution, bullet="!  ")
    output.print_text("")
    rows = [
        [n.measurement or "head", n.quantity]
        + [_cell(value) for value in (n.first, n.second, n.ratio)]
        for n in found.numbers
    ]
    output.print_table(["measurement", "number", "A", "B", "B / A"], rows)
    output.print_text("")
    moved = [f for f in found.findings if f.change not in ("same", "not judged")]
    if moved:
        rows = [[f.change, f.first or "-", f.second or "-", f.title] for f in moved]
        output.print_table(["finding", "A", "B", "title"], rows)
    counts = [f"{len(found.changed(kind))} {kind}" for kind in ("same", "not judged")]
    what = "1 finding" if len(moved) == 1 else f"{len(moved)} findings"
    output.print_text(f"{what} changed; of the other rules {', '.join(counts)}")


def _cell(value: float) -> str:
    return output.number(None if math.isnan(value) else value, digits=4)
