"""What torch and Python hold for the whole process: afterwards as before.

The global random generators are among it: a forward pass (dropout) and a user's loader draw from
them. A measurement and a training give them back as they found them, and a training keeps their
state in its checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn, overrides
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from normscope.seeds import child_seed
from normscope.subject.interrupts import close_interrupted, held, interruptible

P = ParamSpec("P")
R = TypeVar("R")
_overrides: Any = overrides  # without types
_autograd: Any = torch._C._autograd
_functions: Any = torch._C


def shared(change: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[None]]:  # fmt: skip  # noqa: E501
    """Decorator of a change of the process: the first one in makes it, the last one out undoes it.

    Spans of several threads may overlap in any order. Each must be held.
    """
    lock, inside, made = threading.RLock(), 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def counted() -> Iterator[None]:
        nonlocal inside
        with lock:
            if not inside:
                made.enter_context(change())
            inside += 1
        try:
            yield
        finally:
            with lock:
                inside -= 1
                if not inside:
                    made.close()

    return counted


@contextlib.contextmanager
def attributes(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes, and put them back."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def reseed(seed: int, device: torch.device) -> None:
    """Restart every generator a forward pass may draw from (where they are put back later)."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        getattr(torch, device.type).manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


@shared
@contextlib.contextmanager
def _kept_default() -> Iterator[None]:
    """As the first thread found them, once the last one of those that overlap is done."""
    before = read_generators(torch.device("cpu"))
    yield
    write_generators(before, torch.device("cpu"))


@contextlib.contextmanager
def kept_random(device: torch.device) -> Iterator[None]:
    """A held span: the generators are afterwards where they were before."""
    with held(), _kept_default():
        before = read_generators(device)
        try:
            yield
        finally:
            close_interrupted()
            write_generators(before, device)


@contextlib.contextmanager
def isolated_random(seed: int, device: torch.device) -> Iterator[None]:
    """A held span: every generator starts from ``seed``, and is put back at the end."""
    with kept_random(device):
        reseed(child_seed(seed, "training"), device)
        yield


def random_state(device: torch.device) -> dict[str, Any]:
    """All states as tensors and plain numbers, so that they can be stored safely."""
    state = read_generators(device)
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
    write_generators(
        {**state, "numpy": numpy_state, "python": (version, tuple(internal), spare)}, device
    )


def drawn_since(state: dict[str, Any], device: torch.device) -> bool:
    """Whether numbers were drawn since ``random_state`` was read."""
    pairs = zip(pytree.tree_leaves(state), pytree.tree_leaves(random_state(device)), strict=True)
    return not all(
        torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new for old, new in pairs
    )


def read_generators(device: torch.device) -> dict[str, Any]:
    """The states as each library gives its own."""
    state: dict[str, Any] = {
        "torch": torch.default_generator.get_state(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "python": random.getstate(),
    }
    if device.type != "cpu":
        state["device"] = getattr(torch, device.type).get_rng_state(device)
    return state


def write_generators(state: dict[str, Any], device: torch.device) -> None:
    """Put the states of the random generators back."""
    torch.default_generator.set_state(state["torch"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])
    if device.type != "cpu" and "device" in state:
        getattr(torch, device.type).set_rng_state(state["device"], device)


_kept_filters = shared(lambda: attributes(warnings, filters=warnings.filters))


@contextlib.contextmanager
def kept_process() -> Iterator[None]:
    """A held span: grad mode, autocast, modes, hooks and warning filters come back.

    Marked code inside, the user's model for one, may be interrupted before it has put them back.
    """
    with held(), _kept_filters():
        grad = torch.is_grad_enabled()
        autocast = {kind: torch.is_autocast_enabled(kind) for kind in _device_types()}
        functions = _overrides._get_current_function_mode_stack()
        seen = _functions._get_torch_function_state()
        dispatches, hooks = _num_dispatch_modes(), _saved_tensors_hooks()
        try:
            yield
        finally:
            close_interrupted()
            _functions._set_torch_function_state(seen)
            _restore_function_modes(functions)
            while _num_dispatch_modes() > dispatches:
                dispatch._pop_mode()
            while _saved_tensors_hooks() not in (hooks, None):
                _autograd._pop_saved_tensors_default_hooks()
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
    """As `training`; inference mode is left, and loaders and losses are as before too.

    That is the generators of loaders, and the buffers of modules beside the model, which comes
    first: a loss may count or average in its own.
    """

    @functools.wraps(function)
    def measured(*args: P.args, **kwargs: P.kwargs) -> R:
        values = (*args, *kwargs.values())
        others = (*args[1:], *(value for name, value in kwargs.items() if name != "model"))
        with (
            kept_process(),
            kept_random(torch.device("cpu")),
            _kept_loaders(values),
            torch.inference_mode(False),
            _kept_buffers(others),
            interruptible(),
        ):
            return function(*args, **kwargs)

    return measured


@contextlib.contextmanager
def _kept_buffers(values: Iterable[Any]) -> Iterator[None]:
    owners = [value.__self__ if inspect.ismethod(value) else value for value in values]
    parts = [part for one in owners if isinstance(one, nn.Module) for part in one.modules()]
    kept = [(part._buffers, dict(part._buffers)) for part in parts]
    with kept_values(t for _, buffers in kept for t in buffers.values() if t is not None):
        try:
            yield
        finally:
            for now, before in kept:
                for name, buffer in before.items():  # those of scripted modules are no dict
                    now[name] = buffer


@contextlib.contextmanager
def kept_values(tensors: Iterable[Tensor]) -> Iterator[None]:
    """A span after which the tensors have the values that they had."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                if not _same(tensor, value):
                    tensor.copy_(value)


def _same(a: Tensor, b: Tensor) -> bool:
    """By value, NaN equal to NaN: kernels of batch norm do not count their changes.

    Sparse tensors cannot be compared.
    """
    return a.layout == torch.strided and bool(((a == b) | (a.isnan() & b.isnan())).all())


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


def loader_generators(loader: Any) -> list[torch.Generator]:
    """Generators of a DataLoader and its samplers, each once; none of anything else."""
    if not isinstance(loader, DataLoader):
        return []
    batches = loader.batch_sampler
    owners = [loader, loader.sampler, batches, getattr(batches, "sampler", None)]
    found = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(g): g for g in found if isinstance(g, torch.Generator)}
    return list(unique.values())


@contextlib.contextmanager
def kept_generators(generators: Iterable[torch.Generator]) -> Iterator[None]:
    """They are afterwards where they were: a look at the data does not change what comes next."""
    kept = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        for generator, state in kept:
            generator.set_state(state)
