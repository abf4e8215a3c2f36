"""Losses that are likelihoods: the model's own distribution of labels is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.subject.batch import float_leaves
from normscope.subject.losses import Loss, flat, scalar, shown_module
from normscope.subject.roots import (
    ColumnRoot,
    DiagonalRoot,
    OutputRoot,
    SoftmaxRoot,
    label_owner,
)

OF_DICTS = (
    "For batches that are dicts: loss_fn=lambda model, batch: model(**batch).loss, or "
    "outputs_fn=lambda model, batch: (model(**batch).logits, batch['labels'])."
)


class SquaredLoss(Loss):
    """scale x 1/2 x sum over outputs, mean over samples; outputs and targets of one structure.

    Class labels become rows with a single 1.
    """

    kind = "squared"
    convex = True

    def __init__(self, description: str, reduction: str) -> None:
        self.description = description
        self._reduction = reduction
        self.summed = reduction == "sum"
        self.is_half_mean = reduction == "half"  # the papers' scale: F = J^T J / T

    def _curvature_scale(self, outputs: Any) -> float:
        """The loss is this number times 1/2 |outputs - targets|^2."""
        if self._reduction == "half":
            return 1 / self.num_samples(outputs)
        return 2.0 if self._reduction == "sum" else 2 / flat(outputs).numel()

    def value(self, outputs: Any, targets: Any) -> Tensor:
        pairs = zip(float_leaves(outputs), self.compared(outputs, targets), strict=True)
        squares = torch.stack([(f - y.to(f)).square().sum() for f, y in pairs]).sum()
        return 0.5 * self._curvature_scale(outputs) * squares

    def check(self, outputs: Any, targets: Any) -> None:
        if targets is None:
            return
        found = [tuple(t.shape) for t in float_leaves(outputs)]
        given = [tuple(t.shape) for t in self.compared(outputs, targets)]
        if len(found) == len(given):
            for f, y in zip(float_leaves(outputs), _target_tensors(targets), strict=True):
                if _are_labels(y, f):
                    _check_range(y, f.shape[1])
        if found != given:
            raise InputError(
                f"The outputs have shape {_shown(found)}, the targets {_shown(given)}; the squared "
                "loss compares them number by number (nothing is broadcast; class labels are "
                "integers of shape (samples,), for several outputs). Reshape the targets, such as "
                "targets[:, None], or the outputs."
            )

    def compared(self, outputs: Any, targets: Any) -> list[Tensor]:
        given = _target_tensors(targets)
        found = float_leaves(outputs)
        if len(found) != len(given):
            return given
        return [
            _one_hot(y, f) if _are_labels(y, f) else y for y, f in zip(given, found, strict=True)
        ]

    def root(self, outputs: Any) -> OutputRoot:
        scale = self._curvature_scale(outputs)
        return DiagonalRoot(torch.full_like(flat(outputs), scale**0.5))

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        noise = _normal(outputs, generator)
        return ColumnRoot(noise * self._curvature_scale(outputs) ** 0.5, self.owner(outputs))


class CrossEntropy(Loss):
    """Softmax cross-entropy over axis 1; one sample is one label (positions count)."""

    kind = "cross_entropy"
    convex = True

    def __init__(self, description: str, reduction: str = "mean") -> None:
        self.description = description
        self._reduction = reduction
        self.summed = reduction == "sum"

    def value(self, outputs: Any, targets: Any) -> Tensor:
        logits = _one_tensor(outputs, "cross_entropy")
        return functional.cross_entropy(logits, _labels(targets, logits), reduction=self._reduction)

    def check(self, outputs: Any, targets: Any) -> None:
        logits = _one_tensor(outputs, "cross_entropy")
        if logits.ndim < 2:
            raise InputError(
                f"Cross-entropy needs one score per class, (samples, classes). The model gives "
                f"shape {tuple(logits.shape)}. For one score per sample use "
                "loss=torch.nn.BCEWithLogitsLoss()."
            )
        if logits.shape[1] == 1:
            raise InputError(
                f"Cross-entropy over one class is 0 whatever the model does. The model gives shape "
                f"{tuple(logits.shape)}: for numbers use loss='mse', for yes or no "
                "loss=torch.nn.BCEWithLogitsLoss()."
            )
        if targets is not None:
            _check_labels(targets, logits)

    def root(self, outputs: Any) -> OutputRoot:
        logits = _one_tensor(outputs, "cross_entropy")
        return SoftmaxRoot(logits.softmax(1), self.share(outputs))

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        logits = _one_tensor(outputs, "cross_entropy")
        p = logits.softmax(1)
        columns = (p - _one_hot_draw(p, generator)) * self.share(outputs) ** 0.5
        return ColumnRoot(columns.reshape(-1), self.owner(outputs))

    def owner(self, outputs: Any) -> Tensor:
        logits = _one_tensor(outputs, "cross_entropy")
        return label_owner(logits.shape, logits.device)

    def num_samples(self, outputs: Any) -> int:
        logits = _one_tensor(outputs, "cross_entropy")
        return logits.numel() // max(logits.shape[1], 1)


class BernoulliLoss(Loss):
    """``nn.BCEWithLogitsLoss`` without weights: independent yes/no outputs."""

    kind = "bernoulli"
    convex = True

    def __init__(self, module: nn.BCEWithLogitsLoss) -> None:
        self._module = module
        self.summed = module.reduction == "sum"
        self.description = f"{shown_module(module)}, its own scale"

    def value(self, outputs: Any, targets: Any) -> Tensor:
        scores = _one_tensor(outputs, "bce")
        return scalar(self._module(scores, targets.to(scores)))

    def check(self, outputs: Any, targets: Any) -> None:
        _one_tensor(outputs, "bce")

    def _scale(self, outputs: Any) -> float:
        return 1.0 if self._module.reduction == "sum" else 1 / flat(outputs).numel()

    def root(self, outputs: Any) -> OutputRoot:
        p = flat(outputs).sigmoid()
        return DiagonalRoot((p * (1 - p) * self._scale(outputs)).sqrt())

    def empirical_root(self, outputs: Any, targets: Any) -> OutputRoot:
        return DiagonalRoot(self.slope(outputs, targets) / self._scale(outputs) ** 0.5)

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        p = flat(outputs).sigmoid()
        uniform = torch.from_numpy(generator.random(p.shape))
        drawn = (uniform.to(p.device) < p.double()).to(p)
        return ColumnRoot((p - drawn) * self._scale(outputs) ** 0.5, self.owner(outputs))


class LogProbabilityLoss(Loss):
    """``nn.NLLLoss`` without options, on outputs that are log-probabilities over axis 1."""

    kind = "log_probability"
    convex = True

    def __init__(self, module: nn.NLLLoss) -> None:
        self._module = module
        self.summed = module.reduction == "sum"
        self.description = f"{shown_module(module)}, its own scale"
        self._softmax = CrossEntropy(self.description, module.reduction)

    def value(self, outputs: Any, targets: Any) -> Tensor:
        found = _one_tensor(outputs, "NLLLoss")
        return scalar(self._module(found, _labels(targets, found)))

    def check(self, outputs: Any, targets: Any) -> None:
        self._softmax.check(outputs, targets)

    def root(self, outputs: Any) -> OutputRoot:
        # The slope for label y is -e_y, so its second moment is diag(p).
        return DiagonalRoot((flat(outputs).exp() * self.share(outputs)).sqrt())

    def sampled_root(self, outputs: Any, generator: np.random.Generator) -> OutputRoot:
        p = _one_tensor(outputs, "NLLLoss").exp()
        columns = -_one_hot_draw(p, generator) * self.share(outputs) ** 0.5
        return ColumnRoot(columns.reshape(-1), self.owner(outputs))

    def owner(self, outputs: Any) -> Tensor:
        return self._softmax.owner(outputs)

    def num_samples(self, outputs: Any) -> int:
        return self._softmax.num_samples(outputs)


def _one_tensor(outputs: Any, name: str) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    leaves = float_leaves(outputs)
    if len(leaves) == 1:
        return leaves[0]
    raise InputError(
        f"loss={name!r} takes one output tensor, but the model gives {len(leaves)} "
        f"({type(outputs).__name__}). Pick one: loss=lambda outputs, targets: ... for batches of "
        f"(inputs, targets). {OF_DICTS}"
    )


def _target_tensors(targets: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(targets) if isinstance(t, Tensor)]


def _are_labels(targets: Tensor, outputs: Tensor) -> bool:
    """Whether they are classes, not numbers to be hit."""
    several = outputs.ndim > 1 and outputs.shape[1] > 1
    shape = (*outputs.shape[:1], *outputs.shape[2:])
    return several and not targets.is_floating_point() and tuple(targets.shape) == shape


def _one_hot(labels: Tensor, outputs: Tensor) -> Tensor:
    """Rows with a single 1, in the shape and type of the outputs."""
    classes = torch.arange(outputs.shape[1], device=labels.device)
    return (labels.unsqueeze(1) == classes.view(-1, *[1] * (labels.ndim - 1))).to(outputs)


def _labels(targets: Tensor, logits: Tensor) -> Tensor:
    return targets.to(logits.dtype) if targets.is_floating_point() else targets.long()


def _check_labels(targets: Any, logits: Tensor) -> None:
    classes = logits.shape[1]
    labels = (logits.shape[0], *logits.shape[2:])
    if not isinstance(targets, Tensor):
        raise InputError(f"Cross-entropy takes a tensor of labels. Got {type(targets).__name__}.")
    if tuple(targets.shape) == tuple(logits.shape) and targets.is_floating_point():
        _check_probabilities(targets)
        return
    if tuple(targets.shape) != labels or targets.is_floating_point():
        raise InputError(
            f"Outputs of shape {tuple(logits.shape)} need integer labels of shape {labels} or "
            f"probabilities of shape {tuple(logits.shape)}. Got {targets.dtype} of shape "
            f"{tuple(targets.shape)}. {_way_out(targets, logits)}"
        )
    _check_range(targets, classes)


def _way_out(targets: Tensor, logits: Tensor) -> str:
    if logits.ndim > 2 and tuple(targets.shape) == tuple(logits.shape[:-1]):
        return (
            "Classes belong on the second axis: let outputs_fn return outputs.transpose(1, -1), or "
            "outputs and targets with their positions flattened."
        )
    return "For numbers to be hit use loss='mse' (--loss mse)."


def _check_range(labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"The labels run from {low} to {high}, but the model has {classes} outputs, so labels "
            f"must lie in 0..{classes - 1}. Check the last layer or the label encoding; with "
            "ignored labels pass loss=torch.nn.functional.cross_entropy."
        )


def _check_probabilities(targets: Tensor) -> None:
    total = targets.double().sum(1)
    if float(targets.min()) >= 0 and bool((total - 1).abs().max() < 1e-2):
        return
    raise InputError(
        f"Targets of the shape of the outputs must be probabilities under cross-entropy: at least "
        f"0, with sum 1 over the classes. They go from {float(targets.min()):.3g} to "
        f"{float(targets.max()):.3g}, with sums from {float(total.min()):.3g} to "
        f"{float(total.max()):.3g}. For numbers use loss='mse'."
    )


def _normal(outputs: Any, generator: np.random.Generator) -> Tensor:
    """Standard normal numbers laid out as the flat outputs, drawn sample by sample."""
    leaves = float_leaves(outputs)
    rows = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    count = rows.pop() if len(rows) == 1 else 0
    if not count:
        return torch.from_numpy(generator.standard_normal(flat(outputs).numel())).to(leaves[0])
    widths = [leaf.numel() // count for leaf in leaves]
    noise = torch.from_numpy(generator.standard_normal((count, sum(widths))))
    return torch.cat([part.reshape(-1) for part in noise.split_with_sizes(widths, dim=1)]).to(
        leaves[0]
    )


def _one_hot_draw(p: Tensor, generator: np.random.Generator) -> Tensor:
    """One class per sample drawn from probabilities over axis 1, one-hot, shape of ``p``."""
    table = p.movedim(1, -1)
    edges = table.double().cumsum(-1)
    uniform = torch.from_numpy(generator.random(table.shape[:-1])).to(p.device)
    labels = (uniform[..., None] * edges[..., -1:] > edges).sum(-1)
    labels = labels.clamp(max=p.shape[1] - 1)
    return functional.one_hot(labels, p.shape[1]).to(p).movedim(-1, 1)


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return str(shapes[0]) if len(shapes) == 1 else str(shapes)
