"""What all results share: frozen, plain numbers, JSON there and back."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, ClassVar, TypeVar

import numpy as np

from normscope.annotations import fits, hints
from normscope.errors import InputError
from normscope.messages import with_article

R = TypeVar("R", bound="Record")


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen result: fields are numbers, text, numpy arrays, tuples, dicts or other records.

    ``to_dict`` gives JSON-safe data (non-finite floats and arrays are tagged), ``from_dict``
    gives an equal record back; equality compares arrays element by element, NaN equal to NaN, and
    leaves out fields with ``compare=False``, such as seconds.
    """

    _types: ClassVar[dict[str, type[Record]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = Record._types.get(cls.__name__, cls)
        if not _redefines(cls, known):
            raise TypeError(
                f"Two records are called {cls.__name__}: {known.__module__}.{known.__qualname__} "
                f"and {cls.__module__}.{cls.__qualname__}. from_dict finds a record by its name: "
                "rename one of them."
            )
        Record._types[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe data from which ``from_dict`` rebuilds an equal record."""
        fields = {f.name: _encode(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"type": type(self).__name__, **fields}

    @classmethod
    def from_dict(cls: type[R], data: dict[str, Any]) -> R:
        """The record that ``to_dict`` described; a wrong or unknown type is an error."""
        record = _decode(data)
        if not isinstance(record, cls):
            found = data.get("type") if isinstance(data, dict) else data
            raise InputError(
                f"Expected the data of {with_article(cls.__name__)}, as its to_dict gives it. "
                f"Found {found!r}. Check which file was read."
            )
        return record

    def to_json(self, *, indent: int | None = None) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """The record that ``to_json`` wrote."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"Expected the JSON of {with_article(cls.__name__)}. Found text that is no JSON: "
                f"{error}. Check which file was read, and that it is whole."
            ) from None
        return cls.from_dict(data)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _equal(getattr(self, f.name), getattr(other, f.name))
            for f in dataclasses.fields(self)
            if f.compare
        )

    def __str__(self) -> str:
        """What ``print`` shows: the summary, if there is one."""
        summary = getattr(self, "summary", self.__repr__)
        return str(summary())

    def __hash__(self) -> int:
        kept = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.compare}
        return hash(json.dumps(_encode(kept)))


def plain_data(value: Any) -> Any:
    """A value as JSON-safe data, as ``to_dict`` gives the fields of a record."""
    return _encode(value)


def plain_values(data: Any) -> Any:
    """What ``to_dict`` tagged in the values of a dict, as numbers, arrays and tuples again."""
    return _decode(data)


def _redefines(cls: type[Record], known: type[Record]) -> bool:
    """Whether both are one class: imported again, or made again by dataclass(slots=True)."""
    if cls.__module__ != known.__module__:
        return False
    fields = vars(known).get("__dataclass_fields__")
    # dataclass gives its copy with slots the qualified name only afterwards
    copied = fields is not None and vars(cls).get("__dataclass_fields__") is fields
    return copied or cls.__qualname__ == known.__qualname__


def _encode(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return {
            "$array": [_encode(v) for v in value.ravel().tolist()],
            "shape": list(value.shape),
            "dtype": str(value.dtype),
        }
    if isinstance(value, np.generic):
        return _encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, tuple | list):
        return [_encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _encode(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    raise TypeError(f"A result cannot hold a {type(value).__name__}.")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$array" in value:
        made = np.array([_decode(v) for v in value["$array"]], dtype=value["dtype"])
        if made.dtype.kind not in "biufU":
            raise InputError(f"An array holds numbers or text. Found the type {made.dtype}.")
        return made.reshape(value["shape"])
    if "type" in value and value["type"] in Record._types:
        cls = Record._types[value["type"]]
        fields = dataclasses.fields(cls)
        missing = [f.name for f in fields if f.name not in value and _required(f)]
        if missing:
            raise InputError(
                f"The data of {with_article(cls.__name__)} lacks {', '.join(missing)}. "
                "Another version may have written it, or it was cut off."
            )
        kinds = {f.name: str(getattr(f.type, "__name__", f.type)) for f in fields}
        found = {k: _number(_decode(v), kinds[k]) for k, v in value.items() if k in kinds}
        for name, part in found.items():
            if not fits(part, hints(cls).get(name, Any)):
                raise InputError(
                    f"{name!r} of {with_article(cls.__name__)} is {part!r:.60}, and should be "
                    f"{kinds[name]}."
                )
        return cls(**found)
    return {k: _decode(v) for k, v in value.items()}


def _number(value: Any, kind: str) -> Any:
    """A number as the command line prints it: null for NaN, words for infinities."""
    if not kind.startswith("float"):
        return value
    if value is None and "None" not in kind:
        return math.nan
    return float(value) if value in ("inf", "-inf") else value


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return False
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)
