"""``normscope sweep``: thousands of training runs, in a folder that survives crashes."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from normscope.cli import options as opt
from normscope.cli import output
from normscope.cli.delivery import PARTIAL
from normscope.cli.options import Option
from normscope.cli.sweep_status import show
from normscope.errors import InputError
from normscope.subject.interrupts import interruptible

NETWORK, TRAINING, RUN, CLUSTER = "network and data", "training", "run", "cluster"
DATA = ("data", "samples", "test_samples", "standardize")  # settings that say which samples
TIMED, PATIENCE = 3, 20.0  # trials of a dry run, and seconds after which no other is begun


def _whole(value: Any) -> tuple[int, ...]:
    """Whole numbers, given as numbers are."""
    found = opt.numbers(value)
    for number in found:
        if number != int(number):
            raise InputError(f"Expected whole numbers. Got {number:g}.")
    return tuple(int(number) for number in found)


def _names(value: Any) -> tuple[str | None, ...]:
    """Words; ``none`` is nothing."""
    return tuple(None if name == "none" else name for name in opt.names(value))


SETTINGS = (
    Option("network", opt.text, "mlp:784-1000-10, cnn:3x32x32:30-60-90, resmlp:500x4-10, a "
           "network such as resnet20, or a file.toml with all of this", "NETWORK", group=NETWORK,
           positional=True),
    Option("data", opt.names, "digits, mnist, fashion-mnist, cifar10, imagenet32, folder:PATH, "
           "random:3x32x32", "DATA", group=NETWORK),
    Option("samples", _whole, "training samples (default: all)", "N", group=NETWORK),
    Option("test_samples", _whole, "test samples (default: all)", "N", group=NETWORK),
    Option("standardize", opt.names, "channel, dataset, pixel or none", "NAME", group=NETWORK),
    Option("norm", _names, "norm of all hidden layers: none, batch, layer", "NAME", group=NETWORK),
    Option("gamma", opt.numbers, "the norm's initial gain", "G", group=NETWORK),
    Option("activation", opt.names, "relu, tanh, ...", "NAME", group=NETWORK),
    Option("weight_variance", opt.numbers, "weights are N(0, this / fan-in)", "S2", group=NETWORK),
    Option("bias_variance", opt.numbers, "biases are N(0, this)", "S2", group=NETWORK),
    Option("last_norm", _names, "norm of the outputs", "NAME", group=NETWORK),
    Option("kernel", _whole, "cnn: side of the kernels", "N", group=NETWORK),
    Option("stride", _whole, "cnn: of every convolution", "N", group=NETWORK),
    Option("padding", _whole, "cnn: zeros on every side", "N", group=NETWORK),
    Option("outputs", _whole, "cnn: classes", "N", group=NETWORK),
    Option("head", opt.names, "cnn: flatten or pool before the last layer", "NAME", group=NETWORK),
    Option("branch_scale", opt.numbers, "resmlp: factor of the branches", "X", group=NETWORK),
    Option("trained", opt.names, "all parameters, or weights only", "SET", group=NETWORK),
    Option("lr", opt.numbers, "learning rate", "LR", group=TRAINING),
    Option("loss", opt.names, "cross_entropy or mse", "LOSS", group=TRAINING),
    Option("steps", _whole, "updates of a run; or --epochs", "N", group=TRAINING),
    Option("epochs", _whole, "passes over the data", "N", group=TRAINING),
    Option("batch_size", _whole, "samples in a batch (default: 128)", "N", group=TRAINING),
    Option("optimizer", opt.names, "sgd, adam, adamw", "NAME", group=TRAINING),
    Option("momentum", opt.numbers, "momentum of sgd", "MU", group=TRAINING),
    Option("weight_decay", opt.numbers, "as in torch", "X", group=TRAINING),
    Option("schedule", opt.names, "how the rate changes: constant, inverse-time, ...", "NAME",
           group=TRAINING),
    Option("device", opt.names, "where to train, such as cuda", "DEVICE", group=TRAINING),
)  # fmt: skip
RUNNING = (
    Option("seeds", opt.whole, "runs of each setting, with seeds from 0 on", "N", 1, RUN),
    Option("output", opt.text, "folder of the sweep; the same command goes on from there", "DIR",
           group=RUN),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group=RUN),
    Option("workers", opt.whole, "processes of one thread each (default: one for each core); 1 "
           "runs in this process", "N", group=RUN),
    Option("executor", opt.text, "processes, serial or ray", "NAME", "processes", RUN),
    Option("shard", opt.text, "run only part i of n, for n drivers on one folder", "I/N",
           group=RUN),
    Option("dry_run", opt.switch, "say how many trials there are and how long they take",
           group=RUN),
    Option("retry_failed", opt.switch, "run failed trials again", group=RUN),
    Option("fail_fast", opt.switch, "stop at the first failed trial", group=RUN),
    Option("max_failures", opt.whole, "stop after so many failed trials", "N", group=RUN),
    Option("no_lock", opt.switch, "do not refuse a second driver of the same trials", group=RUN),
    Option("address", opt.text, "Ray at: local, auto, HOST:PORT", "ADDRESS", "local", CLUSTER),
    Option("cpus_per_trial", opt.number, "cores and threads of a trial", "N", 1, CLUSTER),
    Option("gpus_per_trial", opt.number, "GPUs of a trial, such as 0.25", "N", 0, CLUSTER),
)  # fmt: skip
OPTIONS = (*SETTINGS, *RUNNING, opt.JSON)
PASSED = (
    *("executor", "workers", "shard", "retry_failed", "fail_fast", "max_failures"),
    *("address", "cpus_per_trial", "gpus_per_trial"),
)
DESCRIPTION = """Train a network at every combination of settings. Each setting takes a value, a
list (0.1,0.2), start:stop:count, linspace(a,b,n) or logspace(a,b,n) (10^a to
10^b), as a flag or as name=values. What is finished stays finished: the same
command again runs only what is missing, whatever ended the first one."""
EPILOG = """also: normscope sweep status DIR, sweep export DIR --csv FILE, sweep chart DIR FILE

exit codes: 0 done, 2 bad input, 3 some trials failed, 130 interrupted

example:
  normscope sweep mlp:64-30-10 --data digits --norm batch --loss mse --steps 20 \\
      "lr=logspace(-2,1,4)" gamma=0.5,1 seeds=2 --momentum 0.9 --output map"""


def prepared(words: Sequence[str]) -> list[str]:
    """``name=values`` as flags, and a TOML file in the place of the network as the settings."""
    made, seen = list[str](), set[str]()
    taking = {option.flag for option in OPTIONS if option.metavar} | {"--config"}
    for before, word in zip(["", *words], words, strict=False):
        name, equals, _ = word.partition("=")
        is_value = before in taking
        if equals and not is_value and name.replace("_", "").isalnum():
            name = f"--{name.replace('_', '-')}"
            made.append(name + word[word.index("=") :])
        elif word.endswith(".toml") and not is_value and not name.startswith("--"):
            made += ["--config", word]
        else:
            made.append(word)
        if name.startswith("--"):
            if name in seen:
                raise InputError(f"{name[2:]} is given twice. Put all its values in one list.")
            seen.add(name)
    return made


def run(given: dict[str, Any]) -> int | None:
    """Plan, run, and say where training is stable."""
    for name, example in (("network", "mlp:64-30-10"), ("data", "--data digits"), ("lr", "lr=0.1")):
        if name not in given:
            raise InputError(f"Which {name}? Give one, such as {example}, or a file.toml.")
    if "output" not in given and "dry_run" not in given:
        raise InputError("Which folder? Give the sweep one with --output DIR.")
    if "data_dir" in given:  # so that worker processes find it too
        os.environ["NORMSCOPE_DATA"] = os.path.abspath(given["data_dir"])
    from normscope.sweeps import Sweep, sweep
    from normscope.train import TRAINING

    with interruptible():
        settings = _settings(given)
    seeds = opt.defaults(RUNNING)["seeds"] if "seeds" not in given else given["seeds"]
    if "dry_run" in given:
        with interruptible():
            _dry_run(settings, seeds, given.get("workers"))
        return None
    passed = {name: given[name] for name in PASSED if name in given}
    try:
        with _plain_warnings(), interruptible():
            found = sweep(
                TRAINING, settings, seeds=seeds, output=given["output"],
                lock="no_lock" not in given, **passed,
            )  # fmt: skip
    except KeyboardInterrupt:
        with contextlib.suppress(InputError):  # interrupted before there was a plan
            saved = len(Sweep(given["output"]).found.done)
            output.note(f"{saved} trials are saved. The same command goes on from there.")
        raise
    show(found, given)
    if found.complete and not given.get("json"):
        show_map(found)
    return PARTIAL if found.found.failed else None


def show_map(found: Any) -> None:
    """Where training is stable, if the sweep is over the learning rate and one more setting."""
    from normscope.train import stability_map

    if "lr" in found.plan.varying:
        with contextlib.suppress(InputError):  # no other setting, several, or one without numbers
            made = stability_map(found)
            output.print_text("")
            output.print_summary(made)


def _settings(given: dict[str, Any]) -> Any:
    """The grid, with the checksum of the data; what no trial could use is found right now."""
    from normscope.sweeps.plan import grid
    from normscope.train.trial import check_settings, checksum_of

    settings = {o.name: given[o.name] for o in SETTINGS if o.name in given}
    rows, seen = grid(settings), set[Any]()
    for place, row in enumerate([rows[-1], *rows]):  # both ends, and each word once
        words = {item for item in row.items() if not isinstance(item[1], int | float)}
        if place < 2 or not words <= seen:
            seen |= words
            check_settings(row)
    sums: dict[Any, str] = {}
    for row in rows:
        if (which := tuple(map(row.get, DATA))) not in sums:
            sums[which] = checksum_of(row)
    if len(sums) == 1:
        return settings | {"data_checksum": list(sums.values())}
    return [row | {"data_checksum": sums[tuple(map(row.get, DATA))]} for row in rows]


def _dry_run(settings: Any, seeds: int, workers: int | None) -> None:
    """Count the trials, and time a few."""
    from normscope.sweeps.executors import usable_cores
    from normscope.sweeps.live import duration
    from normscope.sweeps.plan import make_plan
    from normscope.sweeps.running import Task
    from normscope.train import TRAINING

    plan = make_plan(TRAINING, settings, seeds)
    names = [name for name in plan.varying if name != "data_checksum"]
    sizes = [f"{len(set(map(repr, (r.get(n) for r in plan.rows))))} {n}" for n in names]
    output.print_text(f"{len(plan.rows)} trials: {' x '.join(sizes) or 'one setting'}")
    task, began, seconds = Task(TRAINING.function), time.monotonic(), list[float]()
    with output.working("Timing a few trials"):
        for key, row in list(plan.trials.items())[:TIMED]:
            done = task(key, row)
            if done.error:
                raise InputError(f"A trial failed: {done.error.strip().splitlines()[-1]}")
            seconds.append(done.about["seconds"])
            if time.monotonic() - began > PATIENCE:
                break
    mean, cores = sum(seconds) / len(seconds), workers or usable_cores()
    output.print_text(
        f"{mean:.3g} s a trial ({min(seconds):.3g} to {max(seconds):.3g} in {len(seconds)} timed): "
        f"about {duration(mean * len(plan.rows) / cores)} with {cores} workers"
    )


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as one line each."""
    with warnings.catch_warnings():
        show: Callable[..., None] = lambda message, *rest, **more: output.note(str(message))  # noqa: E731
        warnings.showwarning = show
        yield
