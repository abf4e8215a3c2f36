"""Whether a value is what an annotation says: for options typed by hand and files read back."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

_NUMBERS: dict[Any, type] = {int: Integral, float: Real}


def hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class or function; empty if some are known to type checkers only."""
    return _hints(owner)


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    try:
        return get_type_hints(owner)
    except NameError:
        return {}


def fits(value: Any, kind: Any) -> bool:
    """Whether ``value`` is of this kind, inside too; a list is a tuple, a bool no number.

    Example:
        >>> fits((1, 2), Sequence[int]), fits((1, "x"), Sequence[int]), fits(3, float | None)
        (True, False, True)
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin in _NUMBERS:
        return isinstance(value, _NUMBERS[origin]) and not isinstance(value, bool)
    if origin is tuple and parts and parts[-1] is not Ellipsis:
        return isinstance(value, tuple | list) and _each(value, parts)
    if origin in (tuple, list, Sequence):
        return isinstance(value, tuple | list) and _each(value, parts[:1] * len(value))
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and _each([*value.values()], parts[1:] * len(value))
    return isinstance(value, origin)


def _each(values: Sequence[Any], kinds: Sequence[Any]) -> bool:
    return not kinds or (len(values) == len(kinds) and all(map(fits, values, kinds)))
