"""The global random generators: kept apart during a training, and part of its checkpoints.

A forward pass (dropout) and a user's loader draw from the global generators; a training seeds
them, and gives them back as it found them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normscope.seeds import child_seed

__all__ = ["isolated_random", "random_state", "set_random_state"]


@contextlib.contextmanager
def isolated_random(seed: int, device: torch.device) -> Iterator[None]:
    """Seed every global generator from ``seed``; put all of them back at the end."""
    before = random_state(device)
    try:
        start = child_seed(seed, "training")
        torch.default_generator.manual_seed(start)
        if device.type != "cpu":
            getattr(torch, device.type).manual_seed(start)
        np.random.seed(start % 2**32)  # noqa: NPY002
        random.seed(start)
        yield
    finally:
        set_random_state(before, device)


def random_state(device: torch.device) -> dict[str, Any]:
    """All states as tensors and plain numbers, so that they can be stored safely."""
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    version, internal, spare = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": {**legacy, "state": {**legacy["state"], "key": _stored(legacy["state"]["key"])}},
        "python": [version, list(internal), spare],
    }
    if device.type != "cpu":
        state["device"] = getattr(torch, device.type).get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what ``random_state`` read."""
    torch.set_rng_state(state["torch"])
    legacy = state["numpy"]
    key = legacy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**legacy, "state": {**legacy["state"], "key": key}})  # noqa: NPY002
    version, internal, spare = state["python"]
    random.setstate((version, tuple(internal), spare))
    if device.type != "cpu" and "device" in state:
        getattr(torch, device.type).set_rng_state(state["device"], device)


def _stored(key: NDArray[np.uint32]) -> torch.Tensor:
    return torch.from_numpy(key.astype(np.int64))
