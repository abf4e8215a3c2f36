"""``normscope sweep export``: the table of a sweep as a file."""

from __future__ import annotations

from typing import Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.options import Option
from normscope.cli.sweep_status import FOLDER, opened
from normscope.errors import InputError

OPTIONS = (FOLDER, Option("csv", opt.text, "file to write", "FILE.csv"), opt.JSON)
DESCRIPTION = """One row per trial that has ended: settings, numbers, status."""
EPILOG = """example:
  normscope sweep mlp:64-30-10 --data digits --steps 5 lr=0.1,1 --output runs
  normscope sweep export runs --csv runs.csv"""


def run(given: dict[str, Any]) -> None:
    """Write it; what is wrong with the journals is said."""
    found = opened(given)
    if "csv" not in given and not given.get("json"):
        raise InputError("Which file? Give one with --csv FILE, or --json.")
    for line in found.trouble():
        output.note(line)
    if given.get("json"):
        output.print_json(found.to_frame().to_dict("records"))
    if "csv" in given:
        found.to_csv(given["csv"])
        output.note(f"Wrote {given['csv']}")
