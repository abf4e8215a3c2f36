"""One batch: what the model takes and what the loss compares with, of any nested structure."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.errors import InputError, MeasurementError, NormscopeError, out_of_memory
from normscope.messages import kind_of

MANY = 6  # tensors of a batch that a message names


@dataclass(frozen=True)
class Batch:
    """One batch: what the model takes, what the loss compares with, and its share of the mean.

    ``constants`` are the frozen statistics of batch-norm layers, one list per layer name. ``found``
    is the seed with which a function of the user's took the targets out of the batch; they are not
    cut with it: the function finds those of a part.
    """

    inputs: Any
    targets: Any = None
    weight: float = 1.0
    constants: dict[str, list[tuple[Tensor, ...]]] | None = None
    found: int | None = None

    @property
    def size(self) -> int:
        """Length of the first axis of the first input tensor; 0 if there is none."""
        for leaf in pytree.tree_leaves(self.inputs):
            if isinstance(leaf, Tensor) and leaf.ndim:
                return leaf.shape[0]
        return 0

    def mapped(self, change: Callable[[Tensor], Tensor], *, sampled: bool = False) -> Batch:
        """The same with other tensors; ``sampled`` only those with one row per sample."""
        size = self.size

        def changed(leaf: Any) -> Any:
            wanted = isinstance(leaf, Tensor) and (
                not sampled or (leaf.ndim > 0 and leaf.shape[0] == size)
            )
            return change(leaf) if wanted else leaf

        inputs, targets = pytree.tree_map(changed, (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def part(self, start: int, stop: int) -> Batch:
        """The samples from ``start`` to ``stop``, with their share of the weight."""
        size = self.size
        share = self.weight * (min(stop, size) - start) / size
        return replace(self._cut().mapped(lambda t: t[start:stop], sampled=True), weight=share)

    def rows(self, index: Tensor) -> Batch:
        """Some samples, by position."""
        return self._cut().mapped(lambda t: t[index.to(t.device)], sampled=True)

    def _cut(self) -> Batch:
        return self if self.found is None else replace(self, targets=None, found=None)

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return self.mapped(lambda t: t.to(device))

    def copied(self) -> Batch:
        """The same on tensors of its own: a layer that works in place may write into them."""
        return self.mapped(Tensor.clone)


def form_of(batch: Batch) -> str:
    """The tensors of a batch in words: kind and number of axes, whatever their sizes."""
    return _in_words(batch, lambda t: f"{'float' if t.is_floating_point() else t.dtype} {t.ndim}-d")


def shapes_of(batch: Batch) -> str:
    """Shapes of a batch's tensors, without the samples' axis."""
    return _in_words(batch, lambda t: str(tuple(t.shape[1:])))


def _in_words(batch: Batch, say: Callable[[Tensor], str]) -> str:
    leaves = pytree.tree_leaves((batch.inputs, batch.targets))
    return ", ".join(say(t).removeprefix("torch.") for t in leaves if isinstance(t, Tensor))


def joined(batches: list[Batch]) -> Batch:
    """The samples of several batches as one."""
    trees = [pytree.tree_map(_named, (b.inputs, b.targets), is_leaf=_is_words) for b in batches]
    leaves = [pytree.tree_leaves(tree) for tree in trees]
    try:
        together = [_together(same, batches) for same in zip(*leaves, strict=True)]
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"The batches cannot be joined to one population: {error}. Their samples must be "
            "tensors of one shape, with the samples on the first axis."
        ) from None
    inputs, targets = pytree.tree_unflatten(together, pytree.tree_structure(trees[0]))
    return Batch(inputs, targets)


def _is_words(tree: Any) -> bool:
    return isinstance(tree, list) and all(isinstance(value, str) for value in tree)


def _named(leaf: Any) -> Any:
    """Names of samples belong to no population."""
    return None if _is_words(leaf) else leaf


def _together(same: tuple[Any, ...], batches: list[Batch]) -> Any:
    """One leaf of every batch; what has no row per sample is taken from the first."""
    sizes = [len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else 0 for leaf in same]
    sampled = sizes == [batch.size for batch in batches]
    return torch.cat(same) if sampled else same[0]


def plain(tree: Any) -> Any:
    """The same structure of dicts, lists, tuples and tensors: any mapping becomes a dict."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(plain(value) for value in tree)
    if type(tree).__bases__ == (tuple,) and hasattr(tree, "_fields"):  # a named tuple
        return type(tree)(*(plain(value) for value in tree))
    return _from_numpy(tree) if isinstance(tree, np.ndarray) else tree


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of an array of any byte order and strides."""
    if array.dtype.kind not in "biufc":
        raise InputError(
            f"The data holds an array of type {array.dtype}. Make numbers of it: one number per "
            "class, tokens for text."
        )
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return torch.from_numpy(native.reshape(array.shape))  # an array without axes stays one


def checked_batch(
    item: Any, index: int, *, pairs: bool, dtype: torch.dtype | None = None, fresh: bool = False
) -> Batch:
    """A copy of one item of a loader, checked; ``index`` is for the error message.

    Args:
        item: (inputs, targets) or inputs; without ``pairs`` one thing for the user's function.
        index: which one it is.
        pairs: whether it is split into inputs and targets.
        dtype: the floating-point type of the model: numpy's default is not torch's.
        fresh: it is a copy, and known to be finite.
    """
    inputs, targets = _inputs_and_targets(item) if pairs else (item, None)

    def own(tensor: Tensor) -> Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(wanted, copy=not fresh)

    batch = Batch(inputs, targets).mapped(own)
    if not fresh:
        check_finite(batch.inputs, f"the inputs of batch {index}")
        check_finite(batch.targets, f"the targets of batch {index}")
    if pairs and batch.size == 0:
        raise InputError(_empty(batch.inputs, index))
    if pairs and (isinstance(targets, int | float) or getattr(targets, "ndim", 1) == 0):
        raise InputError(
            f"Batch {index} looks like one sample: its target is a single number. Pass the samples "
            "as a torch Dataset, or DataLoader(samples, batch_size=...)."
        )
    return batch


def _empty(inputs: Any, index: int) -> str:
    leaves = pytree.tree_leaves(inputs)
    shapes = [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)]
    if shapes:
        return f"Batch {index} is empty: its inputs have shape {shapes[0]}. Drop it."
    return (
        f"The inputs of batch {index} are not tensors: there is {kind_of((leaves or [inputs])[0])} "
        "in them. Make tensors of them, in a transform of the data set or a collate_fn of the "
        "loader."
    )


def _inputs_and_targets(item: Any) -> tuple[Any, Any]:
    if isinstance(item, tuple | list):
        if len(item) == 2:
            return item[0], item[1]
        if len(item) == 1:
            return item[0], None
        raise InputError(
            f"A batch must be (inputs, targets) or inputs alone. Got {len(item)} items: write "
            "several inputs as ((first, second), targets), or pass outputs_fn(model, batch) or "
            "loss_fn(model, batch), which take batches of any form."
        )
    return item, None


def check_finite(tree: Any, where: str) -> None:
    """Refuse NaN and infinity, with their place, and tensors that cannot be looked at."""
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, Tensor) and (leaf.is_meta or leaf.layout != torch.strided):
            what, way = ("has no values", "put it on a device")
            if not leaf.is_meta:
                what, way = (f"is of layout {leaf.layout}", "use .to_dense()")
            raise InputError(f"A tensor in {where} {what}: {way}.")
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            continue
        if bool(torch.isfinite(leaf.sum())):  # one pass without a table of flags
            continue
        name = pytree.keystr(path)
        bad = leaf.isnan() if "mask" in name else ~leaf.isfinite()  # masks hold -inf on purpose
        if bad.any():
            first = tuple(int(i) for i in bad.nonzero()[0])
            raise InputError(
                f"{where}{name} hold {leaf[first].item()} at index {first} ({int(bad.sum())} of "
                f"{leaf.numel()} values are not finite). One such value makes every result NaN. "
                "Remove or impute these samples."
            )


@contextlib.contextmanager
def readable_failures(model: nn.Module, batch: Batch, where: str) -> Iterator[None]:
    """Turn what a user's model raises into an error that says ``where``, and the way out."""
    try:
        yield
    except Exception as error:
        if isinstance(error, NormscopeError) or out_of_memory(error):
            raise
        said = failed_on(error, model, batch.inputs, batch.targets)
        if "more than 1 value per channel" in str(error):
            said = (
                f"{type(error).__name__}: {error}. Batch norm has no statistics of a single "
                "sample: use larger batches, leave a last batch of one out (drop_last=True of a "
                "loader or of fit), or measure with statistics='running'."
            )
        raise MeasurementError(f"The model cannot be run {where}: {said}") from error


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
    first = (str(error).strip().splitlines() or [""])[0]  # torch goes on with all signatures
    shown = ", ".join(said[:MANY]) + (", ..." if said[MANY:] else "")
    given = f"{shown or 'no tensors'}; its parameters are {' and '.join(own)}"
    text = f"{type(error).__name__}: {first.rstrip('.')}. It was given {given}."
    return f"{text} {_way_out(inputs, first)}"


_KNOWN = {  # words of an error -> the way out
    "SyncBatchNorm expected": "Synchronized batch norm needs a GPU here: use nn.BatchNorm instead.",
    "required positional argument": "It takes several inputs: write ((first, second), targets).",
}


def _way_out(inputs: Any, error: str) -> str:
    if known := [way for words, way in _KNOWN.items() if words in error]:
        return known[0]
    if isinstance(inputs, dict):
        return (
            "A dict is passed as keywords, or as it is if the model takes no such keywords; "
            "otherwise pass outputs_fn(model, batch) -> (outputs, targets) beside loss=, or "
            "loss_fn(model, batch)."
        )
    return "Give it data of the shape and type that the model expects."


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
