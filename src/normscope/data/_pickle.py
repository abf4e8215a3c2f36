"""Reading the pickled batches of CIFAR-10 and ImageNet without running anything they say.

A pickle is a program. This reader knows dicts, lists, tuples, text, bytes and numbers, and of the
globals a pickle may name only the three that an array needs; each is a stand-in written here, so
that no function of numpy or of Python can be reached at all.
"""

from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

INTEGERS = ("u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8")
FLOATS = ("f4", "f8")


def unpickled(
    content: bytes | BinaryIO, *, path: Path, floats: Collection[str] = ()
) -> dict[str, Any]:
    """The dict that ``content`` holds, keys as text, arrays as numpy arrays of integers.

    Entries named in ``floats`` may be of floating-point numbers. ``path`` is named in the errors.
    """
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    try:
        found = _ArraysOnly(stream, encoding="bytes").load()
        if isinstance(found, dict):  # arrays are put together here: their parts may be wrong too
            named = ((_text(k), v) for k, v in found.items())
            found = {
                k: v.array(INTEGERS + FLOATS if k in floats else INTEGERS)
                if isinstance(v, _Array)
                else v
                for k, v in named
            }
    except InputError as error:
        raise InputError(f"{path} was refused: {error}") from None
    except _BROKEN as error:
        raise InputError(
            f"{path} is not a readable pickle ({type(error).__name__}: {error}; {size} "
            "bytes found): truncated, or another file. Delete it and fetch it again."
        ) from None
    if not isinstance(found, dict):
        raise InputError(
            f"{path} holds a {type(found).__name__}, but a batch of images is a dict with 'data' "
            "and 'labels'. Delete it and fetch it again."
        )
    return found


# What the pickle machine raises on bytes that are no pickle.
_BROKEN = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, OverflowError, MemoryError),
)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _StandIn:
    """A function that a pickle may call, and do nothing else with."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise InputError("the pickle tries to change a function.")


class _Type:
    """The type of an array's elements: a number of some size and byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if _text(code) not in INTEGERS + FLOATS:
            raise InputError(f"it has an array of type {_text(code)!r}, not of integers.")
        self.order, self.code = "<", _text(code)

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        self.order = order if order in "<>" else "<"


class _Array:
    """An array as a pickle describes it: shape, type, bytes."""

    def __init__(self, *_: Any) -> None:
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def array(self, allowed: Collection[str]) -> NDArray[Any]:
        _, shape, kind, columns_first, content = self._state
        if kind.code not in allowed:
            raise InputError(f"it has an array of type {kind.code!r}, not of integers.")
        dtype = np.dtype(f"{kind.order}{kind.code}")
        if not isinstance(content, bytes) or len(content) != math.prod(shape) * dtype.itemsize:
            raise InputError(f"an array of shape {shape} has the wrong number of bytes.")
        flat = np.frombuffer(content, dtype)
        return flat.reshape(shape, order="F" if columns_first else "C")


def _encode(text: Any, encoding: Any) -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    if _text(encoding) != "latin1" or not isinstance(text, str):
        raise InputError(f"it asks to encode {type(text).__name__} as {encoding!r}.")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),
    ("numpy", "ndarray"): None,  # only ever an argument, which the stand-in ignores
    ("numpy", "dtype"): _StandIn(_Type),
    ("_codecs", "encode"): _StandIn(_encode),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise InputError(
            f"the pickle asks for {module}.{name}, which a batch of images does not need; loading "
            "it could run foreign code. Delete the file and fetch it again (the binary layout "
            "cifar-10-batches-bin holds no code at all)."
        )

    def persistent_load(self, pid: Any) -> Any:
        raise InputError(f"the pickle refers to the outside object {pid!r}.")
