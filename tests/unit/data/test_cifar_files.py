"""CIFAR-10 in both layouts; a pickle can do nothing but hold arrays."""

import builtins
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest

from normscope.data._cifar import binary_records, pickled_records
from normscope.data._pickle import unpickled
from normscope.errors import InputError

PATH = Path("folder/data_batch_1")


def batch(n=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    return labels, rng.integers(0, 256, (n, 3072)).astype(np.uint8)


# Python 2's pickle of numpy 1.x names numpy.core; pickles of today name numpy._core.
@pytest.mark.parametrize("keys", [bytes, str])
@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("core", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_both_layouts_give_the_same_records(keys, protocol, core):
    labels, images = batch()
    entries = {"data": images, "labels": labels.tolist(), "filenames": ["a.png"] * 4}
    named = {(k if keys is str else k.encode()): v for k, v in entries.items()}
    content = pickle.dumps(named, protocol=protocol)
    if protocol < 4:  # from 4 on names carry their length
        content = content.replace(b"numpy._core.multiarray", core)
    found = pickled_records(content, path=PATH)
    expected = np.concatenate([labels.astype(np.uint8)[:, None], images], axis=1)
    assert np.array_equal(found, expected)
    assert np.array_equal(binary_records(expected.tobytes(), path=PATH), expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i8", ">i4", "|u1", "<u2"])
def test_arrays_of_any_integer_layout(order, dtype):
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=dtype, order=order)
    found = unpickled(pickle.dumps({"a": array}, protocol=2), path=PATH)["a"]
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype


class _Attack:
    def __init__(self, function, *arguments):
        self._reduced = function, arguments

    def __reduce__(self):
        return self._reduced


ATTACKS = {
    "os.system": _Attack(os.system, "touch /tmp/never"),
    "eval": _Attack(builtins.eval, "1 + 1"),
    "subprocess": _Attack(subprocess.check_output, ["true"]),
    "getattr": _Attack(getattr, "text", "upper"),
    "import": _Attack(__import__, "antigravity"),
    "numpy.load": _Attack(np.load, "file.npy", None, True),
    "object array": np.array([{"a": 1}], dtype=object),
    "float array": np.array([1.0]),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_pickle_cannot_run_anything(attack, protocol):
    with pytest.raises(InputError, match="refused") as caught:
        unpickled(pickle.dumps({b"data": attack}, protocol=protocol), path=PATH)
    assert str(PATH) in str(caught.value)


def test_a_pickle_cannot_change_the_reader():
    # GLOBAL numpy.dtype, then BUILD with a state that would set attributes of the function.
    program = b"\x80\x02cnumpy\ndtype\n(N}U\x04nameU\x04eviltb."
    with pytest.raises(InputError, match="tries to change a function"):
        unpickled(program, path=PATH)


def test_a_persistent_reference_is_refused():
    with pytest.raises(InputError, match="outside object"):
        unpickled(b"\x80\x02U\x03abcQ.", path=PATH)


def _damaged():
    labels, images = batch()
    good = pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)
    entries = {
        "truncated": good[:-100],
        "empty": b"",
        "text": b"this is not a pickle",
        "a list": pickle.dumps([1, 2]),
        "no labels": pickle.dumps({b"data": images}, protocol=2),
        "fewer labels": pickle.dumps({b"data": images, b"labels": [1]}, protocol=2),
        "narrow": pickle.dumps({b"data": images[:, :-1], b"labels": [0] * 4}, protocol=2),
        "wide labels": pickle.dumps({b"data": images, b"labels": [0, 1, 2, 300]}, protocol=2),
        "text labels": pickle.dumps({b"data": images, b"labels": ["a"] * 4}, protocol=2),
        "ragged labels": pickle.dumps({b"data": images, b"labels": [[1], [2, 3], 4, 5]}),
        "data a list": pickle.dumps({b"data": [1], b"labels": [1]}, protocol=2),
        "bytes missing in an array": good.replace(b"K\x04M\x00\x0c\x86", b"K\x05M\x00\x0c\x86"),
        "an array without content": b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\n)Rs.",
    }
    return entries.items()


@pytest.mark.parametrize(("name", "content"), _damaged(), ids=[name for name, _ in _damaged()])
def test_damaged_pickles_are_named(name, content):
    with pytest.raises(InputError) as caught:
        pickled_records(content, path=PATH)
    assert str(PATH) in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074, 30729999])
def test_binary_files_have_whole_records(size):
    with pytest.raises(InputError, match=f"{size} bytes are no whole number of 3073-byte"):
        binary_records(bytes(size), path=PATH)
