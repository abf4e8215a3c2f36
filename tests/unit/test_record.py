import dataclasses
import importlib
import json
import math
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscope
from normscope.annotations import hints
from normscope.errors import InputError
from normscope.nn.zoo.maker import Design
from normscope.record import Record


@dataclass(frozen=True, eq=False)
class Inner(Record):
    value: float


@dataclass(frozen=True, eq=False)
class Outer(Record):
    name: str
    inner: Inner | None = None
    array: Any = None
    items: tuple[Any, ...] = ()
    table: Any = None


SAMPLES = [
    Outer("plain"),
    Outer("nested", Inner(0.1)),
    Outer("not finite", Inner(math.nan), items=(math.inf, -math.inf, 1.5)),
    Outer("array", array=np.array([[1.0, np.nan], [np.inf, -2.0]])),
    Outer("integers", array=np.arange(6).reshape(2, 3)),
    Outer("empty", array=np.zeros((0, 3))),
    Outer("words", array=np.array(["ordered", "chaotic"])),
    Outer("flags", array=np.array([True, False])),
    Outer("numpy scalars", items=(np.float64(2.5), np.int64(3), np.bool_(True))),
    Outer("table", table={"a": (1, 2), "b": {"c": Inner(2.0)}}),
    Outer("records", items=(Inner(1.0), Inner(math.nan))),
]


@pytest.mark.parametrize("record", SAMPLES, ids=lambda r: r.name)
def test_json_there_and_back(record):
    text = record.to_json()
    json.loads(text, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    again = Outer.from_json(text)
    assert again == record
    assert hash(again) == hash(record)
    if isinstance(record.array, np.ndarray):
        assert again.array.shape == record.array.shape
        assert again.array.dtype == record.array.dtype


def test_equality_is_by_value_and_type():
    assert Outer("a", array=np.ones(3)) == Outer("a", array=np.ones(3))
    assert Outer("a", array=np.ones(3)) != Outer("a", array=np.ones(4))
    assert Outer("a", array=np.ones(3)) != Outer("a", array=np.zeros(3))
    assert Inner(1.0) != Outer("a")
    assert Inner(math.nan) == Inner(math.nan)
    assert Outer("a", table={"x": 1}) != Outer("a", table={"y": 1})


def test_wrong_type_is_named():
    with pytest.raises(InputError) as error:
        Inner.from_dict(Outer("a").to_dict())
    assert "Inner" in str(error.value)
    assert "'Outer'" in str(error.value)


@pytest.mark.parametrize(
    ("printed", "value"), [(None, math.nan), ("inf", math.inf), ("-inf", -math.inf), (2.5, 2.5)]
)
def test_numbers_as_the_command_line_prints_them(printed, value):
    assert Inner.from_dict({"type": "Inner", "value": printed}) == Inner(value)
    array = {"$array": [1.0, printed], "shape": [2], "dtype": "float64"}
    found = Outer.from_dict({"type": "Outer", "name": "inf", "array": array, "table": None})
    assert found == Outer("inf", array=np.array([1.0, value]))


def test_what_cannot_be_stored():
    with pytest.raises(TypeError, match="object"):
        Outer("a", table=object()).to_dict()


def test_unknown_fields_of_a_newer_version_are_left_out():
    data = Inner(2.0).to_dict() | {"added_later": 3}
    assert Inner.from_dict(data) == Inner(2.0)


@pytest.mark.parametrize("data", [[1.0], {"a": 1}, None])
def test_data_that_is_no_record(data):
    with pytest.raises(InputError, match="Expected the data of an Inner"):
        Inner.from_dict(data)


def test_text_that_is_cut_off():
    with pytest.raises(InputError, match="no JSON"):
        Inner.from_json(Inner(2.0).to_json()[:-3])


def test_missing_fields_are_named():
    with pytest.raises(InputError) as error:
        Outer.from_dict({"type": "Outer"})
    assert "Outer lacks" in str(error.value)


def defined(name, module, qualname, **values):
    return type(name, (Record,), {"__module__": module, "__qualname__": qualname, **values})


@pytest.mark.parametrize(
    ("module", "qualname"), [("elsewhere", "Inner"), (__name__, "test.<locals>.Inner")]
)
def test_a_name_belongs_to_one_class(module, qualname):
    with pytest.raises(TypeError) as error:
        defined("Inner", module, qualname)
    assert f"{__name__}.Inner" in str(error.value)
    assert f"{module}.{qualname}" in str(error.value)
    assert Inner.from_dict(Inner(2.0).to_dict()) == Inner(2.0)  # the first one stays


def test_the_same_class_may_be_defined_again():
    first, again = (defined("Rerun", "__main__", "Rerun", run=run) for run in range(2))
    assert first is not again
    assert isinstance(Record.from_dict({"type": "Rerun"}), again)


def test_a_class_with_slots_is_defined_twice_by_dataclass():
    for _ in range(2):

        @dataclass(frozen=True, eq=False, slots=True)
        class Slotted(Record):
            value: float

        assert Slotted.from_dict(Slotted(2.0).to_dict()) == Slotted(2.0)


def test_the_kind_of_every_field_is_known():
    """A name that only type checkers see would switch the check of a record off."""
    for package in ("results", "theory", "train", "measure", "subject", "diagnose"):
        path = [str(Path(normscope.__file__).parent / package)]
        for module in pkgutil.walk_packages(path, f"normscope.{package}."):
            importlib.import_module(module.name)
    checked = [cls for cls in Record._types.values() if cls.__module__.startswith("normscope")]
    assert len(checked) > 50
    for cls in (*checked, Design):
        assert {f.name for f in dataclasses.fields(cls)} <= set(hints(cls)), cls
