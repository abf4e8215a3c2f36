"""The options that say what is examined and how it is trained: the same for every command."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from normscope.cli import options as opt
from normscope.cli import output, targets
from normscope.cli.options import Option
from normscope.errors import InputError
from normscope.seeds import checked_seed
from normscope.subject.interrupts import interruptible

GROUP = "network and data"
MODEL_AND_DATA = (
    Option("model", opt.text, "resnet20, mlp:64-32-10,norm=batch, or your own: module:factory, "
           "file.py:factory", "MODEL", group=GROUP, positional=True),
    Option("data", opt.text, "digits, mnist, fashion-mnist, cifar10, imagenet32, folder:PATH, "
           "random:3x32x32, or your own: module:loader", "DATA", group=GROUP),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group=GROUP),
)  # fmt: skip
WEIGHTS = Option(
    "weights", opt.text, "state dict to load into the network (torch.save)", "FILE", group=GROUP
)
NETWORK = (
    *MODEL_AND_DATA,
    Option("batch_size", opt.whole, "samples in a batch (default: 128); a loader keeps its own",
           "N", group=GROUP),
    Option("num_batches", opt.whole, "use only the first N batches", "N", group=GROUP),
    WEIGHTS,
    Option("loss", opt.text, "cross_entropy, mse, or your own module:function of (outputs, "
           "targets) (default: cross_entropy)", "LOSS", group=GROUP),
    Option("loss_fn", opt.text, "in place of --loss: your own module:function of (model, batch)",
           "NAME", group=GROUP),
    Option("outputs_fn", opt.text, "with --loss: your own module:function of (model, batch) that "
           "returns (outputs, targets)", "NAME", group=GROUP),
)  # fmt: skip
TRAINED = (
    Option("optimizer", opt.text, "sgd, adam, adamw, or your own: module:function of the "
           "parameters", "NAME", "sgd", "training"),
    Option("momentum", opt.number, "SGD momentum", "MU", 0, "training"),
)  # fmt: skip
RUNNING = (
    Option("max_seconds", opt.number, "time limit; steps that do not fit are skipped and listed",
           "SECONDS", group="run"),
    Option("device", opt.text, "where to measure, such as cuda", "DEVICE", group="run"),
    Option("seed", opt.whole, "seed for all random numbers, also in your code", "SEED", 0, "run"),
)  # fmt: skip


def check_given(given: dict[str, Any]) -> None:
    """Refuse a command without network or data."""
    for name, example in (("model", "resnet20"), ("data", "--data digits")):
        if name not in given:
            raise InputError(f"Which {name}? Give one, such as {example}, or a --config file.")


@contextlib.contextmanager
def users_code(seed: int) -> Iterator[None]:
    """Where modules and factories of the user run: seeded, and what they print goes to stderr."""
    import torch

    from normscope.subject.process import random_state, reseed, set_random_state

    cpu = torch.device("cpu")
    before = random_state(cpu)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            reseed(checked_seed(seed), cpu)
            yield
    finally:
        set_random_state(before, cpu)


def loaded(settings: dict[str, Any]) -> tuple[Any, Any]:
    """The network, with its weights, and the data."""
    with interruptible():
        data = targets.data_target(settings["data"], data_dir=settings["data_dir"])
        model = targets.network_target(settings["model"], seed=settings["seed"])
        if settings["weights"] is not None:
            targets.load_weights(model, settings["weights"])
        return model, data


def subject_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Model, data, loss, batches and optimizer, as the API takes them."""
    with output.working("Loading"):
        model, data = loaded(settings)
        with interruptible():
            functions = {
                name: None if settings[name] is None else targets.function_target(settings[name])
                for name in ("loss", "loss_fn", "outputs_fn", "optimizer")
            }
    if functions["loss"] is None and functions["loss_fn"] is None:
        functions["loss"] = "cross_entropy"
    sizes = {n: settings[n] for n in ("batch_size", "num_batches") if settings[n] is not None}
    return {"model": model, "data": data, **functions, **sizes}
