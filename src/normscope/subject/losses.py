"""Losses: their value, their slope and curvature in the outputs, and their own scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from normscope.errors import InputError, MeasurementError
from normscope.messages import kind_of
from normscope.subject.batch import float_leaves
from normscope.subject.interrupts import interruptible
from normscope.subject.roots import (
    ColumnRoot,
    DiagonalRoot,
    OutputRoot,
    label_owner,
    sample_owner,
)


class Loss(ABC):
    """A scalar function of the outputs (any nested structure) and the targets.

    Attributes:
        description: the convention in words, its scale included.
        kind: ``"cross_entropy"``, ``"squared"``, ``"bernoulli"``, ``"log_probability"`` or
            ``"other"``.
        convex: the Hessian in the outputs has no negative eigenvalue.
        summed: the loss of a batch is the sum of its samples' losses, not their mean.
        custom: nothing is known of its form, so that what is assumed of it must be tested.
    """

    description: str
    kind = "other"
    convex: bool
    summed: bool
    custom = False

    @abstractmethod
    def value(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of one batch."""

    @abstractmethod
    def check(self, outputs: Any, targets: Any) -> None:
        """Refuse outputs and targets that do not fit together (targets may be None)."""

    @abstractmethod
    def root(self, outputs: Any) -> OutputRoot | None:
        """S with S S^T = E_y[slope slope^T], the Fisher matrix of the outputs; None if unknown."""

    @abstractmethod
    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        """The same for one label per sample drawn from the model's own distribution."""

    def compared(self, outputs: Any, targets: Any) -> Any:
        """The targets in the form in which they are compared with the outputs."""
        return targets

    def share(self, outputs: Any) -> float:
        """Factor c: the loss of a batch is c times the sum of its samples' losses."""
        return 1.0 if self.summed else 1 / self.num_samples(outputs)

    @torch.enable_grad()
    def slope(self, outputs: Any, targets: Any) -> Tensor:
        """Derivative of the loss in the outputs, flat, (n,)."""
        leaves, value = _value_with_graph(self, outputs, targets)
        if not value.requires_grad:
            return torch.zeros_like(flat(outputs))
        grads = torch.autograd.grad(value, leaves, materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in grads])

    @torch.enable_grad()
    def curvature(self, outputs: Any, targets: Any, vectors: Tensor) -> Tensor:
        """Hessian of the loss in the outputs times vectors, (k, n) -> (k, n)."""
        leaves, value = _value_with_graph(self, outputs, targets)
        grads = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
        slope = torch.cat([g.reshape(-1) for g in grads])
        if not slope.requires_grad:  # linear in the outputs
            return torch.zeros_like(vectors)
        rows = []
        for vector in vectors:
            second = torch.autograd.grad(
                slope, leaves, vector, retain_graph=True, materialize_grads=True
            )
            rows.append(torch.cat([s.reshape(-1) for s in second]))
        return torch.stack(rows)

    def empirical_root(self, outputs: Any, targets: Any) -> OutputRoot:
        """S whose columns are the slopes of the samples' own losses, times sqrt(c).

        Where samples have labels, one sample is one label: a class at one position, a yes or no.
        """
        columns = self.slope(outputs, targets) / self.share(outputs) ** 0.5
        return ColumnRoot(columns, self.owner(outputs))

    def owner(self, outputs: Any) -> Tensor:
        """Which sample each entry of the flat outputs belongs to, (n,)."""
        leaves = float_leaves(outputs)
        return sample_owner([leaf.shape for leaf in leaves], leaves[0].device)

    def num_samples(self, outputs: Any) -> int:
        """Number of samples in one batch of outputs: the length of the first axis."""
        first = float_leaves(outputs)[0]
        return first.shape[0] if first.ndim else 1


class LossItself(Loss):
    """For ``loss_fn(model, batch)``: the output is the loss, and nothing is known of its inside."""

    description = "loss_fn(model, batch), its own scale"
    convex = False
    summed = False
    custom = True

    def value(self, outputs: Any, targets: Any) -> Tensor:
        return scalar(outputs)

    def check(self, outputs: Any, targets: Any) -> None:
        scalar(outputs)

    def root(self, outputs: Any) -> None:
        return None

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        raise InputError(
            "loss_fn(model, batch) hides the outputs that labels would be drawn from. Pass loss= "
            "and outputs_fn= instead."
        )


class NoLoss(LossItself):
    """Where none was given: signals can be looked at, gradients cannot."""

    description = "none"

    def value(self, outputs: Any, targets: Any) -> Tensor:
        raise InputError(
            "A loss is missing: pass loss= ('cross_entropy', 'mse', a torch loss or "
            "loss(outputs, targets)) or loss_fn=loss_fn(model, batch)."
        )

    def check(self, outputs: Any, targets: Any) -> None:
        pass


def flat(outputs: Any) -> Tensor:
    """All floating-point outputs in one vector, (n,)."""
    leaves = float_leaves(outputs)
    return leaves[0].reshape(-1) if len(leaves) == 1 else torch.cat([t.reshape(-1) for t in leaves])


def _value_with_graph(loss: Loss, outputs: Any, targets: Any) -> tuple[list[Tensor], Tensor]:
    def leaf(t: Any) -> Any:
        real = isinstance(t, Tensor) and t.is_floating_point()
        return t.detach().clone().requires_grad_() if real else t

    free = pytree.tree_map(leaf, outputs)
    return float_leaves(free), loss.value(free, targets)


class CallableLoss(Loss):
    """Any differentiable ``loss(outputs, targets)``; curvature in the outputs by autodiff."""

    custom = True

    def __init__(self, function: Callable[[Any, Any], Tensor], description: str) -> None:
        self._function = function
        self.is_module = isinstance(function, nn.Module)
        if function is functional.cross_entropy or isinstance(function, nn.CrossEntropyLoss):
            self.kind = "cross_entropy"
        elif function is functional.mse_loss:
            self.kind = "squared"
        self.description = description
        self.convex = isinstance(function, _CONVEX_MODULES)
        self.summed = getattr(function, "reduction", "mean") == "sum"
        self.ignored = getattr(function, "ignore_index", -100)

    def value(self, outputs: Any, targets: Any) -> Tensor:
        with interruptible():
            return scalar(self._function(outputs, targets))

    def check(self, outputs: Any, targets: Any) -> None:
        pass  # the loss itself is the judge of what fits

    def root(self, outputs: Any) -> None:
        return None

    def empirical_root(self, outputs: Any, targets: Any) -> OutputRoot:
        """As of the plain loss, where the function is that loss with other options."""
        leaves = float_leaves(outputs)
        share, slope = self.share(outputs), self.slope(outputs, targets)
        if len(leaves) == 1 and _is_any(self._function, _YES_OR_NO):
            share = 1.0 if self.summed else 1 / slope.numel()
            return DiagonalRoot(slope / share**0.5)
        if len(leaves) == 1 and leaves[0].ndim > 1 and _is_any(self._function, _LABELLED):
            owner, count = label_owner(leaves[0].shape, slope.device), slope.numel()
            counted = targets != self.ignored
            count = int(counted.sum()) if counted.numel() < count else count // leaves[0].shape[1]
            share = 1.0 if self.summed else 1 / max(count, 1)
            return ColumnRoot(slope / share**0.5, owner)
        return ColumnRoot(slope / share**0.5, self.owner(outputs))

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        raise InputError(
            f"kind='sampled' draws labels from the model's distribution, and {self.description} "
            "names none. Use kind='true' (generalised Gauss-Newton) or 'empirical', or "
            "loss='mse' or 'cross_entropy'."
        )


_YES_OR_NO = (nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits)
_LABELLED = (nn.CrossEntropyLoss, nn.NLLLoss, functional.cross_entropy, functional.nll_loss)
_CONVEX_MODULES = (
    nn.MSELoss,
    nn.CrossEntropyLoss,
    nn.BCEWithLogitsLoss,
    nn.NLLLoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.SoftMarginLoss,
    nn.MultiMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.KLDivLoss,
)


def _is_any(function: Any, kinds: tuple[Any, ...]) -> bool:
    return any(function is kind or type(function) is kind for kind in kinds)


def scalar(value: Any) -> Tensor:
    """The loss as a tensor without axes; anything but one number is refused."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        tensor = isinstance(value, Tensor)
        found = f"a tensor of shape {tuple(value.shape)}" if tensor else kind_of(value)
        way_out = (
            "Reduce it with .mean() over the samples" if tensor else "Return the tensor itself"
        )
        raise MeasurementError(
            f"The loss must be one number per batch, as a tensor. It returned {found}. {way_out}."
        )
    return value.reshape(())


def shown_module(module: nn.Module) -> str:
    """How a loss module is shown, such as ``MSELoss(reduction='mean')``."""
    reduction = getattr(module, "reduction", None)
    detail = f"reduction={reduction!r}" if reduction else ""
    return f"{type(module).__name__}({detail})"


def right_answers(outputs: Any, targets: Any) -> tuple[int, int]:
    """Right answers and number of answers; (0, 0) where the targets are no classes."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.ndim < 2:
        return 0, 0
    if targets.shape == outputs.shape and _one_hot(targets):
        targets = targets.argmax(1)
    chosen = outputs.argmax(1)
    if targets.is_floating_point() or targets.shape != chosen.shape:
        return 0, 0
    return int((chosen == targets).sum()), targets.numel()


def _one_hot(targets: Tensor) -> bool:
    bits = (targets == 0) | (targets == 1)
    return targets.shape[1] > 1 and bool(bits.all()) and bool((targets.sum(1) == 1).all())
