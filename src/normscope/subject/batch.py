"""Materialised data: inputs and targets of any nested structure."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError
from normscope.subject.loaders import items_of

__all__ = [
    "NO_BATCHES",
    "Batch",
    "call_arguments",
    "failed_on",
    "float_leaves",
    "materialized",
    "owned_batch",
]


MANY = 6  # tensors of a batch that a message names
NO_BATCHES = (
    "There are no batches: the loader is empty or was already used up (a generator gives its "
    "batches once). Pass a list of (inputs, targets), or a fresh DataLoader."
)


@dataclass(frozen=True)
class Batch:
    """One batch: what the model takes, what the loss compares with, and its share of the mean.

    ``constants`` are the frozen statistics of batch-norm layers, one list per layer name.
    """

    inputs: Any
    targets: Any = None
    weight: float = 1.0
    constants: dict[str, list[tuple[Tensor, ...]]] | None = None

    @property
    def size(self) -> int:
        """Length of the first axis of the first input tensor; 0 if there is none."""
        for leaf in pytree.tree_leaves(self.inputs):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return leaf.shape[0]
        return 0

    def part(self, start: int, stop: int) -> Batch:
        """The samples from ``start`` to ``stop``, with their share of the weight."""
        size = self.size

        def cut(leaf: Any) -> Any:
            whole = isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == size
            return leaf[start:stop] if whole else leaf

        share = self.weight * (min(stop, size) - start) / size
        inputs = pytree.tree_map(cut, self.inputs)
        targets = pytree.tree_map(cut, self.targets)
        return replace(self, inputs=inputs, targets=targets, weight=share)


def materialized(pairs: Iterable[Any], *, split: bool) -> list[Batch]:
    """Own copies of all batches; with ``split`` each item is (inputs, targets) or inputs.

    Tensors are copied, so that neither a loader that reuses its memory nor an in-place layer can
    change what is measured.
    """
    if isinstance(pairs, Tensor) or not isinstance(pairs, Iterable):
        raise InputError(
            "batches must be a DataLoader or a list, one (inputs, targets) per batch. Got a "
            f"{type(pairs).__name__}; for one batch write Risk(model, inputs, targets, ...)."
        )
    source = enumerate(items_of(pairs))
    batches = [owned_batch(item, index, split=split) for index, item in source]
    if not batches:
        raise InputError(NO_BATCHES)
    share = 1 / len(batches)
    return [replace(batch, weight=share) for batch in batches]


def owned_batch(item: Any, index: int, *, split: bool) -> Batch:
    """An own copy of one item of a loader, checked; ``index`` is for the error message."""
    inputs, targets = _inputs_and_targets(item) if split else (item, None)
    batch = Batch(_own(inputs), _own(targets))
    _check_finite(batch.inputs, f"the inputs of batch {index}")
    _check_finite(batch.targets, f"the targets of batch {index}")
    if split and batch.size == 0:
        raise InputError(f"Batch {index} is empty: {_shapes(batch.inputs)}. Drop it.")
    return batch


def _inputs_and_targets(item: Any) -> tuple[Any, Any]:
    if isinstance(item, tuple | list):
        if len(item) == 2:
            return item[0], item[1]
        if len(item) == 1:
            return item[0], None
        raise InputError(
            f"A batch must be (inputs, targets) or inputs alone. Got {len(item)} items: write "
            "several inputs as ((first, second), targets), or use Risk.from_loss_fn."
        )
    return item, None


def _own(tree: Any) -> Any:
    def copy(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return torch.from_numpy(leaf.copy())
        return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(copy, tree)


def _check_finite(tree: Any, where: str) -> None:
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        name = pytree.keystr(path)
        bad = leaf.isnan() if "mask" in name else ~leaf.isfinite()  # masks hold -inf on purpose
        if bad.any():
            first = tuple(int(i) for i in bad.nonzero()[0])
            raise InputError(
                f"{where}{name} hold {leaf[first].item()} at index {first} ({int(bad.sum())} of "
                f"{leaf.numel()} values are not finite). One such value makes every product NaN. "
                "Remove or impute these samples."
            )


def _shapes(tree: Any) -> str:
    shapes = [tuple(t.shape) for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]
    return f"tensors of shape {shapes}" if shapes else "no tensors in it"


def failed_on(error: Exception, model: nn.Module, inputs: Any, targets: Any = None) -> str:
    """What a model said of what it was given, and the shapes and types of that."""
    parts = [("inputs", inputs), ("targets", targets)] if targets is not None else [("", inputs)]
    trees = [(name, pytree.tree_flatten_with_path(tree)[0]) for name, tree in parts]
    said = [
        f"{name}{pytree.keystr(path)} {_name(leaf.dtype)} {tuple(leaf.shape)}".strip()
        for name, leaves in trees
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    ]
    own = sorted({_name(p.dtype) for p in model.parameters()})
    shown = ", ".join(said[:MANY]) + (", ..." if said[MANY:] else "")
    return (
        f"{type(error).__name__}: {str(error).strip().rstrip('.')}. It was given "
        f"{shown or 'no tensors'}; its parameters are {' and '.join(own)}. Give it data of the "
        "shape and type that it was made for."
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def call_arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the model takes ``inputs``: a tuple as several arguments, a dict as keywords.

    Where the signature does not allow that, the whole structure is the one argument.
    """
    signature = inspect.signature(model.forward)
    args: tuple[Any, ...] = (inputs,)
    kwargs: dict[str, Any] = {}
    if isinstance(inputs, dict):
        args, kwargs = (), inputs
    elif isinstance(inputs, tuple | list):
        args = tuple(inputs)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return (inputs,), {}
    return args, kwargs


def float_leaves(tree: Any) -> list[Tensor]:
    """The floating-point tensors of a nested structure, in order."""
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
