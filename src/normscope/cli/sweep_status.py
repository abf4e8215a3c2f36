"""``normscope sweep status``: how far a sweep is, also while it runs."""

from __future__ import annotations

from typing import Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.options import Option
from normscope.errors import InputError

FOLDER = Option("folder", opt.text, "folder of a sweep", "DIR", group="sweep", positional=True)
OPTIONS = (FOLDER, opt.JSON)
DESCRIPTION = """How many trials are done, diverged and failed, who is at work, and which lines of
the journals are bad or contradict each other."""
EPILOG = """example:
  normscope sweep mlp:64-30-10 --data digits --steps 5 lr=0.1,1 --output runs
  normscope sweep status runs"""


def run(given: dict[str, Any]) -> None:
    """Read the folder and say."""
    show(opened(given), given)


def show(found: Any, given: dict[str, Any]) -> None:
    """How far a sweep is, in words or as JSON."""
    if not given.get("json"):
        output.print_summary(found)
        return
    union = found.found
    output.print_json(
        {
            "trials": len(found.plan.rows),
            "done": len(union.done),
            "failed": len(union.failed),
            "diverged": union.diverged,
            "missing": found.missing,
            "bad": [str(place) for place in union.bad],
            "conflicts": [[key, str(a), str(b)] for key, a, b in union.conflicts],
        }
    )


def opened(given: dict[str, Any]) -> Any:
    """The sweep of the folder that was named."""
    from normscope.sweeps import Sweep

    if "folder" not in given:
        raise InputError("Which sweep? Give its folder.")
    return Sweep(given["folder"])
