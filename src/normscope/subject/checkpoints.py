"""Gradient checkpointing that a model does by itself, switched off while it is measured.

A checkpointed block runs again during the backward pass. A measurement keeps its graphs and goes
through them after the model was put back, so that the block would meet the wrong mode, buffers
and parameters; and the reentrant form sees no exchanged parameter at all. What must be saved
memory for is decided by the plan of the measurement, which recomputes inside a session.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator
from typing import Any

from torch.utils import checkpoint as checkpoints

__all__ = ["own_checkpoints", "recomputed"]

# What `checkpoint` looks up when it is called: the reentrant form, and the other.
_NAMES = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
_REAL = tuple(getattr(checkpoints, name) for name in _NAMES)


class _Plain:
    """In place of the reentrant form: just the call."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve: bool, *args: Any) -> Any:
        return function(*args)


def _plain(*_: Any, **__: Any) -> Generator[None, None, None]:
    """In place of what goes before and after the call in the other form: nothing."""
    yield


@contextlib.contextmanager
def own_checkpoints(*, active: bool) -> Iterator[None]:
    """Whether ``torch.utils.checkpoint`` recomputes, or calls the function and keeps its graph."""
    before = [getattr(checkpoints, name) for name in _NAMES]
    for name, value in zip(_NAMES, _REAL if active else (_Plain, _plain), strict=True):
        setattr(checkpoints, name, value)
    try:
        yield
    finally:
        for name, value in zip(_NAMES, before, strict=True):
            setattr(checkpoints, name, value)


def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep only the inputs; run ``forward`` again in the backward pass."""

    def inside(*args: Any, **kwargs: Any) -> Any:
        with own_checkpoints(active=False):
            return forward(*args, **kwargs)

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with own_checkpoints(active=True):
            return checkpoints.checkpoint(inside, *args, use_reentrant=False, **kwargs)

    return run
