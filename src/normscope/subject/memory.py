"""How many bytes a measurement may take, and how its work is divided so that it fits."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from normscope.checks import as_float
from normscope.errors import InputError, MeasurementError
from normscope.subject.batch import Batch, float_leaves
from normscope.subject.functional import ModelFunction
from normscope.subject.losses import Loss, flat

SHARE = 0.5  # of what is free, when no budget is given
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}
# Memory in units of what autograd saves for one backward pass, from the resident size of the
# networks of benchmarks/products.py: graph and tape (or graph of the gradient) that are kept
# (2.9-4.0), and the peak of a pass that is thrown away, first order (1.8-2.3) and second (3.6-4.8).
KEPT = 4.0
PASSING = 2.5
PASSING_TWICE = 5.0
PROBED = 4  # samples whose pass is measured; the rest is in proportion


def budget_bytes(memory: str | int | None, device: torch.device) -> int:
    """Bytes meant by ``"2GB"``, ``"512MiB"`` or a number; None is half of what is free."""
    if memory is None:
        return int(SHARE * _free_bytes(device))
    if isinstance(memory, int) and not isinstance(memory, bool):
        value = as_float(memory)
    else:
        match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", str(memory).lower())
        known = match is not None and match[1].count(".") <= 1 and match[2] in _UNITS
        value = float(match[1]) * _UNITS[match[2]] if match and known else -1.0
    if not 0 < value < math.inf:
        raise InputError(
            f"memory={memory!r} is no amount of memory. Write '2GB', '512MiB', a number of bytes, "
            "or None for half of what is free."
        )
    return int(value)


def readable_bytes(count: float) -> str:
    """``1.5 GB`` for 1500000000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{int(count)} bytes"


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return min(int(found[1]) * 1024, _container_limit())
    return 8 * 10**9  # systems that do not tell: a small laptop


def _container_limit() -> int:
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    try:
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # no limit ("max"), or no control group
        return 2**62


class SavedBytes:
    """Counts the bytes that autograd keeps for the backward pass while it is open.

    Example:
        >>> x = torch.ones(1000, requires_grad=True)
        >>> with SavedBytes() as saved:
        ...     y = x.exp()
        >>> saved.total >= 4000
        True
    """

    def __init__(self, *, besides: list[Tensor] | None = None) -> None:
        self._seen = {t.untyped_storage().data_ptr() for t in besides or []}
        self._held: list[Tensor] = []  # or the address of a freed one could be met again
        self._hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.total = 0

    def _pack(self, tensor: Tensor) -> Tensor:
        self.add(tensor)
        return tensor

    def add(self, tensor: Tensor) -> None:
        """Count a tensor that is kept by other means, once."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor)
            self.total += storage.nbytes()

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)


@dataclass(frozen=True)
class Piece:
    """A part of the work that is done in one pass."""

    batch: Batch
    num_bytes: float
    keep: bool = False
    checkpointed: bool = False


def pieces(
    function: ModelFunction,
    batches: list[Batch],
    *,
    loss: Loss | None,
    budget: int,
    passing: float,
) -> list[Piece]:
    """The batches, cut where the samples are independent and checkpointed where they are not."""
    limit = budget / passing  # what one pass may save
    parts = [part for batch in batches for part in _fitted(function, batch, loss, limit)]
    used = passing * max(part.num_bytes for part in parts)
    planned = []
    for part in parts:
        used += KEPT * part.num_bytes
        planned.append(replace(part, keep=used <= budget and not part.checkpointed))
    return planned


def forward_bytes(function: ModelFunction, batch: Batch, *, checkpointed: bool = False) -> float:
    """Bytes that the graph of one forward pass keeps, by measuring a few samples of it."""
    measure = _checkpointed_bytes if checkpointed else _saved_bytes
    size = batch.size
    if size > PROBED:
        try:
            return measure(function, batch.part(0, PROBED)) * size / PROBED
        except Exception:
            pass  # a model that cannot take a part: measure the whole
    return measure(function, batch)


def _saved_bytes(function: ModelFunction, batch: Batch) -> float:
    with function.open(), SavedBytes(besides=function.values) as saved:
        graph = function.with_graph(batch)
    del graph
    return float(saved.total)


def _checkpointed_bytes(function: ModelFunction, batch: Batch) -> float:
    """What is saved between the blocks, their inputs, and the largest of the blocks."""
    between = SavedBytes(besides=function.values)
    inside: list[int] = []

    def measured(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            for tensor in float_leaves((args, kwargs)):
                between.add(tensor)
            with SavedBytes(besides=[*function.values, *float_leaves((args, kwargs))]) as saved:
                out = forward(*args, **kwargs)
            inside.append(saved.total)
            return out

        return run

    with function.open(blocks=measured), between:
        graph = function.with_graph(batch)
    del graph
    return float(between.total + max(inside, default=0))


def _fitted(function: ModelFunction, batch: Batch, loss: Loss | None, limit: float) -> list[Piece]:
    batch = function.prepared(batch)
    needed = forward_bytes(function, batch)
    if needed <= limit:
        return [Piece(batch, needed)]
    chunk = int(batch.size * limit / needed)
    if chunk >= 1 and loss is not None and _separable(function, batch, loss, chunk):
        return _cut(batch, loss, chunk, needed)
    return [_checkpointed(function, batch, needed, limit)]


def _cut(batch: Batch, loss: Loss, chunk: int, needed: float) -> list[Piece]:
    parts = []
    for start in range(0, batch.size, chunk):
        part = batch.part(start, min(start + chunk, batch.size))
        if loss.summed:
            part = replace(part, weight=batch.weight)
        parts.append(Piece(part, needed * part.size / batch.size))
    return parts


def _checkpointed(function: ModelFunction, batch: Batch, needed: float, limit: float) -> Piece:
    lowest = needed
    if batch.constants is None:  # frozen layers count their calls: nothing may run twice
        lowest = min(needed, forward_bytes(function, batch, checkpointed=True))
    if lowest <= limit:
        return Piece(batch, lowest, checkpointed=True)
    raise MeasurementError(
        f"A batch of {batch.size} samples saves about {readable_bytes(lowest)} in one pass and the "
        f"memory budget leaves {readable_bytes(limit)} for it. It cannot be cut, because its "
        "samples depend on one another through batch statistics, random masks or the loss. Raise "
        f"memory=... {lowest / limit:.1f}-fold, use a smaller batch, or statistics='running' or "
        "'frozen'."
    )


def _separable(function: ModelFunction, batch: Batch, loss: Loss, chunk: int) -> bool:
    """Whether cutting changes nothing: known coupling layers, then a numerical proof."""
    half = max(1, min(chunk // 2, batch.size // 2, 8))
    if function.coupled or batch.size < 2 * half:
        return False
    try:
        return (
            not function.draws(batch.part(0, 1))  # a mask belongs to a place in the batch
            and _parts_agree(function, batch.part(0, 2 * half), half)
            and _loss_is_sum(function, batch, loss, chunk)
        )
    except (RuntimeError, ValueError, IndexError):  # a part alone is no valid input
        return False


def _parts_agree(function: ModelFunction, batch: Batch, half: int) -> bool:
    """Outputs and one J^T u of the whole equal those of its two halves."""
    whole, gradient = _outputs_and_pull(function, batch)
    parts = [
        _outputs_and_pull(function, batch.part(0, half), 0),
        _outputs_and_pull(function, batch.part(half, 2 * half), half),
    ]
    joined = [torch.cat([a, b]) for a, b in zip(parts[0][0], parts[1][0], strict=True)]
    same = [a.shape == b.shape and _close(a, b) for a, b in zip(whole, joined, strict=True)]
    return all(same) and _close(gradient, parts[0][1] + parts[1][1])


def _outputs_and_pull(
    function: ModelFunction, batch: Batch, offset: int = 0
) -> tuple[list[Tensor], Tensor]:
    with function.open():
        leaves, outputs = function.with_graph(batch)
        tensors = float_leaves(outputs)
        # A fixed weight per entry and sample, so that no symmetry hides a coupling.
        weights = [_waves(t, offset) for t in tensors]
        grads = torch.autograd.grad(
            [t for t in tensors if t.requires_grad],
            leaves,
            [w for t, w in zip(tensors, weights, strict=True) if t.requires_grad],
            allow_unused=True,
        )
    joined = function.parameters.join(grads, like=function.values[0])
    return [t.detach() for t in tensors], joined


def _waves(tensor: Tensor, offset: int) -> Tensor:
    row = tensor[0].numel() if tensor.ndim and len(tensor) else 1
    index = torch.arange(tensor.numel(), device=tensor.device) + offset * row
    return torch.sin(1.0 + 1.7 * index.to(tensor.dtype)).reshape(tensor.shape)


def _loss_is_sum(function: ModelFunction, batch: Batch, loss: Loss, chunk: int) -> bool:
    """Slopes of the loss of the parts, with their weights, equal those of the whole."""
    if not loss.custom or batch.targets is None:
        return True
    parts = [piece.batch for piece in _cut(replace(batch, weight=1.0), loss, chunk, 0.0)]
    slopes, outputs = [], []
    with function.open(), torch.no_grad():
        for part in parts:
            outputs.append(function(function.values, part))
    for part, out in zip(parts, outputs, strict=True):
        slopes.append(part.weight * loss.slope(out, function.targets(part)))
    if any(len(float_leaves(out)) != 1 for out in outputs):
        return False  # several outputs interleave: not worth the trouble, done whole
    whole = torch.cat([float_leaves(out)[0] for out in outputs])
    return _close(loss.slope(whole, function.targets(batch)), torch.cat(slopes))


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 100 * torch.finfo(a.dtype).eps ** 0.75
    return bool((flat(a) - flat(b)).norm() <= tolerance * flat(a).norm() + 1e-30)
