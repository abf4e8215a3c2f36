"""Training runs of Figs 2 and 4: data, and what a run leaves; parts by load."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch

import normscope as ns
from normscope.experiments.observing import Values, parts

TESTS = 2000  # images of the test set
OPTIONS: Values = {"momentum": 0.9, "schedule": "inverse-time", "drop_last": True}


def images(data: str, samples: int, seed: int) -> tuple[Any, Any]:
    """Training and test images; ``"cifar10/2"`` means that 2 x 2 pixels are averaged."""
    name, _, factor = data.partition("/")
    shown, test = ns.load_data(name), ns.load_data(name, "test")
    made = shown.subset(min(samples, len(shown)), seed), test.subset(min(TESTS, len(test)))
    first, second = (part.downsample(int(factor or 1)) for part in made)
    return first, second


def train(model: torch.nn.Module, shown: Any, test: Any, epochs: int, **more: Any) -> Values:
    """Train and keep, for every epoch, training loss, validation loss and accuracy.

    A diverged run has infinite losses and accuracy 0 from there on.
    """
    run = ns.fit(model, shown, "cross_entropy", epochs=epochs, validation=test, **OPTIONS, **more)
    seen = [e for e in run.events if e.kind == "epoch"]
    rest = (epochs - len(seen)) if run.diverged else 0
    return {"train": [e.loss for e in seen] + rest * [float("inf")],
            "loss": [e.validation_loss for e in seen] + rest * [float("inf")],
            "accuracy": [e.validation_accuracy for e in seen] + rest * [0.0]}  # fmt: skip


def at(*keys: str) -> Callable[[Mapping[str, Any]], Any]:
    """What a run keeps under these names, one inside the other."""
    return lambda run: reduce(lambda inner, key: inner[key], keys, run)


def loss_of(model: torch.nn.Module, data: Any) -> float:
    """Cross-entropy in evaluation mode."""
    return float(ns.evaluate(model, data, "cross_entropy", batch_size=512).loss)


def by_load(groups: Mapping[float, Any], **more: Any) -> Values:
    """An observation with a part for each load alpha."""
    return parts({f"alpha={a:g}": v for a, v in groups.items()}, **more)
