"""Models to train in place of the user's own, which no trial may touch."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from normscope.errors import InputError, NormscopeError, out_of_memory
from normscope.messages import failure, kind_of
from normscope.subject.interrupts import held, interruptible
from normscope.subject.parameters import computed_dtype, half_precision
from normscope.subject.problem import model_device
from normscope.subject.process import isolated_random, kept_values
from normscope.subject.session import original_module, session
from normscope.subject.usable import check_usable, is_exported, usable_device

ModelOrFactory = nn.Module | Callable[..., nn.Module]


class Origin:
    """Where trials get their models from: a model, or a factory asked once per seed.

    Args:
        model: a module, or a function that returns one; if it has an argument ``seed`` it gets the
            seed of the trial, and the global generators are seeded for it in any case.
        device: where to train; None is where the model is.
    """

    def __init__(self, model: ModelOrFactory, device: torch.device | str | None) -> None:
        if isinstance(model, nn.Module) or is_exported(model):
            check_usable(model)
        elif not callable(model):
            raise InputError(
                "model must be a torch module or a function that returns one. Got "
                f"{kind_of(model)}."
            )
        self._model = model
        self._device = None if device is None else usable_device(device)
        self._made: dict[int, nn.Module] = {}

    @contextlib.contextmanager
    def fresh(self, seed: int) -> Iterator[nn.Module]:
        """A model with the untrained weights of ``seed`` that may be trained.

        It is a held span: the training itself must be marked as interruptible. Buffers and
        gradients of the user's own model come back too: a loss may run that one by mistake.
        """
        own = self._untrained(seed)
        kept = kept_gradients(own.parameters()), kept_values(own.buffers())
        with held(), kept[0], kept[1], _expendable(own) as model:
            yield model if self._device is None else model.to(self._device)

    def conditions(self, seed: int) -> dict[str, str]:
        """What differs between the model and its copies, for the settings of a result."""
        half = half_precision(self._untrained(seed))
        return {"precision": f"float32 (the model is in {half})"} if half else {}

    def _untrained(self, seed: int) -> nn.Module:
        if isinstance(self._model, nn.Module):
            return original_module(self._model)
        if seed not in self._made:
            self._made[seed] = original_module(_made(self._model, seed))
        return self._made[seed]


@contextlib.contextmanager
def kept_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """A span after which the gradients are the tensors that they were, with the same values."""
    kept = [(p, p.grad) for p in parameters]
    with kept_values(gradient for _, gradient in kept if gradient is not None):
        try:
            yield
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient


def _made(factory: Callable[..., Any], seed: int) -> nn.Module:
    with isolated_random(seed, torch.device("cpu")), interruptible():
        try:
            model = factory(seed=seed) if _takes_seed(factory) else factory()
        except Exception as error:
            if isinstance(error, NormscopeError) or out_of_memory(error):
                raise
            name = getattr(factory, "__name__", type(factory).__name__)
            raise InputError(
                f"The model factory {name} failed: {failure(error)}. It is called without "
                "arguments, or with seed= if it has one."
            ) from error
    if not isinstance(model, nn.Module):
        raise InputError(
            "The model factory must return a torch module. It returned "
            f"{kind_of(model)}: {model!r:.80}."
        )
    return model


def _takes_seed(factory: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


@contextlib.contextmanager
def _expendable(model: nn.Module) -> Iterator[nn.Module]:
    """A copy; or the model itself on other tensors in a held span, all put back at the end.

    Half precision becomes float32: small steps would be lost in it, and no measurement uses it.
    """
    twin = _copy(model)
    if twin is not None:
        if half_precision(twin):
            _exchange_tensors(twin)
        yield twin
        return
    with session(model, seed=0, device=model_device(model)):
        _exchange_tensors(model)
        yield model


def _copy(model: nn.Module) -> nn.Module | None:
    """A deep copy that shares no tensor; None if the model does not allow one."""
    try:
        twin = copy.deepcopy(model)
    except Exception:  # whatever a user's __deepcopy__ or an uncopyable attribute raises
        return None
    if not isinstance(twin, nn.Module):
        return None
    own = {t.data_ptr() for t in _tensors(model)}
    return None if any(t.numel() and t.data_ptr() in own for t in _tensors(twin)) else twin


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _exchange_tensors(model: nn.Module) -> None:
    """Put a clone, half precision as float32, in the place of every parameter and buffer.

    Shared ones stay shared.
    """
    clones: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, old in [*module._parameters.items(), *module._buffers.items()]:
            if old is None:
                continue
            if id(old) not in clones:
                dtype = computed_dtype(old.dtype)
                new = old.detach().to(dtype=dtype, copy=True)
                learnt = isinstance(old, nn.Parameter)
                clones[id(old)] = nn.Parameter(new, old.requires_grad) if learnt else new
            setattr(module, name, clones[id(old)])  # recurrent layers keep a list of their own
