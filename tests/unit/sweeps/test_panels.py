"""Panels of arms: means and intervals over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from normscope.sweeps import Table
from normscope.sweeps.panels import arm_bars, training_panel

A, B = {"norm": "batch"}, {"norm": "none"}
RUNS = {("batch", 1): [4.0, 1.0], ("batch", 0): [2.0, 0.5], ("none", 0): [3.0, 3.0],
        ("none", 1): [8.0, 2.0]}  # fmt: skip
TABLE = Table([({"norm": n, "seed": s}, {"losses": np.array(v)}) for (n, s), v in RUNS.items()])


def test_panels_of_arms_have_means_and_intervals_over_seeds() -> None:
    arms = {"BN": A, "Plain": B}
    panel = training_panel(TABLE, "Fig. 1", arms)
    assert [c.name for c in panel.curves] == ["BN", "Plain"]
    assert panel.curves[0].y == (3.0, 0.75)
    assert panel.curves[0].low == pytest.approx((1.0, 0.25))  # two standard errors
    bars = arm_bars(TABLE, "Table 1", arms, lambda r: r["losses"][-1], "loss",
                              printed={"BN": 0.7})  # fmt: skip
    assert bars.curves[0].x == ("BN", "Plain")
    assert bars.curves[0].y == (0.75, 2.5)
    assert bars.curves[1].y == (0.7,)
