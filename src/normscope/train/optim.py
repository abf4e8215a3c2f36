"""Optimizers by name, in torch's own convention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from normscope.checks import as_float
from normscope.errors import InputError
from normscope.messages import failure, kind_of
from normscope.registry import Registry

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Builder = Callable[[list[nn.Parameter], float, float, float], torch.optim.Optimizer]


def _sgd(
    parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def _adaptive(name: str, kind: Callable[..., torch.optim.Optimizer]) -> Builder:
    def build(
        parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        if momentum:
            raise InputError(
                f"momentum={momentum} belongs to sgd; optimizer={name!r} has its own averages. "
                "Leave it out, or pass optimizer=lambda p: torch.optim.Adam(p, "
                f"betas=({momentum}, 0.999))."
            )
        return kind(parameters, lr=lr, weight_decay=weight_decay)

    return build


_ADAPTIVE = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
optimizers: Registry[Builder] = Registry(
    "optimizer", {"sgd": _sgd} | {name: _adaptive(name, kind) for name, kind in _ADAPTIVE.items()}
)


def check_optimizer(optimizer: object) -> None:
    """Refuse what is no optimizer, and one that is bound to the parameters of one model."""
    if isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
        raise InputError(
            f"optimizer must be an optimizer. Got {kind_of(optimizer)}, a schedule: pass its "
            ".optimizer to examine, what_if or suggest_lr, or a name with lr=."
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise InputError(
            f"optimizer must be a name or a function of the parameters, since copies are trained. "
            f"Got {kind_of(optimizer)}, which holds the parameters of one model: pass "
            f"lambda p: torch.optim.{kind}(p, ...)."
        )
    if not isinstance(optimizer, str) and not callable(optimizer):
        raise InputError(
            f"optimizer must be a name ({', '.join(optimizers)}) or a function of the parameters "
            f"that returns a torch optimizer. Got {kind_of(optimizer)}."
        )


def build_optimizer(
    model: nn.Module,
    optimizer: str | OptimizerFactory,
    lr: float | None,
    *,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """The optimizer of the model's trainable parameters.

    ``optimizer`` is a name, or a function of the parameters that returns a torch optimizer and then
    holds its own learning rate. Momentum is torch's: v <- mu v + g, w <- w - lr v. Weight decay
    adds ``weight_decay`` times w to the gradient of every trainable parameter (adamw: to the
    step).
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise InputError(
            f"The model ({type(model).__name__}) has no trainable parameter. Set "
            "requires_grad_(True) on what should be trained."
        )
    check_optimizer(optimizer)
    if not isinstance(optimizer, str):
        return _from_factory(optimizer, trainable, lr, momentum, weight_decay)
    build = optimizers[optimizer]
    if lr is None:
        raise InputError(f"optimizer={optimizer!r} needs a learning rate: pass lr=.")
    _check("lr", lr)
    _check("momentum", momentum, below=1.0)
    _check("weight_decay", weight_decay)
    return build(trainable, float(lr), float(momentum), float(weight_decay))


def _from_factory(
    factory: OptimizerFactory,
    trainable: list[nn.Parameter],
    lr: float | None,
    momentum: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    if lr is not None or momentum or weight_decay:
        raise InputError(
            "An optimizer given as a function holds its own lr, momentum and weight decay. Leave "
            "these arguments out, or name the optimizer: 'sgd', 'adam'."
        )
    return made_by(factory, trainable)


def made_by(factory: OptimizerFactory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that a function of the parameters makes."""
    try:
        built = factory(parameters)
    except Exception as error:  # whatever a user's function raises
        name = getattr(factory, "__name__", type(factory).__name__)
        raise InputError(f"{name} cannot make an optimizer: {failure(error)}.") from error
    if not isinstance(built, torch.optim.Optimizer):
        raise InputError(
            f"optimizer must be a name or a function parameters -> torch.optim.Optimizer. It gave "
            f"a {type(built).__name__}."
        )
    return built


def _check(name: str, value: float, *, below: float = math.inf) -> None:
    if not 0 <= as_float(value) < below:
        upper = f" and below {below:g}" if math.isfinite(below) else " and finite"
        raise InputError(f"{name} must be a number from 0{upper}. Got {value!r:.40} instead.")
