"""Running a user's model without leaving a trace.

Inside ``session`` a module may be switched, patched and run; afterwards its parameters, buffers,
attributes, modes and hooks, and the global random generators, are what they were before, whether
or not something was raised in between. A signal such as Ctrl-C is answered inside marked code only,
see `normscope.subject.interrupts`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.weight_norm import WeightNorm
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint as checkpoints

from normscope.subject.interrupts import close_interrupted, held
from normscope.subject.process import attributes, kept_process, kept_random, reseed, shared

_REAL: Any = (checkpoints.CheckpointFunction, checkpoints._checkpoint_without_reentrant_generator)
_overrides: Any = overrides  # without types
_CONTAINERS = (dict, list, set, deque)
_NESTED = (*_CONTAINERS, tuple)
_PLAIN = (str, int, float, type(None))


class _Here(threading.local):
    plain = False  # whether this thread's checkpoints only call their function
    sessions = 0  # that this thread is inside


_here = _Here()


class _Reentrant:
    """In place of the reentrant form: where checkpoints are plain, just the call."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args) if _here.plain else _REAL[0].apply(function, preserve, *args)


def _around(*args: Any, **kwargs: Any) -> Generator[None, None, None]:
    """In place of what goes before and after the call in the other form: there, nothing."""
    yield from [None] if _here.plain else _REAL[1](*args, **kwargs)


# What `checkpoint` looks up when it is called.
_FORMS = {"CheckpointFunction": _Reentrant, "_checkpoint_without_reentrant_generator": _around}


@contextlib.contextmanager
def own_checkpoints(*, active: bool) -> Iterator[None]:
    """Whether ``torch.utils.checkpoint`` recomputes, or calls the function and keeps its graph.

    A checkpointed block runs again during the backward pass. A measurement keeps its graphs and
    goes through them after the model was put back, so that the block would meet the wrong mode,
    buffers and parameters; and the reentrant form sees no exchanged parameter at all. What memory
    must be saved for is decided by the plan of the measurement, which recomputes inside a session.
    Checkpoints of other threads stay as they are.
    """
    before, _here.plain = _here.plain, not active
    try:
        yield
    finally:
        _here.plain = before


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


def original_module(model: nn.Module) -> nn.Module:
    """The module itself, without ``torch.compile`` or data-parallel wrappers."""
    while True:
        if isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


@contextlib.contextmanager
def session(model: nn.Module, *, seed: int, device: torch.device) -> Iterator[None]:
    """A held span in which ``model`` may be changed and run; everything is put back at its end.

    Attention takes its mathematical path (the fused one has no second derivative), recurrent
    layers leave the fused kernels (without forward-mode derivative on the CPU, without second
    derivative in cuDNN), compiled and checkpointed parts run as written, and the random
    generators restart from ``seed``.
    """
    with held(), contextlib.ExitStack() as stack:
        stack.enter_context(kept_process())
        stack.enter_context(_restored(model))
        stack.enter_context(kept_random(device))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(own_checkpoints(active=False))
        stack.enter_context(_differentiable_kernels(model))
        stack.callback(close_interrupted)
        stack.callback(setattr, _here, "sessions", _here.sessions)
        _here.sessions += 1
        reseed(seed, device)
        yield


def in_session() -> bool:
    """Whether this thread runs a model to measure it, so that its passes are nobody's training."""
    return _here.sessions > 0


def product(method: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Decorator of an operator's products: the caller's grad mode and autocast do not matter.

    A product is a held span; signals are answered between the vectors of a stack.
    """

    @functools.wraps(method)
    def plain(operator: Any, vectors: Tensor) -> Tensor:
        kind = vectors.device.type
        with (
            kept_process(),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast(kind, enabled=False),
        ):
            return method(operator, vectors.clone() if vectors.is_inference() else vectors)

    return plain


def patch_forward(
    module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Replace ``module.forward`` by ``make(forward)`` until the session ends."""
    module.__dict__["forward"] = make(module.forward)


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    saved = [_ModuleState(module) for module in model.modules()]
    try:
        yield
    finally:
        for state in saved:
            state.restore()


class _ModuleState:
    """What one module holds: attributes, containers of any depth, loose tensors, generators."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(module.__dict__)
        held: dict[int, Any] = {}
        for name, value in self._attributes.items():
            # Registered tensors are swapped for copies before a run; loose ones are not.
            _collect(value, held, deep=name not in ("_parameters", "_buffers", "_modules"))
        self._contents = [(v, v.copy()) for v in held.values() if isinstance(v, _CONTAINERS)]
        loose = [v for v in held.values() if not isinstance(v, _NESTED)]
        self._tensors = [
            (v, v._version, v.detach().clone()) for v in loose if isinstance(v, Tensor)
        ]
        self._generators = [(v, v.get_state()) for v in loose if isinstance(v, torch.Generator)]

    def restore(self) -> None:
        live = self._module.__dict__
        for name in [name for name in live if name not in self._attributes]:
            del live[name]
        live.update(self._attributes)
        for container, content in self._contents:
            _refill(container, content)
        for tensor, version, copy in self._tensors:
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(copy)
        for generator, state in self._generators:
            generator.set_state(state)


def _collect(value: Any, found: dict[int, Any], *, deep: bool = True) -> None:
    """Add ``value`` and, if ``deep``, what its containers hold, by identity."""
    if isinstance(value, _PLAIN) or id(value) in found:  # most of what modules hold
        return
    if isinstance(value, _NESTED):
        found[id(value)] = value
        if deep and value:
            for inner in value.values() if isinstance(value, dict) else value:
                _collect(inner, found)
    elif isinstance(value, Tensor | torch.Generator) and not isinstance(value, nn.Parameter):
        found[id(value)] = value


def _refill(container: Any, content: Any) -> None:
    """Put ``content`` back into the same object: hook handles refer to it by identity."""
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


_ALWAYS = (  # for all threads
    shared(lambda: sdpa_kernel(SDPBackend.MATH)),
    shared(lambda: attributes(torch.backends.mha, _is_fastpath_enabled=False)),
    shared(lambda: attributes(checkpoints, **_FORMS)),
)
_RECURRENT = (
    shared(lambda: attributes(torch.backends.mkldnn, enabled=False)),
    shared(lambda: attributes(torch.backends.cudnn, enabled=False)),
)
_COMPILED = (shared(lambda: torch.compiler.set_stance("force_eager")),)


@contextlib.contextmanager
def _differentiable_kernels(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    recurrent = any(isinstance(m, nn.RNNBase) for m in modules)
    compiled = any(_compiled(m) for m in modules)
    with contextlib.ExitStack() as stack:
        for switch in _ALWAYS + _RECURRENT * recurrent + _COMPILED * compiled:
            stack.enter_context(switch())
        if any(_weight_normed(m) for m in modules):
            stack.enter_context(_ExplicitWeightNorm())
        for module in modules:
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = False  # a sparse gradient cannot be differentiated again
        yield


class FullPrecision(TorchFunctionMode):
    """Operations without autocast, where a model switches it on inside ``forward``.

    Rounding to bfloat16 would drown small derivatives, and types would not match.

    Attributes:
        needed: whether autocast was met.
        tried: to be set by the user of this mode, once the model has run in it.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self.needed, self.tried = kind, False, False

    def __exit__(self, *error: Any) -> None:
        # An interrupt can come while torch has taken the mode away; the session puts all back.
        if self in _overrides._get_current_function_mode_stack()[-1:]:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.is_autocast_enabled or not torch.is_autocast_enabled(self._kind):
            return func(*args, **(kwargs or {}))
        self.needed = True
        with torch.autocast(self._kind, enabled=False):
            return func(*args, **(kwargs or {}))


class _ExplicitWeightNorm(TorchFunctionMode):
    """Weight norm in elementary operations: torch's fused one has a wrong second derivative.

    (torch 2.13: the double backward of ``_weight_norm`` holds the norms constant; the Hessian it
    gives is not symmetric and tens of percent off.)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch._weight_norm:
            return func(*args, **(kwargs or {}))
        v, g, *rest = args
        return v * (g / torch.norm_except_dim(v, 2, rest[0] if rest else 0))


def _weight_normed(module: nn.Module) -> bool:
    hooks = module._forward_pre_hooks.values()
    return type(module).__name__ == "_WeightNorm" or any(isinstance(h, WeightNorm) for h in hooks)


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
