"""``normscope examine``: how sharp is a network, which learning rate does it bear, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.options import Option
from normscope.cli.subjects import NETWORK, RUNNING, TRAINED, check_given, subject_of, users_code
from normscope.registry import check_choice

if TYPE_CHECKING:
    from normscope.results import Examination

CHECK_FAILED, PARTIAL = 1, 3  # exit codes
GRAVE = ("note", "warning", "problem")


def _severity(value: Any) -> str:
    """One that can make a check fail."""
    check_choice("severity", value, GRAVE)
    return str(value)


OPTIONS = (
    *NETWORK,
    *TRAINED,
    Option("lr", opt.number, "the learning rate you train with, or mean to", "LR",
           group="training"),
    Option("preset", opt.text, "fast, standard or full", "NAME", "fast", "run"),
    *RUNNING,
    Option("dry_run", opt.switch, "only say what can be measured, what not, and how long it takes",
           group="run"),
    Option("fail_on", _severity, "exit with 1 if a finding is at least that grave: note, warning "
           "or problem", "SEVERITY"),
    Option("output", opt.text, "write the page", "FILE.html"),
    Option("save_data", opt.text, "write the data, for normscope report and compare",
           "FILE.json"),
    opt.JSON,
)  # fmt: skip


DESCRIPTION = """Measure a network on a few batches and say what was found, most severe first:
sharpness, learning rate, signals, conditioning, and what its norms do to it."""
EPILOG = """exit codes: 0 done, 1 a finding at or above --fail-on, 2 bad input,
3 done in part (interrupted; or out of time or a measurement failed, without such a
finding; the rest is saved),
130 interrupted before anything was measured

example:
  normscope examine my_model:make --data my_data:loader --lr 0.1 \\
      --preset standard --output page.html
  normscope examine mlp:64-64-64-10,norm=batch --data digits --json"""


def run(given: dict[str, Any]) -> int | None:
    """Examine, print, save."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    files = _checked_files(given)
    with users_code(settings["seed"]):
        found = _planned(settings) if settings["dry_run"] else _examined(settings)
    output.print_result(found, given)
    if settings["dry_run"]:
        return None
    for file in files:
        output.note(f"Wrote {found.save(file)}")
    return _code(found, settings["fail_on"])


def _planned(settings: dict[str, Any]) -> Any:
    from normscope.diagnose import plan_examination

    subject = subject_of(settings)
    del subject["optimizer"]
    return plan_examination(**subject, **_chosen(settings, "preset", "device", "seed"))


def _examined(settings: dict[str, Any]) -> Any:
    from normscope.diagnose import examine

    names = ("lr", "momentum", "preset", "max_seconds", "device", "seed")
    return examine(**subject_of(settings), **_chosen(settings, *names))


def _chosen(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def _code(found: Examination, fail_on: str | None) -> int | None:
    if fail_on is not None and found.above(fail_on) and not found.interrupted:
        return CHECK_FAILED
    return PARTIAL if found.missing else None


def _checked_files(given: dict[str, Any]) -> list[str]:
    """The files to write; what is wrong with them is found before anything is measured."""
    from normscope.render import report_package

    if "save_data" in given:
        output.check_data_file(given["save_data"])
    if "output" in given:
        report_package().check_path(given["output"], (".html",))
    return [given[name] for name in ("save_data", "output") if name in given]
