"""Watching one model run in this thread: which modules, and which torch functions they call.

Forward hooks say which module is running, a ``TorchFunctionMode`` which function is called, also by
the inside of attention. Nothing of torch is exchanged, and other threads are not seen.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn, overrides
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from normscope.subject.graph.record import Key
from normscope.subject.interrupts import held

_overrides: Any = overrides  # without types


class Watching(ABC):
    """A context in which the passes of ``model`` are watched; its hooks are gone afterwards.

    Attributes:
        model: the module that will run, by itself or inside a loss.
        names: module -> its name.
        query: what attention is asked for, while ``multi_head_attention_forward`` runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            self.names.setdefault(module, name)
        self.query: Tensor | None = None
        self._handles: list[RemovableHandle] = []
        self._stack: list[nn.Module] = []
        self._turns: list[Counter[str]] = []
        self._visits: Counter[str] = Counter()
        self._mode = _Functions(self)
        self._listening = False
        self._thread = 0

    @abstractmethod
    def entering_module(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A module is about to run; what is returned replaces its arguments unless None."""

    @abstractmethod
    def leaving_module(self, module: nn.Module, args: Any, out: Any) -> Any:
        """A module has run and gave ``out``, None if it raised an error; returns as above."""

    @abstractmethod
    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function."""

    def __enter__(self) -> Any:
        self._thread = threading.get_ident()
        with _held():
            for module in self.names:
                if isinstance(module, torch.jit.ScriptModule):
                    continue  # takes no hooks
                self._handles.append(
                    module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True)
                )
                self._handles.append(
                    module.register_forward_hook(self._leave, with_kwargs=True, always_call=True)
                )
        return self

    def __exit__(self, *error: object) -> None:
        with held():
            self.stop_listening()
            while self._handles:
                self._handles.pop().remove()

    @property
    def inside(self) -> nn.Module | None:
        """The innermost module that runs."""
        return self._stack[-1] if self._stack else None

    def begin_pass(self) -> None:
        """Count calls from the beginning again."""
        self._visits.clear()

    def key(self, function: str) -> Key:
        """Where this call of ``function`` stands: the same in every pass that comes by here."""
        path = self.names[self._stack[-1]] if self._stack else ""
        turns = self._turns[-1] if self._turns else Counter[str]()
        turns[function] += 1
        return path, self._visits[path], function, turns[function]

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return None
        if not self._stack:
            self.listen()
        self._stack.append(module)
        self._turns.append(Counter())
        self._visits[self.names[module]] += 1
        with unseen():
            return self.entering_module(module, args, kwargs)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        if threading.get_ident() != self._thread or module not in self._stack:
            return None
        while self._stack.pop() is not module:  # those that raised an error
            self._turns.pop()
        self._turns.pop()
        with unseen():
            new = self.leaving_module(module, args, out)
        if not self._stack:
            self.stop_listening()
        return new

    def listen(self) -> None:
        """Functions are seen from now on."""
        with _held():
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._listening = True

    def stop_listening(self) -> None:
        """Functions are no longer seen."""
        with _held():
            if self._listening:
                self._listening = False
                self._stack.clear()
                self._turns.clear()
                _take_off(self._mode)


class _Functions(TorchFunctionMode):
    def __init__(self, watching: Watching) -> None:
        super().__init__()
        self._watching = watching

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, watching = kwargs or {}, self._watching
        if func is not functional.multi_head_attention_forward:
            return watching.run(func, args, kwargs)
        watching.query = args[0] if args else kwargs["query"]
        try:
            self.__enter__()  # type: ignore[no-untyped-call] # what it calls is of interest, too
            return _opened(func)(*args, **kwargs)
        finally:
            _take_off(self)
            watching.query = None


@functools.cache
def _opened(func: Any) -> Callable[..., Any]:
    """The same function, which does not hand itself over to modes as a whole."""
    spaces = {**func.__globals__, "has_torch_function": lambda *_: False}
    opened = types.FunctionType(func.__code__, spaces, func.__name__, func.__defaults__)
    opened.__kwdefaults__ = func.__kwdefaults__
    return opened


def _held() -> contextlib.AbstractContextManager[None]:
    """Hooks of a compiled model are compiled too, where no handler can be exchanged."""
    return contextlib.nullcontext() if torch.compiler.is_compiling() else held()


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """A watcher's own calls are not seen; an interrupt comes when others are seen again."""
    with _held(), torch._C.DisableTorchFunction():
        yield


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
