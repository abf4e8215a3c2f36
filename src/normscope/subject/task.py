"""What is run on a batch: a loss of outputs and targets, or a function of model and batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.subject.batch import call_arguments
from normscope.subject.grammar import as_loss
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.losses import Loss, LossItself
from normscope.subject.stream import Stream, as_stream

__all__ = ["Task", "as_task"]

# first parameters of functions loss(outputs, targets); any other function is loss_fn(model, batch)
_OUTPUT_NAMES = ("input", "output", "logit", "pred", "y_hat", "yhat", "y_pred", "score")
_TARGET_NAMES = ("target", "label", "y_true", "truth")  # second ones that tell the same
_MODEL_NAMES = ("model", "net", "module", "self")  # first ones that leave no doubt


@dataclass(frozen=True)
class Task:
    """A loss, and how it is fed.

    Attributes:
        loss: of the outputs; with ``run`` the output is the loss itself.
        run: ``loss_fn(model, batch)``, or None if the loss takes outputs and targets.
    """

    loss: Loss
    run: Callable[[nn.Module, Any], Tensor] | None = None

    @property
    def has_outputs(self) -> bool:
        """Whether a batch is (inputs, targets), and the outputs are known."""
        return self.run is None

    def call(self, model: nn.Module, inputs: Any) -> Any:
        """The outputs of the model, or what ``loss_fn`` returns."""
        if self.run is not None:
            return self.run(model, inputs)
        args, kwargs = call_arguments(model, inputs)
        return model(*args, **kwargs)

    def stream(self, data: Any, *, dtype: torch.dtype, seed: int) -> Stream:
        """The batches of ``data`` in the form that this task takes."""
        one_hot = isinstance(self.loss, SquaredLoss)
        return as_stream(data, split=self.has_outputs, one_hot=one_hot, dtype=dtype, seed=seed)


def as_task(loss: Any) -> Task:
    """The task that ``loss`` means.

    A name, a torch loss, or a function whose parameters are called like outputs (``input``,
    ``outputs``, ``logits``, ``prediction``, ...) and targets is a loss of outputs and targets; any
    other function is ``loss_fn(model, batch)``, on batches of any form.
    """
    if isinstance(loss, str | nn.Module) or not callable(loss):
        if loss is None:
            raise InputError(
                "A loss is missing: pass 'cross_entropy', 'mse', a torch loss or "
                "loss_fn(model, batch)."
            )
        return Task(as_loss(loss))
    first, second = _parameters(loss)
    if first.startswith(_OUTPUT_NAMES) or second.startswith(_TARGET_NAMES):
        return Task(as_loss(loss))
    return Task(LossItself(), loss if first.startswith(_MODEL_NAMES) else _explained(loss, first))


def _parameters(function: Callable[..., Any]) -> tuple[str, str]:
    """Names of the first two parameters, empty where there are none."""
    try:
        names = [name.lower() for name in inspect.signature(function).parameters]
    except (TypeError, ValueError):  # some built-in functions have no signature
        return "input", "target"
    first, second, *_ = [*names, "", ""]
    return first, second


def _explained(function: Callable[..., Any], first: str) -> Callable[..., Any]:
    """The same function; where it cannot take a model, the error says why it was given one."""

    @functools.wraps(function)
    def run(model: nn.Module, batch: Any) -> Any:
        try:
            return function(model, batch)
        except (TypeError, AttributeError) as error:
            raise InputError(
                f"{type(error).__name__}: {error}. The loss was taken as loss_fn(model, batch), "
                f"because its first parameter is called {first!r}: call the parameters outputs and "
                "targets if it is a loss of these."
            ) from error

    return run
