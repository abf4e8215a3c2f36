"""``normscope examine``: how sharp is a network, at which learning rate is it stable, advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import CANNOT_WRITE, PARTIAL, Delivery
from normscope.cli.options import Option
from normscope.cli.subjects import (
    GROUP,
    NETWORK,
    RUNNING,
    TRAINED,
    check_given,
    subject_of,
    users_code,
)
from normscope.cli.targets import data_target
from normscope.registry import check_choice
from normscope.subject.interrupts import interruptible

if TYPE_CHECKING:
    from normscope.results import Examination

CHECK_FAILED = 1  # exit code
SEVERE = ("note", "warning", "problem")


def _severity(value: Any) -> str:
    """One that can make a check fail."""
    check_choice("severity", value, SEVERE)
    return str(value)


OPTIONS = (
    *NETWORK,
    Option("eval_data", opt.text, "what the model is evaluated on, as --data", "DATA", group=GROUP),
    *TRAINED,
    Option("lr", opt.number, "the learning rate you train with, or plan to", "LR",
           group="training"),
    Option("preset", opt.text, "fast, standard or full", "NAME", "fast", "run"),
    Option("trial_seconds", opt.number, "time limit of the trial, 25 updates of copies and more "
           "(default: 10 in fast, 60 otherwise); 0 leaves it out", "SECONDS", group="run"),
    *RUNNING,
    Option("dry_run", opt.switch, "list what can be measured, what cannot, and the time; then exit",
           group="run"),
    Option("fail_on", _severity, "exit with 1 if a finding has at least this severity: note, "
           "warning or problem", "SEVERITY"),
    opt.PAGE,
    Option("save_data", opt.text, "write the data, for normscope report and compare; renewed "
           "after each measurement", "FILE.json"),
    opt.JSON,
)  # fmt: skip


DESCRIPTION = """Measure a network on a few batches and say what was found, most severe first:
sharpness, learning rate, signals, conditioning, and what its norms do to it."""
EPILOG = """exit codes: 0 done, 1 a finding at or above --fail-on, 2 bad input or a file
that could not be written, 3 could not judge the network, or incomplete (interrupted,
out of time, or a measurement failed; what was measured is saved),
130 interrupted before anything was measured

example:
  normscope examine my_model:make --data my_data:loader --lr 0.1 \\
      --preset standard --page page.html
  normscope examine my_model:make --data my_data:train --eval-data my_data:test
  normscope examine mlp:64-64-64-10,norm=batch --data digits --json"""


def run(given: dict[str, Any]) -> int | None:
    """Examine the network, save the files, print the summary."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    deliver = Delivery(given)
    with users_code(settings["seed"]):
        found = _planned(settings) if settings["dry_run"] else _examined(settings, deliver)
    if settings["dry_run"]:
        with interruptible():
            output.print_result(found, given)
        return None
    code = deliver(found)
    return code if code == CANNOT_WRITE else _code(found, settings["fail_on"]) or code


def _planned(settings: dict[str, Any]) -> Any:
    from normscope.diagnose import plan_examination

    subject = subject_of(settings)
    del subject["optimizer"]
    with interruptible():
        return plan_examination(
            **subject, **_chosen(settings, "preset", "trial_seconds", "device", "seed")
        )


def _examined(settings: dict[str, Any], deliver: Delivery) -> Any:
    from normscope.diagnose import examine

    names = ("lr", "momentum", "preset", "max_seconds", "trial_seconds", "device", "seed")
    chosen, subject = _chosen(settings, *names), subject_of(settings)
    if settings["eval_data"] is not None:
        with interruptible():
            where = settings["data_dir"]
            subject["eval_data"] = data_target(settings["eval_data"], data_dir=where)
    return examine(**subject, **chosen, after_step=deliver.keep)


def _chosen(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings[name] for name in names}


def _code(found: Examination, fail_on: str | None) -> int | None:
    severe = [f for f in found.above(fail_on) if f.rule != "coverage"] if fail_on else []
    if severe and not found.interrupted:
        return CHECK_FAILED
    return PARTIAL if found.missing or found.unjudged else None
