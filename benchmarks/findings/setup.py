"""What a set-up is: a network as someone trains it, healthy or with one defect."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

__all__ = ["LOSSES", "Parts", "Setup", "collected", "loss_of", "plain_updates"]

LOSSES: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "bce": functional.binary_cross_entropy_with_logits,
}


@dataclass
class Parts:
    """One set-up, made anew for every use.

    Attributes:
        model: as its author would hand it over.
        data: a DataLoader or a list of batches.
        loss: a name, a torch loss, or ``loss(outputs, targets)``; None if ``loss_fn`` is given.
        loss_fn: ``loss_fn(model, batch)``, where the author's loop needs it.
        optimizer: a torch optimizer on the model (or not, if that is the defect).
        eval_data: held-out batches, prepared as the author prepares them.
        score: ``score(model) -> float``, higher is better, in evaluation mode on held-out data:
            what the author wants in the end.
        train: how the author goes on; by default plain updates over the data.
    """

    model: Any
    data: Any
    optimizer: Any
    loss: Any = None
    loss_fn: Any = None
    eval_data: Any = None
    score: Callable[[Any], float] | None = None
    train: Callable[[Parts], None] | None = None


@dataclass(frozen=True)
class Setup:
    """A named set-up.

    Attributes:
        name: short, such as ``"cnn-batchnorm-sgd"``.
        family: mlp, cnn, resnet, transformer, lstm, autoencoder, regression, two-heads or
            fine-tuning.
        make: ``make(seed) -> Parts``.
        defect: one plain sentence; empty if healthy.
        words: regular expressions (case is ignored), any of which in a finding's title or advice
            means that the defect is named. Written before any tool is run on it.
        twin: the healthy set-up that this one was made from.
        updates: with how many updates the harm is shown; 0 if nothing is trained any more.
    """

    name: str
    family: str
    make: Callable[[int], Parts]
    defect: str = ""
    words: tuple[str, ...] = ()
    twin: str = ""
    updates: int = 150


def collected(modules: Iterable[str]) -> dict[str, tuple[str, Setup]]:
    """All set-ups of these modules: module and set-up by name."""
    found: dict[str, tuple[str, Setup]] = {}
    for module in modules:
        for setup in importlib.import_module(module).SETUPS:
            if setup.name in found:
                raise ValueError(f"Two set-ups are called {setup.name!r}: rename one of them.")
            found[setup.name] = module, setup
    for _, setup in found.values():
        if setup.defect and (setup.twin not in found or not setup.words):
            raise ValueError(f"{setup.name!r} is broken: it needs words, and a twin that exists.")
        if setup.twin and found[setup.twin][1].defect:
            raise ValueError(f"The twin of {setup.name!r} must be healthy.")
    return found


def loss_of(parts: Parts, batch: Any) -> Tensor:
    """The loss of one batch, as the author's loop computes it."""
    if parts.loss_fn is not None:
        return parts.loss_fn(parts.model, batch)
    inputs, targets = batch
    return LOSSES.get(parts.loss, parts.loss)(parts.model(inputs), targets)


def plain_updates(parts: Parts, updates: int) -> list[float]:
    """Train over the data for so many updates, as most training loops do; the losses."""
    losses: list[float] = []
    while len(losses) < updates:
        for batch in parts.data:
            parts.optimizer.zero_grad()
            loss = loss_of(parts, batch)
            loss.backward()
            parts.optimizer.step()
            losses.append(float(loss.detach()))
            if len(losses) == updates:
                break
    return losses
