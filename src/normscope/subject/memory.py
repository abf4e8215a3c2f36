"""How many bytes a measurement may take, and how many a forward pass would keep."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from normscope.errors import InputError

__all__ = ["SavedBytes", "budget_bytes", "readable_bytes"]

SHARE = 0.5  # of what is free, when no budget is given
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}


def budget_bytes(memory: str | int | None, device: torch.device) -> int:
    """Bytes meant by ``"2GB"``, ``"512MiB"`` or a number; None is half of what is free."""
    if memory is None:
        return int(SHARE * _free_bytes(device))
    if isinstance(memory, int) and not isinstance(memory, bool):
        value = float(memory)
    else:
        match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", str(memory).lower())
        known = match is not None and match[1].count(".") <= 1 and match[2] in _UNITS
        value = float(match[1]) * _UNITS[match[2]] if match and known else -1.0
    if value <= 0:
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
