"""``normscope report``: the page of a saved examination, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope._version import __version__
from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results import Examination

OPTIONS = (
    Option("run", opt.text, "a saved examination (.json), or a folder that holds one", "RUN",
           group="examination", positional=True),
    Option("page", opt.text, "write the page here (default: beside the data)", "FILE.html"),
    Option("text", opt.switch, "print the findings as well"),
    Option("json", opt.switch, "print JSON and nothing else: the page and what it shows"),
)  # fmt: skip


DESCRIPTION = """Rebuild the page of an examination from the data that was saved with it.
Needs neither the network nor its data."""
EPILOG = """example:
  normscope examine mlp:64-64-10 --data digits --save-data run.json
  normscope report run.json --page page.html"""


def run(given: dict[str, Any]) -> None:
    """Read a saved examination and write its page."""
    from normscope.render import report_package
    from normscope.results.examination_files import read_examination

    if "run" not in given:
        raise InputError("Which examination? Give its file, such as run.json, or its folder.")
    source = Path(given["run"])
    default = source / "report.html" if source.is_dir() else source.with_suffix(".html")
    target = report_package().check_path(given.get("page", default), (".html",))
    with interruptible():
        examination = read_examination(source)
    if examination.version != __version__:
        made = f"normscope {examination.version or 'of an unknown version'}"
        output.note(f"{source} was written by {made}; this is {__version__}.")
    with output.working("Drawing the page"), interruptible():
        examination.save(target)
    output.note(f"Wrote {target} ({target.stat().st_size:,} bytes)")
    with interruptible():
        if given.get("json"):
            output.print_json(_shown(examination, target))
        elif given.get("text"):
            output.write(examination.summary())


def _shown(examination: Examination, target: Path) -> dict[str, Any]:
    return {
        "page": str(target),
        "bytes": target.stat().st_size,
        "model": examination.model,
        "version": examination.version,
        "worst": examination.worst,
        "findings": [finding.to_dict() for finding in examination.findings],
    }
