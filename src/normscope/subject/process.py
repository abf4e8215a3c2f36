"""What torch and Python hold for the whole process: afterwards as before."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn, overrides
from torch.nn import functional
from torch.utils import _python_dispatch as dispatch

from normscope.subject.interrupts import close_interrupted, held, interruptible
from normscope.subject.loaders import loader_generators
from normscope.subject.random import kept_random

__all__ = ["kept_process", "measurement", "training"]

P = ParamSpec("P")
R = TypeVar("R")
_overrides: Any = overrides  # without types
_autograd: Any = torch._C._autograd
# What is patched while signals are watched or a network is traced.
_PATCHED = ((functional, "linear"), (nn.Module, "__call__"), (nn.Module, "__getattr__"))


@contextlib.contextmanager
def kept_process() -> Iterator[None]:
    """A held span: grad mode, autocast, modes, hooks, warning filters and patches come back.

    Marked code inside, the user's model for one, may be interrupted before it has put them back.
    """
    with held():
        grad, filters = torch.is_grad_enabled(), warnings.filters
        autocast = {kind: torch.is_autocast_enabled(kind) for kind in _device_types()}
        functions = _overrides._get_current_function_mode_stack()
        dispatches, hooks = _num_dispatch_modes(), _saved_tensors_hooks()
        patched = [(owner, name, getattr(owner, name)) for owner, name in _PATCHED]
        try:
            yield
        finally:
            close_interrupted()
            _restore_function_modes(functions)
            while _num_dispatch_modes() > dispatches:
                dispatch._pop_mode()
            while _saved_tensors_hooks() not in (hooks, None):
                _autograd._pop_saved_tensors_default_hooks()
            for owner, name, value in patched:
                if getattr(owner, name) is not value:
                    setattr(owner, name, value)
            if warnings.filters is not filters:
                warnings.filters = filters
            for kind, enabled in autocast.items():
                torch.set_autocast_enabled(kind, enabled)
            torch._C._set_grad_enabled(grad)


def training(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of what a user calls: process and random generators are afterwards as before.

    All of it may be interrupted but the spans that hold a model, see `normscope.subject.session`.
    """

    @functools.wraps(function)
    def trained(*args: P.args, **kwargs: P.kwargs) -> R:
        with kept_process(), kept_random(torch.device("cpu")), interruptible():
            return function(*args, **kwargs)

    return trained


def measurement(function: Callable[P, R]) -> Callable[P, R]:
    """As `training`; the generators of loaders come back too, and inference mode is left."""

    @functools.wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        values = (*args, *kwargs.values())
        with (
            kept_process(),
            kept_random(torch.device("cpu")),
            _kept_loaders(values),
            torch.inference_mode(False),
            interruptible(),
        ):
            return function(*args, **kwargs)

    return measured


@contextlib.contextmanager
def _kept_loaders(values: tuple[Any, ...]) -> Iterator[None]:
    generators = [generator for value in values for generator in loader_generators(value)]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        close_interrupted()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _restore_function_modes(before: list[Any]) -> None:
    now = _overrides._get_current_function_mode_stack()
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return
    for _ in now:
        _overrides._pop_mode()
    for mode in before:
        _overrides._push_mode(mode)


def _num_dispatch_modes() -> int:
    return len(dispatch._get_current_dispatch_mode_stack())


def _saved_tensors_hooks() -> Any:
    """Those that see what is saved for the backward pass, or None."""
    return _autograd._top_saved_tensors_default_hooks(True)


def _device_types() -> set[str]:
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu"} | ({accelerator.type} if accelerator is not None else set())
