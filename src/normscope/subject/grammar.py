"""Which loss a name, a torch module or a function means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.registry import near_match
from normscope.subject.likelihoods import (
    BernoulliLoss,
    CrossEntropy,
    LogProbabilityLoss,
    SquaredLoss,
)
from normscope.subject.losses import CallableLoss, Loss, shown_module

__all__ = ["as_loss"]


def as_loss(loss: str | nn.Module | Callable[[Any, Any], Tensor]) -> Loss:
    """The loss that a name, a torch loss module or a function means."""
    if isinstance(loss, str):
        if loss not in _NAMED:
            raise InputError(f"Unknown loss {loss!r}. {near_match(loss, list(_NAMED))}")
        return _NAMED[loss]()
    if isinstance(loss, nn.Module):
        return _module_loss(loss)
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        return CallableLoss(loss, f"{name}(outputs, targets), its own scale")
    raise InputError(
        f"loss must be 'mse', 'cross_entropy', a torch loss module or a function "
        f"loss(outputs, targets). Got {loss!r} instead."
    )


_NAMED: dict[str, Callable[[], Loss]] = {
    "mse": lambda: SquaredLoss(
        "mse: half the squared error summed over outputs, mean over samples", "half"
    ),
    "cross_entropy": lambda: CrossEntropy("cross_entropy: softmax, mean over samples"),
}


def _module_loss(module: nn.Module) -> Loss:
    reduction = getattr(module, "reduction", "mean")
    if reduction == "none":
        raise InputError(
            f"{type(module).__name__}(reduction='none') gives one number per sample, not a scalar. "
            "Use reduction='mean' or 'sum'."
        )
    text = f"{shown_module(module)}, its own scale"
    weighted = any(getattr(module, name, None) is not None for name in ("weight", "pos_weight"))
    plain = not weighted and getattr(module, "ignore_index", -1) < 0  # a label that may occur
    if type(module) is nn.MSELoss:
        factor = "2/C times 'mse'" if reduction == "mean" else "2T times 'mse'"
        return SquaredLoss(f"{text} ({factor})", reduction)
    if type(module) is nn.CrossEntropyLoss and plain and module.label_smoothing == 0:
        return CrossEntropy(text, reduction)
    if type(module) is nn.NLLLoss and plain:
        return LogProbabilityLoss(module)
    if type(module) is nn.BCEWithLogitsLoss and plain:
        return BernoulliLoss(module)
    return CallableLoss(module, text)
