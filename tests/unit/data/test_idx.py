"""The idx reader: right on good files, and clear about bad ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import idx_bytes
from normscope.data._idx import idx_array
from normscope.errors import InputError

PATH = Path("folder/train-images-idx3-ubyte")


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_round_trip(shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    assert np.array_equal(idx_array(idx_bytes(array), axes=len(shape), path=PATH), array)


def test_header_is_big_endian():
    content = bytes([0, 0, 8, 1, 0, 0, 1, 0]) + bytes(range(256))
    assert idx_array(content, axes=1, path=PATH).tolist() == list(range(256))


IMAGES = idx_bytes(np.arange(24).reshape(2, 3, 4))
BAD = {
    "empty": (b"", "truncated: 0 bytes"),
    "header cut": (IMAGES[:10], "header alone has 16"),
    "one byte short": (IMAGES[:-1], "announces 2 x 3 x 4 = 24 bytes, 23 follow"),
    "one byte long": (IMAGES + b"x", "24 bytes, 25 follow"),
    "labels instead": (idx_bytes(np.arange(20)), "holds labels: were two files exchanged"),
    "gzip under a plain name": (b"\x1f\x8b" + IMAGES, "It is gzip: name it .gz"),
    "a web page": (b"<!DOCTYPE html><html></html>", "web page"),
    "little-endian floats": (b"\x00\x00\x0d\x03" + IMAGES[4:], "starts with 00000d03"),
}


@pytest.mark.parametrize(("content", "text"), BAD.values(), ids=BAD)
def test_bad_files_are_named_and_explained(content, text):
    with pytest.raises(InputError, match=text) as caught:
        idx_array(content, axes=3, path=PATH)
    assert str(PATH) in str(caught.value)
    assert "fetch it again" in str(caught.value)
