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

__all__ = ["NETWORK", "RUNNING", "TRAINED", "check_given", "subject_of", "users_code"]

NETWORK = (
    Option("model", opt.text, "resnet20, mlp:64-32-10,norm=batch, or your own: module:factory, "
           "file.py:factory", "MODEL", group="network and data", positional=True),
    Option("data", opt.text, "digits, mnist, fashion-mnist, cifar10, or your own: module:loader",
           "DATA", group="network and data"),
    Option("data_dir", opt.text, "folder of the data sets (default: NORMSCOPE_DATA)", "DIR",
           group="network and data"),
    Option("batch_size", opt.whole, "samples in a batch of a data set; a loader brings its own",
           "N", group="network and data"),
    Option("weights", opt.text, "state dict to load into the network (torch.save)", "FILE",
           group="network and data"),
    Option("loss", opt.text, "cross_entropy, mse, or your own: module:function, of (outputs, "
           "targets) or of (model, batch)", "LOSS", "cross_entropy", "network and data"),
)  # fmt: skip
TRAINED = (
    Option("optimizer", opt.text, "sgd, adam, adamw, or your own: module:function of the "
           "parameters", "NAME", "sgd", "training"),
    Option("momentum", opt.number, "of sgd", "MU", 0, "training"),
)  # fmt: skip
RUNNING = (
    Option("max_seconds", opt.number, "what does not fit is left out, and said to be", "SECONDS",
           group="run"),
    Option("device", opt.text, "where to measure, such as cuda", "DEVICE", group="run"),
    Option("seed", opt.whole, "of everything random, your own code included", "SEED", 0, "run"),
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

    from normscope.subject.random import random_state, reseed, set_random_state

    cpu = torch.device("cpu")
    before = random_state(cpu)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            reseed(checked_seed(seed), cpu)
            yield
    finally:
        set_random_state(before, cpu)


def subject_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Model, data, loss and optimizer, as the API takes them."""
    with output.working("Loading"):
        data = targets.data_target(settings["data"], data_dir=settings["data_dir"])
        model = targets.network_target(settings["model"], seed=settings["seed"])
        if settings["weights"] is not None:
            targets.load_weights(model, settings["weights"])
        loss = targets.function_target(settings["loss"])
        optimizer = targets.function_target(settings["optimizer"])
    return {"model": model, "data": data, "loss": loss, "optimizer": optimizer}
