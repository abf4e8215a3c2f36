"""``normscope max-lr``: the largest stable learning rate, found by training copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normscope.cli import options as opt
from normscope.cli.delivery import PARTIAL, Delivery
from normscope.cli.options import Option
from normscope.cli.subjects import NETWORK, RUNNING, TRAINED, check_given, subject_of, users_code
from normscope.errors import InputError
from normscope.registry import Registry

SEARCH = "search"
Settings = dict[str, Any]
# options that only some modes have
OWN = {
    "weight_decay": ("bisect", "range"),
    "criterion": ("bisect",),
    "num_seeds": ("bisect",),
    "bracket": ("bisect", "range"),
    "tol": ("bisect", "suggest"),
    "max_seconds": ("bisect", "suggest"),
}


def _bracket(value: Any) -> tuple[float, ...]:
    """Read two numbers, ``low,high``."""
    ends = opt.numbers(value)
    if len(ends) != 2:
        raise InputError(f"A bracket is two learning rates, such as 1e-4,10. Got {value!r}.")
    return ends


OPTIONS = (
    *NETWORK,
    *TRAINED,
    Option("weight_decay", opt.number, "weight decay, as in torch", "X", 0, "training"),
    Option("mode", opt.text, "bisect (both limits), range (one run with an increasing rate), or "
           "suggest (a rate to train with)", "NAME", "bisect", SEARCH),
    Option("criterion", opt.text, "which limit to find to the precision --tol: diverges, "
           "does-not-learn, or leaves (rises above 10 times its start)", "NAME", "diverges",
           SEARCH),
    Option("steps", opt.whole, "number of updates of a training run (default: 50; range: 100)",
           "N", group=SEARCH),
    Option("num_seeds", opt.whole, "runs, each with another order of the samples", "N", 3, SEARCH),
    Option("bracket", _bracket, "lowest and highest rate to try", "LOW,HIGH", group=SEARCH),
    Option("tol", opt.number, "relative width of the interval (default: 0.02; suggest: 0.2)", "X",
           group=SEARCH),
    *RUNNING,
    opt.CHART,
    opt.SAVE_DATA,
    opt.JSON,
)  # fmt: skip


DESCRIPTION = """Train copies of a network to find where training diverges and where it no
longer learns, as intervals; the network itself is not touched."""
EPILOG = """exit codes: 0 done, 2 bad input or a file that could not be written,
3 done in part (interrupted or out of time), 130 interrupted before anything was known

example:
  normscope max-lr mlp:64-64-10 --data digits --momentum 0.9 --chart limit.png"""


def run(given: dict[str, Any]) -> int | None:
    """Search, save, print."""
    check_given(given)
    settings = opt.defaults(OPTIONS) | given
    search = MODES[settings["mode"]]
    _refuse_foreign(given, settings["mode"])
    deliver = Delivery(given)
    with users_code(settings["seed"]):
        found, complete = search(settings, deliver)
    return deliver(found) or (None if complete else PARTIAL)


def _bisected(settings: Settings, deliver: Delivery) -> tuple[Any, bool]:
    from normscope.train import max_stable_lr

    first = settings["seed"]
    found = max_stable_lr(
        **_trained(settings),
        **_given(settings, "criterion", "tol", "weight_decay", "bracket", "max_seconds"),
        seeds=range(first, first + settings["num_seeds"]),
        after_step=deliver.keep,
    )
    return found, found.complete


def _ranged(settings: Settings, _: Delivery) -> tuple[Any, bool]:
    from normscope.train import lr_range_test

    found = lr_range_test(
        **_trained(settings), **_given(settings, "weight_decay", "bracket", "seed")
    )
    return found, found.diverged or len(found.lrs) >= found.convention["steps"]


def _suggested(settings: Settings, _: Delivery) -> tuple[Any, bool]:
    from normscope.diagnose.learning_rate import suggest_lr

    found = suggest_lr(
        **subject_of(settings),
        **_given(settings, "momentum", "steps", "tol", "max_seconds", "device"),
        seed=settings["seed"],
    )
    return found, not found.ended


# what a mode finds, and whether it came to its end
MODES: Registry[Callable[[Settings, Delivery], tuple[Any, bool]]] = Registry(
    "mode", {"bisect": _bisected, "range": _ranged, "suggest": _suggested}
)


def _trained(settings: Settings) -> Settings:
    """Model, data, loss and optimizer of the training runs."""
    return subject_of(settings) | _given(settings, "momentum", "steps", "device")


def _given(settings: Settings, *names: str) -> Settings:
    """What was given; the API knows what holds otherwise."""
    return {name: settings[name] for name in names if settings[name] is not None}


def _refuse_foreign(given: Settings, mode: str) -> None:
    for name, modes in OWN.items():
        if name in given and mode not in modes:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} is for --mode {' or '.join(modes)}. Got --mode {mode}.")
