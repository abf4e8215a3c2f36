"""What is minimized: the loss of a model on a batch; and the model's place and mode."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.subject.batch import call_arguments
from normscope.subject.grammar import as_loss
from normscope.subject.interrupts import held
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.losses import Loss, scalar
from normscope.subject.statistics import coupling_layers, put_in_train_mode

__all__ = [
    "FunctionObjective",
    "LossObjective",
    "Objective",
    "as_objective",
    "floating_dtype",
    "kept_mode",
    "model_device",
    "moved",
    "refuse_single_samples",
]

LossFunction = str | nn.Module | Callable[[Any, Any], Tensor]


class Objective(ABC):
    """A scalar to minimize.

    Attributes:
        description: the convention in words.
        one_hot: the targets of labelled data should be rows with a single 1.
    """

    description: str
    one_hot: bool

    @abstractmethod
    def value(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of ``model`` on ``batch``."""


class LossObjective(Objective):
    """A loss of outputs and targets; a batch is a pair (inputs, targets)."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.description = loss.description
        self.one_hot = isinstance(loss, SquaredLoss)

    def value(self, model: nn.Module, batch: Any) -> Tensor:
        return self.outputs_and_value(model, batch)[1]

    def outputs_and_value(self, model: nn.Module, batch: Any) -> tuple[Any, Tensor]:
        """The outputs too."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise InputError(
                f"A batch must be a pair (inputs, targets). Got a {type(batch).__name__}"
                f"{f' of length {len(batch)}' if isinstance(batch, tuple | list) else ''}. For "
                "batches of another form pass loss_fn=lambda model, batch: ..."
            )
        inputs, targets = batch
        args, kwargs = call_arguments(model, inputs)
        outputs = model(*args, **kwargs)
        self.loss.check(outputs, targets)
        return outputs, self.loss.value(outputs, targets)


class FunctionObjective(Objective):
    """``loss_fn(model, batch)`` of the user, on batches of any form."""

    one_hot = False

    def __init__(self, function: Callable[[nn.Module, Any], Tensor]) -> None:
        self._function = function
        self.description = f"{getattr(function, '__qualname__', 'loss_fn')}(model, batch)"

    def value(self, model: nn.Module, batch: Any) -> Tensor:
        return scalar(self._function(model, batch))


def as_objective(
    loss: LossFunction | None, loss_fn: Callable[[nn.Module, Any], Tensor] | None
) -> Objective:
    """The objective that exactly one of the two arguments names."""
    if (loss is None) == (loss_fn is None):
        raise InputError(
            "Pass either loss (a name, a torch loss or loss(outputs, targets)) or "
            f"loss_fn(model, batch). Got {'neither' if loss is None else 'both'}."
        )
    if loss is not None:
        return LossObjective(as_loss(loss))
    assert loss_fn is not None
    return FunctionObjective(loss_fn)


def model_device(model: nn.Module) -> torch.device:
    """The device of the first parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def floating_dtype(model: nn.Module) -> torch.dtype | None:
    """The floating-point type of the parameters; None if there is none, or several."""
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return found.pop() if len(found) == 1 else None


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on ``device``."""
    return pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, batch)


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


def refuse_single_samples(model: nn.Module, batch: Any, *, where: str) -> None:
    """Refuse a batch of one sample where a layer needs the statistics of several.

    The model runs on copies of its buffers, so that nothing is left behind.
    """
    leaves = [t for t in pytree.tree_leaves(batch) if isinstance(t, Tensor) and t.ndim]
    if not leaves or len(leaves[0]) != 1 or not (layers := coupling_layers(model)):
        return
    copies = {name: buffer.clone() for name, buffer in model.named_buffers()}
    inputs = batch[0] if isinstance(batch, tuple | list) else batch
    args, kwargs = call_arguments(model, inputs)
    try:
        with held(), torch.no_grad():
            torch.func.functional_call(model, copies, args, kwargs)
    except ValueError as error:  # torch's own, or InputError
        if "per channel" not in str(error):
            raise
        shown = ", ".join(f"{type(m).__name__} {n!r}" for n, m in list(layers.items())[:3])
        raise InputError(
            f"{where} has one sample, but {shown} normalizes by the statistics of the batch, and "
            f"one sample has none. Use another batch size, or drop_last=True. ({error})"
        ) from None
