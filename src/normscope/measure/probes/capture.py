"""Watching the signals of a network as it runs: the only place that adds hooks.

Functions are seen through a ``TorchFunctionMode``, so that ``F.relu`` counts like ``nn.ReLU`` and
``F.linear`` like ``nn.Linear``; forward hooks say which module is running. Nothing is kept: a
watcher gets each signal, and each gradient, at the moment it exists.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from normscope.measure.probes._operations import (
    ACTIVATIONS,
    CONVOLUTIONS,
    NORMS,
    conv_geometry,
    is_norm,
    is_rectifying_clamp,
    norm_axis,
)
from normscope.measure.probes.sites import ACTIVATION, CONV, LINEAR, NORM, Site
from normscope.subject.interrupts import held, interruptible
from normscope.subject.tracing import on_shortcut

_overrides: Any = overrides  # without types


class Watcher(ABC):
    """What is told about every signal, in forward order; ``x`` and ``out`` must not be changed."""

    @abstractmethod
    def entering(self, site: Site, x: Tensor) -> None:
        """``x`` is about to go into the operation (which may overwrite it)."""

    @abstractmethod
    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """The operation gave ``out``; ``x`` is overwritten if it works in place."""

    def calling(self, capture: Capture) -> None:  # noqa: B027 - most have no use for it
        """The model itself, not a part of it, is about to run."""

    def returned(self, out: Any) -> None:  # noqa: B027
        """The model itself has run and gave ``out``; None if it raised an error."""


class Capture:
    """A context in which every pass of ``model`` is watched; its hooks are gone afterwards.

    Args:
        model: the module that will run, by itself or inside a loss.
        watcher: is told of every signal.

    Attributes:
        inputs: what the model was given last.
        outputs: what it returned.
        reached: names of the modules that have run.

    Example:
        >>> import torch
        >>> class Printer(Watcher):
        ...     def entering(self, site, x): ...
        ...     def leaving(self, site, x, out):
        ...         print(site.layer, site.kind, site.name, tuple(out.shape))
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> with Capture(net, Printer()):
        ...     _ = net(torch.ones(5, 3))
        1 linear 0 (5, 4)
        1 activation 1 (5, 4)
        2 linear 2 (5, 2)
    """

    def __init__(self, model: nn.Module, watcher: Watcher) -> None:
        self._model = model
        self._watcher = watcher
        self._names = {module: name for name, module in model.named_modules()}
        self._handles: list[RemovableHandle] = []
        self._stack: list[nn.Module] = []
        self._mode = _Functions(self)
        self._listening = False
        self.inputs: Any = None
        self.outputs: Any = None
        self.reached: set[str] = set()

    def __enter__(self) -> Capture:
        self.begin_pass()
        with held():
            for module in self._names:
                self._handles.append(
                    module.register_forward_pre_hook(self._entering_module, with_kwargs=True)
                )
                self._handles.append(
                    module.register_forward_hook(
                        self._leaving_module, with_kwargs=True, always_call=True
                    )
                )
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _remove(self) -> None:
        with held():
            self._stop_listening()
            while self._handles:
                self._handles.pop().remove()

    # ---- modules: which one is running

    def _entering_module(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._stack:
            if module is self._model:
                self.inputs = kwargs or (args[0] if len(args) == 1 else args)
                self._watcher.calling(self)
            self._listen()
        self._stack.append(module)
        self.reached.add(self._names[module])
        if is_norm(module) and isinstance(x := _first_tensor(args, kwargs), Tensor):
            site = self._site(self._names[module], NORM, type(module).__name__, norm_axis(module))
            self._open_norms.append((module, site, x))
            self._watcher.entering(site, x)

    def _leaving_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if self._open_norms and self._open_norms[-1][0] is module:
            _, site, x = self._open_norms.pop()
            if isinstance(out, Tensor):
                self._notice(site, x, out)
        if self._stack and self._stack[-1] is module:
            self._stack.pop()
        if not self._stack:
            self._stop_listening()
        if module is self._model:
            self.outputs = out
            if not self._stack:
                self._watcher.returned(out)

    def begin_pass(self) -> None:
        """Count layers and uses from the beginning again, and look up the parameters anew."""
        self._uses: Counter[str] = Counter()
        self._layer = 0
        self._open_norms: list[tuple[nn.Module, Site, Tensor]] = []
        self._axes: dict[tuple[int, ...], int] = {}
        named = self._model.named_parameters(remove_duplicate=True)
        self._weights = {id(p): name for name, p in named}
        self._storages = {
            p.untyped_storage().data_ptr(): name
            for name, p in self._model.named_parameters()
            if p.untyped_storage().nbytes()
        }

    def _listen(self) -> None:
        with _held():
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._listening = True

    def _stop_listening(self) -> None:
        with _held():
            if self._listening:
                self._listening = False
                _take_off(self._mode)

    # ---- functions: what is computed

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function and tell the watcher if it is one of those watched."""
        if self._open_norms:  # the inside of a norm layer is its own affair
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self._projected(func, args, kwargs)
        if func is functional.linear:
            return self._weighted(LINEAR, "linear", func, args, kwargs)
        if func in CONVOLUTIONS:
            return self._weighted(CONV, CONVOLUTIONS[func], func, args, kwargs)
        if func in NORMS:
            operation, axis = NORMS[func]
            return self._plain(NORM, operation, axis, func, args, kwargs)
        if func in ACTIVATIONS:
            return self._plain(ACTIVATION, ACTIVATIONS[func], None, func, args, kwargs)
        if is_rectifying_clamp(func, args, kwargs):
            return self._plain(ACTIVATION, "relu", None, func, args, kwargs)
        return func(*args, **kwargs)

    def _projected(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Attention calls ``linear`` where no function mode sees it: let it call ours.

        Inside, signals are (positions, samples, channels), or flat in this order.
        """
        query = args[0] if args else kwargs["query"]
        original = functional.linear
        samples = query.shape[1] if query.ndim == 3 else 1

        def watched(*args: Any, **kwargs: Any) -> Any:
            return self._weighted(LINEAR, "linear", original, args, kwargs, samples=samples)

        with _held():
            functional.linear = watched
            try:
                with _interruptible():
                    return func(*args, **kwargs)
            finally:
                functional.linear = original

    def _weighted(
        self,
        kind: str,
        operation: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        samples: int | None = None,
    ) -> Any:
        x = args[0] if args else kwargs["input"]
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        name, parameter = self._weight_name(weight, operation)
        self._layer += 0 if on_shortcut(name) else 1
        site = Site(
            name=self._numbered(name),
            kind=kind,
            operation=operation,
            layer=self._layer,
            weight=parameter,
            axis=1 if kind == CONV else -1,
            geometry=conv_geometry(func, weight, args, kwargs) if kind == CONV else None,
            samples=samples,
        )
        self._watcher.entering(site, x)
        out = func(*args, **kwargs)
        self._notice(site, x, out)
        return out

    def _plain(
        self,
        kind: str,
        operation: str,
        axis: int | None,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        x = args[0] if args else kwargs["input"]
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return func(*args, **kwargs)
        inside = self._stack[-1] if self._stack else self._model
        prefix = self._names.get(inside, "")
        alone = kind == ACTIVATION and not any(True for _ in inside.children())
        # nn.ReLU is called by its own name; F.relu by that of the module that calls it.
        own = alone and type(inside).__module__.startswith("torch.nn.")
        name = prefix if own and prefix else f"{prefix}.{operation}".lstrip(".")
        site = self._site(name, kind, operation, self._axis(x) if axis is None else axis)
        self._watcher.entering(site, x)
        out = func(*args, **kwargs)
        self._notice(site, x, out)
        return out

    def _notice(self, site: Site, x: Tensor, out: Tensor) -> None:
        if site.kind != ACTIVATION:
            self._axes[tuple(out.shape)] = site.axis
        self._watcher.leaving(site, x, out)

    def _axis(self, x: Tensor) -> int:
        """The channel axis of a signal without weights: that of the layer that made its shape."""
        if x.ndim <= 2:
            return -1
        return self._axes.get(tuple(x.shape), 1 if x.ndim > 3 else -1)

    def _site(self, name: str, kind: str, operation: str, axis: int) -> Site:
        return Site(
            name=self._numbered(name or operation),
            kind=kind,
            operation=operation,
            layer=self._layer,
            axis=axis,
        )

    def _numbered(self, name: str) -> str:
        self._uses[name] += 1
        return name if self._uses[name] == 1 else f"{name}#{self._uses[name]}"

    def _weight_name(self, weight: Tensor, operation: str) -> tuple[str, str | None]:
        """How a weighted layer is called, and its parameter if the weight is one."""
        parameter = self._weights.get(id(weight))
        view = parameter or self._storages.get(weight.untyped_storage().data_ptr())
        if view is not None:
            return _without_weight(view) or operation, parameter or view
        inside = self._names.get(self._stack[-1], "") if self._stack else ""
        return inside or operation, None


class _Functions(TorchFunctionMode):
    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self._capture = capture

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self._capture.run(func, args, kwargs or {})


def _held() -> contextlib.AbstractContextManager[None]:
    """Hooks of a compiled model are compiled too, where no handler can be exchanged."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else held()


def _interruptible() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if torch.compiler.is_compiling() else interruptible()


def _take_off(mode: TorchFunctionMode) -> None:
    """Take one mode off the stack, from below others that came later.

    It may be missing: an interrupt can come where torch takes a mode away for the time of a call.
    """
    if torch.compiler.is_compiling():
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return
    there = _overrides._get_current_function_mode_stack()
    if not any(other is mode for other in there):
        return
    above = []
    while (top := _overrides._pop_mode()) is not mode:
        above.append(top)
    for other in reversed(above):
        _overrides._push_mode(other)


def _without_weight(name: str) -> str:
    """``"attention.in_proj_weight"`` -> ``"attention.in_proj"``, ``"fc.weight"`` -> ``"fc"``."""
    for ending in (".weight", "_weight", "weight"):
        if name.endswith(ending):
            return name[: -len(ending)]
    return name


def _first_tensor(args: Any, kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    return values[0] if values else None
