"""Forward-mode derivatives recorded once and replayed: J v without running the network again.

A forward-mode pass computes outputs and directional derivatives together. The operations that
depend on the direction are linear in it; everything else is constant. `record` runs one such
pass, keeps those operations with their constants, and `Tape.replay` runs them alone: about 0.65
of a loss gradient, where a fresh pass costs 1.1. (`torch.func.linearize` gives the same graph
but takes seconds to trace it.)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary


class UntapedError(RuntimeError):
    """The pass cannot be replayed (it overwrites what a replay would need)."""


@dataclass
class _Step:
    """One operation: its arguments are constants or slots, its results fill slots."""

    function: Callable[..., Any]
    arguments: list[Any]
    slots: dict[int, int]  # position in `arguments` -> slot
    spec: TreeSpec
    results: list[int | None]
    mutates: bool
    versions: list[tuple[Tensor, int]] = field(default_factory=list)
    last_use: list[int] = field(default_factory=list)


@functools.cache
def _load_forward_mode() -> None:
    """Torch loads its forward-mode rules at first use, with deprecation warnings of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with fwd.dual_level():
            _dual(torch.zeros(()), torch.zeros(()))


def _dual(primal: Tensor, tangent: Tensor) -> Tensor:
    dual: Tensor = fwd.make_dual(primal, tangent)  # type: ignore[no-untyped-call]
    return dual


def _unpacked(dual: Tensor) -> tuple[Tensor, Tensor | None]:
    primal, tangent = fwd.unpack_dual(dual)  # type: ignore[no-untyped-call]
    return primal, tangent


def directional(
    function: Callable[[Sequence[Tensor]], Tensor], values: Sequence[Tensor], vector: list[Tensor]
) -> Tensor:
    """J v of ``function`` at ``values`` in one forward-mode pass that stores no graph."""
    _load_forward_mode()
    with torch.no_grad(), fwd.dual_level():
        duals = [_dual(x, v) for x, v in zip(values, vector, strict=True)]
        primal, tangent = _unpacked(function(duals))
        return torch.zeros_like(primal) if tangent is None else tangent.clone()


def record(
    function: Callable[[Sequence[Tensor]], Tensor], values: Sequence[Tensor], vector: list[Tensor]
) -> tuple[Tape, Tensor]:
    """The tape of J at ``values``, and J v for the ``vector`` it was recorded with."""
    _load_forward_mode()
    with torch.no_grad(), fwd.dual_level():
        duals = [_dual(x, v) for x, v in zip(values, vector, strict=True)]
        inputs = [_unpacked(d)[1] for d in duals]
        recorder = _Recorder([t for t in inputs if t is not None])
        with recorder:
            primal, tangent = _unpacked(function(duals))
        if tangent is None:
            return Tape([], None, tuple(primal.shape)), torch.zeros_like(primal)
        return recorder.tape(tangent), tangent.clone()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that depends on the tangents, as the dispatcher executes it."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._slots = WeakTensorKeyDictionary()
        self._storages = {t.untyped_storage().data_ptr() for t in inputs}
        for slot, tensor in enumerate(inputs):
            self._slots[tensor] = slot
        self._count = len(inputs)
        self._steps: list[_Step] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping imports the compiler: a second of start-up for nothing

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, spec = tree_flatten((args, kwargs or {}))
        slots = {i: self._slots[a] for i, a in enumerate(flat) if self._known(a)}
        mutates = func._schema.is_mutable
        if slots and mutates:
            self._refuse_overwriting(func, args)
        out = func(*args, **(kwargs or {}))
        results = tree_flatten(out)[0]
        if slots and any(isinstance(r, Tensor) for r in results):
            constants = [
                (a, a._version)
                for i, a in enumerate(flat)
                if isinstance(a, Tensor) and i not in slots
            ]
            flat = [None if i in slots else a for i, a in enumerate(flat)]
            filled = [self._slot(r) if isinstance(r, Tensor) else None for r in results]
            self._steps.append(_Step(func, flat, slots, spec, filled, mutates, constants))
        return out

    def _known(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._slots

    def _slot(self, tensor: Tensor) -> int:
        if tensor not in self._slots:
            self._slots[tensor] = self._count
            self._count += 1
        return int(self._slots[tensor])

    def _refuse_overwriting(self, func: Any, args: Any) -> None:
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for value in tree_flatten(written)[0]:
            if isinstance(value, Tensor) and (
                value not in self._slots or value.untyped_storage().data_ptr() in self._storages
            ):
                raise UntapedError(
                    f"{func} writes a derivative into a tensor that is no derivative"
                )

    def tape(self, tangent: Tensor) -> Tape:
        for step in self._steps:
            if any(tensor._version != version for tensor, version in step.versions):
                raise UntapedError(f"a constant of {step.function} was overwritten afterwards")
            step.versions.clear()
        if tangent not in self._slots:
            raise UntapedError("the derivative of the outputs was made outside the dispatcher")
        return Tape(self._steps, int(self._slots[tangent]), tuple(tangent.shape))


class Tape:
    """The linear map v -> J v as a list of operations on tensors."""

    def __init__(self, steps: list[_Step], output: int | None, shape: tuple[int, ...]) -> None:
        self._output = output
        self._shape = shape
        self._steps = _pruned(steps, output)

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        """J v, for ``inputs`` = the pieces of v in the order they were recorded."""
        if self._output is None:
            return inputs[0].new_zeros(self._shape)
        slots: dict[int, Tensor] = dict(enumerate(inputs))
        for step in self._steps:
            flat = list(step.arguments)
            for position, slot in step.slots.items():
                flat[position] = slots[slot]
            args, kwargs = tree_unflatten(flat, step.spec)
            out = step.function(*args, **kwargs)
            for filled, value in zip(step.results, tree_flatten(out)[0], strict=True):
                if filled is not None:
                    slots[filled] = value
            for slot in step.last_use:
                del slots[slot]
        return slots[self._output]


def _pruned(steps: list[_Step], output: int | None) -> list[_Step]:
    """Only the steps that reach the output, each with the slots that die after it."""
    needed = {output}
    kept: list[_Step] = []
    for step in reversed(steps):
        # A step that overwrites may do so through a view: keep it whatever it returns.
        if step.mutates or any(r in needed for r in step.results if r is not None):
            touched = set(step.slots.values()) | {r for r in step.results if r is not None}
            step.last_use = sorted(touched - needed)
            needed |= touched
            kept.append(step)
    return kept[::-1]
