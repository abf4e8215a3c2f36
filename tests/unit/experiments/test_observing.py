"""Common functions of experiments: parts, pairs of runs, panels of arms."""

from __future__ import annotations

import json

import numpy as np
import pytest

from normscope.experiments import observing
from normscope.experiments.reproduce import rounded
from normscope.results.rules import judge
from normscope.sweeps import Table

A, B = {"norm": "batch"}, {"norm": "none"}
RUNS = {("batch", 1): [4.0, 1.0], ("batch", 0): [2.0, 0.5], ("none", 0): [3.0, 3.0],
        ("none", 1): [8.0, 2.0]}  # fmt: skip
TABLE = Table([({"norm": n, "seed": s}, {"losses": np.array(v)}) for (n, s), v in RUNS.items()])


def test_arrays_of_any_kind_become_plain_data_once() -> None:
    found = observing.parts({"a": np.float32([0.5]), "b": {"holds": np.array([True, False])}})
    assert json.loads(json.dumps(rounded(found))) == rounded(found)
    assert judge("count", found["parts"]["b"], {}).observed == "1 of 2"


def test_slopes_are_those_of_straight_lines() -> None:
    x = np.array([1.0, 2.0, 5.0])
    assert observing.slopes(x, [3 * x + 1, -x]) == pytest.approx([3.0, -1.0])
