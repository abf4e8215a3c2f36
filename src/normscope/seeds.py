"""One integer seed everywhere; the global generators are never touched."""

from __future__ import annotations

import operator
import zlib
from typing import TYPE_CHECKING

from normscope.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def checked_seed(seed: int) -> int:
    """``seed`` itself if it is a non-negative integer below 2**63, otherwise an error."""
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InputError(f"The seed must be an integer from 0 to 2**63 - 1. Got {seed!r} instead.")
    return number


def child_seed(seed: int, *stream: str | int) -> int:
    """A seed for one independent stream of ``seed``: equal names give equal seeds."""
    words = [checked_seed(seed) % 2**32, checked_seed(seed) >> 32]
    words += [zlib.crc32(repr(name).encode()) for name in stream]
    return int(_sequence(words).generate_state(1, "uint64")[0]) >> 1


def numpy_generator(seed: int, *stream: str | int) -> np.random.Generator:
    """A fresh numpy generator for one named stream of ``seed``."""
    import numpy as np

    return np.random.default_rng(child_seed(seed, *stream))


def _sequence(words: list[int]) -> np.random.SeedSequence:
    import numpy as np

    return np.random.SeedSequence(words)
