"""The global random generators of torch, numpy and Python: seeded, compared, put back.

A forward pass (dropout) and a user's loader draw from them. A measurement and a training give
them back as they found them, and a training keeps their state in its checkpoints.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from normscope.seeds import child_seed
from normscope.subject.interrupts import close_interrupted, held

__all__ = [
    "drawn_since",
    "isolated_random",
    "kept_random",
    "random_state",
    "reseed",
    "set_random_state",
]


def reseed(seed: int, device: torch.device) -> None:
    """Restart every generator a forward pass may draw from (where they are put back later)."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        getattr(torch, device.type).manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


@contextlib.contextmanager
def kept_random(device: torch.device) -> Iterator[None]:
    """A held span: the generators are afterwards where they were before."""
    with held():
        before = _read(device)
        try:
            yield
        finally:
            close_interrupted()
            _write(before, device)


@contextlib.contextmanager
def isolated_random(seed: int, device: torch.device) -> Iterator[None]:
    """A held span: every generator starts from ``seed``, and is put back at the end."""
    with kept_random(device):
        reseed(child_seed(seed, "training"), device)
        yield


def random_state(device: torch.device) -> dict[str, Any]:
    """All states as tensors and plain numbers, so that they can be stored safely."""
    state = _read(device)
    legacy, (version, internal, spare) = state["numpy"], state["python"]
    key = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
    state["numpy"] = {**legacy, "state": {**legacy["state"], "key": key}}
    state["python"] = [version, list(internal), spare]
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what ``random_state`` read."""
    legacy, (version, internal, spare) = state["numpy"], state["python"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    numpy_state = {**legacy, "state": {**legacy["state"], "key": key}}
    _write({**state, "numpy": numpy_state, "python": (version, tuple(internal), spare)}, device)


def drawn_since(state: dict[str, Any], device: torch.device) -> bool:
    """Whether numbers were drawn since ``random_state`` was read."""
    pairs = zip(pytree.tree_leaves(state), pytree.tree_leaves(random_state(device)), strict=True)
    return not all(
        torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new for old, new in pairs
    )


def _read(device: torch.device) -> dict[str, Any]:
    """The states as each library gives its own."""
    state: dict[str, Any] = {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "python": random.getstate(),
    }
    if device.type != "cpu":
        state["device"] = getattr(torch, device.type).get_rng_state(device)
    return state


def _write(state: dict[str, Any], device: torch.device) -> None:
    torch.default_generator.set_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    if device.type != "cpu" and "device" in state:
        getattr(torch, device.type).set_rng_state(state["device"], device)
