"""The idx format of MNIST: a big-endian header, then unsigned bytes, row by row."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

UNSIGNED_BYTE = 0x08


def idx_array(content: bytes, *, axes: int, path: Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes with ``axes`` axes that ``content`` holds.

    The header is two zero bytes, the type (8: unsigned byte), the number of axes, then the length
    of each axis as a big-endian 32-bit number. ``path`` is named in the errors.
    """
    head = 4 + 4 * axes
    if len(content) < head:
        raise InputError(
            f"{path} is truncated: {len(content)} bytes found, the header alone has {head}. "
            "Delete it and fetch it again."
        )
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, axes]):
        expected = bytes([0, 0, UNSIGNED_BYTE, axes]).hex()
        raise InputError(
            f"{path} is not the file its name says: it starts with {content[:4].hex()}, "
            f"{axes}-axis unsigned bytes in idx format start with {expected}. "
            f"{_guess(content)}Delete it and fetch it again."
        )
    shape = struct.unpack(f">{axes}I", content[4:head])
    if len(content) != head + math.prod(shape):
        raise InputError(
            f"{path} is truncated or has a wrong header: the header announces "
            f"{' x '.join(map(str, shape))} = {math.prod(shape)} bytes, {len(content) - head} "
            "follow. Delete it and fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _guess(content: bytes) -> str:
    if content[:2] == b"\x1f\x8b":
        return "It is gzip: name it .gz. "
    if content[:3] == bytes([0, 0, UNSIGNED_BYTE]):
        kind = {1: "labels", 3: "images"}.get(content[3], f"{content[3]} axes")
        return f"It holds {kind}: were two files exchanged? "
    if content.lstrip()[:1] == b"<":
        return "It looks like a web page saved in place of the file. "
    return ""
