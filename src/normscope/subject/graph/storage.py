"""Who wrote what into which memory: how operations are joined, views and writes in place included.

Needs private names of torch: a storage's number, and a weak reference to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

Region = tuple[int, tuple[int, ...], tuple[int, ...]]  # offset, shape, strides


@dataclass(slots=True)
class _Memory:
    held: Any  # keeps the storage's number from being used again, not its memory
    exact: dict[Region, int] = field(default_factory=dict)
    writes: list[tuple[int, int, int, Region]] = field(default_factory=list)  # node, from, to


class Storages:
    """Which node made each tensor."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}

    def _memory(self, tensor: Tensor) -> _Memory | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor without storage
            return None
        key = storage._cdata
        if key not in self._memories:
            self._memories[key] = _Memory(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        return self._memories[key]

    def made(self, tensor: Tensor, node: int, *, view: bool = False) -> None:
        """``tensor`` is the work of ``node``, which wrote it unless it is a view."""
        memory = self._memory(tensor)
        if memory is None:
            return
        region = _region(tensor)
        memory.exact[region] = node
        if not view:
            memory.writes.append((node, *_span(tensor), region))

    def makers(self, tensor: Tensor) -> tuple[int, ...]:
        """The nodes that made the values of ``tensor``; none if they came from elsewhere."""
        memory = self._memory(tensor)
        if memory is None or not (memory.exact or memory.writes):
            return ()
        region, (low, high) = _region(tensor), _span(tensor)
        exact = memory.exact.get(region)
        found = [] if exact is None else [exact]
        for node, start, end, other in reversed(memory.writes):
            if exact is not None and node <= exact:
                break
            if start < high and low < end and not _apart(region, other):
                found.append(node)
                if exact is None and start <= low and high <= end:
                    break  # everything older is hidden
        return tuple(dict.fromkeys(found)) or (memory.writes[-1][0],)


def _region(tensor: Tensor) -> Region:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _span(tensor: Tensor) -> tuple[int, int]:
    """First and last byte."""
    if not tensor.numel():
        return 0, 0
    size = tensor.element_size()
    low = int(tensor.storage_offset()) * size
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (steps + 1) * size


def _apart(a: Region, b: Region) -> bool:
    """Whether two views with the same strides, such as chunks, have no element in common."""
    if a[2] != b[2]:
        return False
    (low, first, strides), (high, second, _) = (a, b) if a[0] <= b[0] else (b, a)
    rest, outer, apart = high - low, None, False
    axes = sorted((s, m, n) for s, m, n in zip(strides, first, second, strict=True) if s > 0)
    for stride, m, n in reversed(axes):
        steps, rest = divmod(rest, stride)
        if outer is not None and (steps + n) * stride > outer:
            return False  # it runs over into the next row
        apart |= steps >= m
        outer = stride
    return apart and rest == 0
