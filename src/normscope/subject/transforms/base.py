"""What a transform is: a named change of a model, undone as a whole or not made at all."""

from __future__ import annotations

import copy
import math
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.registry import Registry
from normscope.subject.graph.reading import check_readable
from normscope.subject.interrupts import held, safe_point

_SYNTAX = re.compile(r"\s*([a-z][a-z-]*)\s*(?::([^=]*))?(?:=(.*))?", re.DOTALL)
_HISTORY: weakref.WeakKeyDictionary[nn.Module, list[Edit]] = weakref.WeakKeyDictionary()


class Edit:
    """The changes that a transform makes to one model, each with the way back.

    Nothing here holds the model itself, so that its history ends with it.

    Attributes:
        example: a batch of what the model takes, while changes are made; None if there is none.
        data: what the model is trained on, while changes are made; None if it was not given.
    """

    def __init__(self, model: nn.Module, example: Any = None, data: Any = None) -> None:
        self._model = weakref.ref(model)
        self.example, self.data = example, data
        self._back: list[Callable[[nn.Module], None]] = []
        self._places: dict[int, list[str]] | None = None  # id of a layer -> its names
        self._versions: dict[Tensor, int] = {}  # of what was written into

    @property
    def model(self) -> nn.Module:
        """The model that is being changed."""
        model = self._model()
        assert model is not None
        return model

    def replace(self, layer: nn.Module, new: nn.Module) -> None:
        """Put ``new`` wherever ``layer`` stands; a shared layer stands in several places."""
        model = self.model
        names = self._names(layer)
        if "" in names:
            raise InputError(
                f"The model is itself the {type(layer).__name__} that would be exchanged. Put it "
                "into a container first: nn.Sequential(model)."
            )
        new.train(layer.training)
        for name in names:
            _put(model, name, new)
            self._back.append(lambda m, name=name: _put(m, name, layer))  # type: ignore[misc]
        if next(new.children(), None) is None and next(layer.children(), None) is None:
            assert self._places is not None
            self._places[id(new)] = self._places.pop(id(layer))
        else:
            self._places = None

    def _names(self, layer: nn.Module) -> list[str]:
        if self._places is None:
            self._places = {}
            for name, found in self.model.named_modules(remove_duplicate=False):
                self._places.setdefault(id(found), []).append(name)
        return self._places.get(id(layer), [])

    def fill(self, tensor: Tensor, value: Tensor | float) -> None:
        """Write ``value`` into a parameter or buffer."""
        before = tensor.detach().clone()
        self._versions.setdefault(tensor, tensor._version)
        with torch.no_grad():
            tensor.copy_(torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device))
        self._back.append(lambda _: _write(tensor, before))

    def set(self, holder: nn.Module | Tensor, name: str, value: Any) -> None:
        """Set a plain attribute of a layer or a parameter."""
        before = getattr(holder, name)
        setattr(holder, name, value)
        self._back.append(lambda _: setattr(holder, name, before))

    def undo(self, model: nn.Module) -> None:
        """Take everything back, last change first."""
        while self._back:
            self._back.pop()(model)

    def forget(self, model: nn.Module) -> None:
        """Take everything back at once, as if nothing had been written."""
        self.undo(model)
        counters, versions = tuple(self._versions), tuple(self._versions.values())
        torch._C._autograd._unsafe_set_version_counter(counters, versions)


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, layer)


def _write(tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)


Change = Callable[[nn.Module, Edit], None]


@dataclass(frozen=True)
class Transform:
    """A change of a model; call it on one, or hand it to ``apply_transform``.

    Attributes:
        text: how it is written.
        change: makes the change, through an ``Edit``.
    """

    text: str
    change: Change

    def __call__(
        self, model: nn.Module, *, inplace: bool = False, example: Any = None, data: Any = None
    ) -> nn.Module:
        """The changed model: a copy, or ``model`` itself if ``inplace``."""
        if not isinstance(model, nn.Module):
            check_readable(model)
        with held():  # Ctrl-C comes while a pass is run, or when all is done
            target = model if inplace else _copied(model, self.text)
            edit = Edit(target, example, data)
            try:
                self.change(target, edit)
                safe_point()
            except BaseException:
                edit.forget(target)
                raise
            edit.example = edit.data = None
            _HISTORY.setdefault(target, []).append(edit)
        return target


@dataclass(frozen=True)
class TransformKind:
    """An entry of ``TRANSFORMS``.

    Attributes:
        make: what stands behind ``:`` and behind ``=``, each text or None -> the change.
        usage: how it is written.
        meaning: one line for a table.
    """

    make: Callable[[str | None, str | None], Change]
    usage: str
    meaning: str


TRANSFORMS: Registry[TransformKind] = Registry("transform")


def parse_transform(text: str) -> Transform:
    """The transform that ``NAME``, ``NAME=VALUE``, ``NAME:WHAT`` or ``NAME:WHAT=VALUE`` names."""
    match = _SYNTAX.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        usage = ", ".join(TRANSFORMS[name].usage for name in TRANSFORMS)
        raise InputError(f"A transform is written as one of {usage}. Got {text!r}.")
    name, what, value = match.groups()
    kind = TRANSFORMS[name]
    stripped = [None if part is None else part.strip() for part in (what, value)]
    for part, sign in zip(stripped, ":=", strict=True):
        if part == "":
            raise InputError(
                f"Nothing stands behind {sign!r} in {text!r}. Usage: {kind.usage} ({kind.meaning})."
            )
    return Transform(text.strip(), kind.make(*stripped))


def number_or_nan(value: str | None) -> float:
    """The number that stands behind '='; NaN if there is none."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return math.nan


def apply_transform(
    model: nn.Module, transform: str | Transform | Sequence[str | Transform], *,
    inplace: bool = False, example: Any = None, data: Any = None,
) -> nn.Module:  # fmt: skip
    """Change a model by name: ``"remove-norms"``, ``"replace:batch->layer"``, ``"gamma=0.1"``, ...

    Args:
        model: any network; left as it is unless ``inplace``.
        transform: a name with its arguments, a ``Transform``, or several to be made in turn;
            ``TRANSFORMS`` lists the names.
        inplace: change ``model`` itself; ``undo_transform`` takes it back. An optimizer that
            was made before keeps the parameters of layers that were exchanged.
        example: a batch of what the model takes: a tensor, a tuple of arguments or a dict of
            keywords. Changes that need to know how the layers are joined run the model on it;
            None tries inputs of the sizes that its first layer allows.
        data: what the model is trained on, of any form that ``examine`` takes; all of it is read.
            Needed by ``"recompute-statistics"`` alone.

    Returns:
        The changed model. A transform that cannot be made raises an error with the reason and
        changes nothing.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
        >>> bool((apply_transform(net, "gamma=0.1")[1].weight == 0.1).all())
        True
    """
    alone = isinstance(transform, str | Transform)
    several: list[Any] = [transform] if alone else checked_list(transform, "transform")
    if not several:
        raise InputError("apply_transform needs at least one transform. Got an empty list.")
    parsed = [t if isinstance(t, Transform) else parse_transform(t) for t in several]

    def change(target: nn.Module, edit: Edit) -> None:
        for one in parsed:
            one.change(target, edit)

    return Transform(", ".join(t.text for t in parsed), change)(
        model, inplace=inplace, example=example, data=data
    )


def undo_transform(model: nn.Module) -> nn.Module:
    """Take back the last ``apply_transform`` of this very model, in place."""
    history = _HISTORY.get(model, [])
    if not history:
        raise InputError(
            "There is no transform of this model to undo. A copy has no history of its own: undo "
            "the object that apply_transform returned or changed."
        )
    with held():
        history.pop().undo(model)
    return model


def _copied(model: nn.Module, text: str) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # whatever a user's attributes raise
        raise InputError(
            f"{type(model).__name__} cannot be copied ({error}). Apply {text!r} with inplace=True "
            "and take it back with undo_transform."
        ) from error
