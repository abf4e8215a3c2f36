"""What a word on the command line means: a network or data by name, or a user's own, by import.

``resnet20``, ``mlp:784-256-10,norm=batch`` are networks of the zoo; ``package.module:name`` and
``path/to/file.py:name`` are imported, and called if they are functions that make the thing.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.registry import near_match

__all__ = ["data_target", "imported", "network_target"]

FAMILY = re.compile(r"(resnet|vgg|preresnet)\d+")


def network_target(word: str, *, seed: int = 0) -> Any:
    """The network that ``word`` names: one of the zoo, or what a user's factory makes."""
    from torch import nn

    from normscope.nn import network
    from normscope.nn.zoo.catalogue import ZOO

    base = word.partition(":")[0].strip()
    if base in ZOO or FAMILY.fullmatch(base) or ":" not in word:
        return network(word, seed=seed)
    made = imported(word)
    if isinstance(made, type) or not isinstance(made, nn.Module):
        raise InputError(
            f"{word} gives a {_kind(made)}, not a torch module. Name a module, or a function "
            "without arguments that makes one."
        )
    return made


def data_target(word: str, *, data_dir: str | None = None) -> Any:
    """The data that ``word`` names: a data set, or what a user's factory makes."""
    from normscope.data import data_sets, load_data

    name, _, split = word.partition(":")
    if name in data_sets or ":" not in word:
        return load_data(name, split or "train", data_dir=data_dir)
    return imported(word)


def imported(word: str) -> Any:
    """The object ``module:name`` or ``file.py:name``; a function or class is called."""
    place, _, name = word.rpartition(":")
    if not place or not name:
        raise InputError(
            f"Expected module:name or file.py:name, such as my_model:make. Got {word!r}."
        )
    module = _module(place)
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            known = [n for n in vars(value) if not n.startswith("_")] if value is module else []
            raise InputError(f"{place} has no {name!r}. {near_match(part, known)}")
        value = getattr(value, part)
    if inspect.isfunction(value) or inspect.isclass(value):
        return _called(value, word)
    return value


def _module(place: str) -> Any:
    path = Path(place)
    is_file = place.endswith(".py") or path.is_file()
    try:
        return _from_file(path) if is_file else _from_name(place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{place} cannot be imported: {_reason(error)}") from error


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
    except Exception as error:
        raise InputError(f"{word} was called and failed: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The error in one line, with the user's own file and line where it arose."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "importlib" not in file and not file.startswith("<") and file != __file__:
            where = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{where}"


def _kind(value: Any) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
