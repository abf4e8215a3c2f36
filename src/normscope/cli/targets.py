"""What a word on the command line means: a network or data by name, or a user's own, by import.

``resnet20``, ``mlp:784-256-10,norm=batch`` are networks of the zoo; ``package.module:name`` and
``path/to/file.py:name`` are imported, and called if they are functions that make the thing (a
loss or an optimizer is itself a function, and is not called).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from normscope.errors import InputError
from normscope.messages import failure, kind_of
from normscope.registry import near_match

FAMILY = re.compile(r"(resnet|vgg|preresnet)\d+")


def network_target(word: str, *, seed: int = 0) -> Any:
    """The network that ``word`` names: one of the zoo, or what a user's factory makes."""
    from torch import nn

    from normscope.nn import network
    from normscope.nn.zoo.catalogue import ZOO

    _refuse_bare_file(word)
    base = word.partition(":")[0].strip()
    if base in ZOO or FAMILY.fullmatch(base):
        return network(word, seed=seed)
    if ":" not in word:
        raise _unknown("network", word, ZOO, "make")
    made = imported(word)
    if isinstance(made, type) or not isinstance(made, nn.Module):
        raise InputError(
            f"{word} gives {kind_of(made)}, not a torch module. Name a module, or a function "
            "without arguments that makes one."
        )
    return made


def data_target(word: str, *, data_dir: str | None = None) -> Any:
    """The data that ``word`` names: a data set, or what a user's factory makes."""
    from normscope.data import data_sets, is_data_name, load_data

    _refuse_bare_file(word)
    name, _, split = word.partition(":")
    if name not in data_sets and is_data_name(word):  # the last part may be the split
        name, _, split = word.rpartition(":")
        name, split = (name, split) if split in ("train", "test") else (word, "train")
    if is_data_name(name):
        return load_data(name, split or "train", data_dir=data_dir)
    if ":" not in word:
        raise _unknown("data set", word, [*data_sets, "folder:PATH", "random:3x32x32"], "loader")
    return imported(word)


def function_target(word: str) -> Any:
    """A name, as it is, or the function ``module:name`` (a class is called)."""
    if ":" not in word:
        return word
    value = _object(word)
    return _called(value, word) if inspect.isclass(value) else value


def imported(word: str) -> Any:
    """The object ``module:name`` or ``file.py:name``; a function or class is called."""
    value = _object(word)
    makes = inspect.isroutine(value) or inspect.isclass(value)
    return _called(value, word) if makes or isinstance(value, functools.partial) else value


def load_weights(model: Any, path: str) -> None:
    """Put the state dict of a file into ``model``."""
    import torch

    if not Path(path).is_file():
        raise InputError(f"There is no file {path}. Give --weights a file of torch.save.")
    how = "Save the weights with torch.save(model.state_dict(), file)."
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever reading a file of another kind, or a whole module, raises
        raise InputError(f"{path} holds no weights, or more than weights. {how}") from None
    state = state.get("model", state) if isinstance(state, dict) else state
    if not isinstance(state, dict):
        raise InputError(f"{path} holds {kind_of(state)}, not weights by name. {how}")
    try:
        model.load_state_dict(state)
    except Exception as error:
        _, *lines = [" ".join(line.split()) for line in str(error).splitlines()] or [""]
        reason = lines[0] if lines else f"{type(error).__name__}: {error}"
        raise InputError(f"{path} does not fit the network: {reason[:300]} {how}") from None


def _unknown(what: str, word: str, known: Iterable[str], own: str) -> InputError:
    return InputError(
        f"Unknown {what} {word!r}. {near_match(word, list(known))} For your own give module:{own} "
        f"or file.py:{own}, where {own}() makes it."
    )


def _refuse_bare_file(word: str) -> None:
    if word.endswith(".py"):
        raise InputError(f"What in {word}? Name a function of it that makes it: {word}:make.")


def _own_names(module: ModuleType) -> list[str]:
    """What a module defines: neither other modules nor what it took from them."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]


def _object(word: str) -> Any:
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise InputError(
            f"Expected module:name or file.py:name, such as my_model:make. Got {word!r}."
        )
    module = _module(place)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = _own_names(module) if value is module else []
            raise InputError(f"{place} has no {name!r}. {near_match(part, known)}")
        value = getattr(value, part)
    return value


def _module(place: str) -> Any:
    path = Path(place)
    is_file = place.endswith(".py") or path.is_file()
    try:
        return _from_file(path) if is_file else _from_name(place)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{place} cannot be imported: {failure(error)}") from error


def _from_name(name: str) -> Any:
    """Import as Python would from the current folder."""
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove("")


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # what lies beside it can be imported
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(path.stem, None)
        if before is not None:
            sys.modules[path.stem] = before
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def _called(make: Any, word: str) -> Any:
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise InputError(f"{word} was called and failed: {failure(error)}") from error
