"""``normscope what-if``: what named changes would do to a network."""

from __future__ import annotations

import re
from typing import Any

from normscope.cli import options as opt
from normscope.cli.delivery import PARTIAL, Delivery
from normscope.cli.options import Option
from normscope.cli.subjects import NETWORK, RUNNING, TRAINED, check_given, subject_of, users_code

Change = str | list[str]
SEARCH = "search"


def _changes(value: Any) -> list[Change]:
    """Names with commas, or a TOML array; ``one+other`` are made in turn."""
    return [_in_turn(word) for word in opt.names(value)]


def _in_turn(word: str) -> Change:
    parts = re.split(r"\+(?=[a-z])", word)  # not the one of 1e+2
    return parts if len(parts) > 1 else word


OPTIONS = (
    *NETWORK,
    Option("changes", _changes, "such as norm-before-last,gamma=0.1; a+b makes both in turn "
           "(default: the promising ones)", "NAMES", group="changes"),
    *TRAINED,
    Option("no_limits", opt.switch, "do not train copies: curvature and conditioning only",
           group=SEARCH),
    Option("steps", opt.whole, "number of updates of a training run", "N", 50, SEARCH),
    Option("num_seeds", opt.whole, "runs, each with another order of the samples", "N", 1, SEARCH),
    Option("tol", opt.number, "relative width of the intervals", "X", 0.1, SEARCH),
    *RUNNING,
    opt.CHART,
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip
DESCRIPTION = """Make named changes to copies of a network, and table before and after:
curvature, the learning rates that training runs are stable at, conditioning."""
EPILOG = """changes:
  norm-before-last[=KIND]   one more norm, before the last linear layer
  norm-output[=KIND]        one more norm, of the outputs: mean, batch or layer
  norm-on-top[=KIND]        remove all norms but one before the last pooling
  remove-norms[:GLOB]       norm layers become the identity
  replace:KIND->KIND        such as batch->layer (in quotes: > is the shell's)
  gamma[:GLOB]=NUMBER       set the scale of the norms
  freeze-statistics[:GLOB]  running statistics in training too, which then stay
  recompute-statistics[:GLOB]  running statistics from the data, weights as they are
  scale-weights[:GLOB]=NUMBER, fold[:GLOB], freeze:GLOB

exit codes: 0 done, 2 bad input or a file that could not be written,
3 done in part (interrupted or out of time), 130 interrupted before anything was known

example:
  normscope what-if mlp:64-64-64-10,norm=batch --data digits \\
      --changes norm-before-last,gamma=0.1"""


def run(given: dict[str, Any]) -> int | None:
    """Change, measure, save, print."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    deliver = Delivery(given)
    with users_code(settings["seed"]):
        found = _tabled(settings)
    return deliver(found) or (PARTIAL if found.ended else None)


def _tabled(settings: dict[str, Any]) -> Any:
    from normscope.diagnose.what_if import what_if
    from normscope.subject.transforms import parse_transform

    changes = settings["changes"]
    for change in changes or []:
        for one in [change] if isinstance(change, str) else change:
            parse_transform(one)  # a mistyped name is found before anything is measured
    names = ("momentum", "steps", "num_seeds", "tol", "max_seconds", "device", "seed")
    return what_if(
        **subject_of(settings),
        changes=changes,
        limits=not settings["no_limits"],
        **{name: settings[name] for name in names},
    )
