"""The mode of a model while it is trained, and what one sample means to batch norm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from normscope.errors import InputError
from normscope.subject.batch import Batch
from normscope.subject.interrupts import held, interruptible
from normscope.subject.objective import Objective
from normscope.subject.statistics import coupling_layers, put_in_train_mode


@contextlib.contextmanager
def kept_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """A held span in the mode of training or evaluation; each module gets its own back."""
    with held():
        modes = {module: module.training for module in model.modules()}
        try:
            if training:
                put_in_train_mode(model)
            else:
                model.eval()
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """A span without gradients after which the buffers are what they were before it."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)


def refuse_single_samples(
    model: nn.Module, objective: Objective, batch: Batch, *, where: str
) -> None:
    """Refuse a batch of one sample where a layer needs the statistics of several.

    The buffers are put back, so that nothing is left behind.
    """
    if batch.size != 1 or not (layers := coupling_layers(model)):
        return
    with held(), torch.no_grad(), kept_buffers(model):
        try:
            with interruptible():
                objective.value(model, batch.copied())
        except ValueError as error:  # torch's own, or InputError
            if "per channel" not in str(error):
                raise
            shown = ", ".join(f"{type(m).__name__} {n!r}" for n, m in list(layers.items())[:3])
            raise InputError(
                f"{where} has one sample, but {shown} normalizes by the statistics of the batch, "
                "and one sample has none. Use another batch size; fit also takes drop_last=True. "
                f"({error})"
            ) from None
