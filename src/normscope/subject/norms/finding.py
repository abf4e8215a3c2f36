"""Which modules of a model are norms: the table first, then what they do."""

from __future__ import annotations

from collections.abc import Hashable
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normscope.errors import InputError
from normscope.subject.norms.behaviour import tensors, tried
from normscope.subject.norms.card import NormCard
from normscope.subject.norms.known import card_of_kind, known_card
from normscope.subject.session import original_module

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, type, FunctionType)
MOST = 200  # tests kept for one class
# equal layers are tested once: class -> (attributes, shapes, ...) -> what was found
_TESTED: WeakKeyDictionary[type, dict[Hashable, tuple[bool, NormCard | None]]] = WeakKeyDictionary()


def norm_card(module: nn.Module, example: Tensor | None = None) -> NormCard | None:
    """What ``module`` does as a normalization layer; None if it is none.

    Args:
        module: one layer; a container of a norm is none itself.
        example: an input it was given, for layers that take no others.
    """
    usable = example is not None and example.is_floating_point() and example.ndim > 1
    return _Search(example if usable else None).look(original_module(module))


def norm_cards(model: nn.Module, *, strict: bool = False) -> dict[str, NormCard]:
    """Every normalization layer by name: the innermost modules that normalize.

    Args:
        model: any module.
        strict: refuse a model with a layer that is called a norm and could not be tried out.
    """
    search = _Search()
    search.look(model)
    if strict and search.strange:
        name, layer = next(iter(search.strange.items()))
        kind = type(layer).__name__
        raise InputError(
            f"Whether {kind} {name!r} normalizes is not known: it could not be run on inputs of "
            f"its size. Say what it is: normscope.register_norm({kind}, 'rms'), or None for no "
            "norm."
        )
    return search.found


class _Search:
    """Walks through a model from the innermost modules outwards."""

    def __init__(self, example: Tensor | None = None) -> None:
        self.found: dict[str, NormCard] = {}
        self.strange: dict[str, nn.Module] = {}
        self._example = example
        self._closed: dict[nn.Module, bool] = {}  # holds a norm or a matrix, and so is no norm

    def look(self, module: nn.Module, name: str = "") -> NormCard | None:
        """The card of ``module``, after those of the modules in it."""
        if module in self._closed:
            return None
        known, card = known_card(module)
        closed = card is not None
        if not known and hasattr(module, "batch_statistics") and hasattr(module, "normalize"):
            closed, card = True, _by_methods(module)
        if not closed:
            closed = self._look_inside(module, name)
        if not (closed or known or type(module).__module__.startswith("torch.nn.")):
            card = self._tried(module, name)
        if card is not None:
            self.found[name] = card
        self._closed[module] = closed or known or card is not None
        return card

    def _look_inside(self, module: nn.Module, name: str) -> bool:
        closed = any(map(_is_matrix, (*module._parameters.values(), *module._buffers.values())))
        for leaf, child in module.named_children():
            if leaf == "parametrizations":  # norms of weights
                closed = True
                continue
            self.look(child, f"{name}.{leaf}".lstrip("."))
            closed |= self._closed[child]
        return closed

    def _tried(self, module: nn.Module, name: str) -> NormCard | None:
        called, vectors = "norm" in type(module).__name__.lower(), tensors(module)
        ran, card = _tested(module) if called or vectors else (True, None)
        if card is None and self._example is not None and not name:
            ran, card = _tested(module, self._example)
        if called and vectors and not ran:
            self.strange[name] = module
        return card


def _is_matrix(tensor: Tensor | None) -> bool:
    if tensor is None:
        return False
    return is_lazy(tensor) or sum(length > 1 for length in tensor.shape) > 1


def _by_methods(layer: nn.Module) -> NormCard:
    """Of a layer that says by its methods that it normalizes over the batch."""
    card = _tested(layer)[1]
    if card is None or not card.over_batch:
        card = card_of_kind(layer, "batch")
    return card


def _tested(layer: nn.Module, example: Tensor | None = None) -> tuple[bool, NormCard | None]:
    try:
        key = (
            None if example is None else example.shape,
            *[_key(m, m is layer) for m in layer.modules()],
        )
        hash(key)
    except TypeError:  # attributes that cannot be compared
        return tried(layer, example)
    before = _TESTED.setdefault(type(layer), {})
    if key in before:
        return before[key]
    if len(before) >= MOST:  # a layer may count its calls
        before.clear()
    before[key] = found = tried(layer, example)
    return found


def _key(module: nn.Module, outermost: bool) -> tuple[Any, ...]:
    """Everything plain that a module holds; TypeError if it holds something else."""
    # a forward method may be replaced later; the class itself must not be held
    plain: list[Any] = [None if outermost else type(module), id(type(module).forward)]
    for name, value in vars(module).items():
        if name in ("_parameters", "_buffers"):
            plain += [(n, None if t is None else t.shape) for n, t in value.items()]
            flags = [t for t in value.values() if t is not None and t.dtype == torch.bool]
            plain += [tuple(flag.flatten().tolist()) for flag in flags]
        elif name == "_modules":
            plain += [*value]
        elif name not in ("training", "forward") and "_hooks" not in name:
            plain += [name, _frozen(value)]
    return tuple(plain)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, set | dict) and not value:
        return None
    raise TypeError
