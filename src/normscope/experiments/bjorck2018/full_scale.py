"""What only the authors' own scale can show: the left of Fig. 17, and the rate of Sec. 2."""

from typing import Any

from normscope.experiments.bjorck2018 import _runs as runs
from normscope.experiments.bjorck2018.rates import highest
from normscope.experiments.observing import Panel, Scale, Table, paired

ARMS = {"all of batch norm": {"arm": "batch"}, "without affine": {"arm": "mean and variance"}}
RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5)


def observe(table: Table) -> dict[str, Any]:
    """What the claims read."""
    return {"fig17-left": {"values": paired(table, "test_accuracy", *ARMS.values())},
            "sec2-lr-1e-4": {"holds": abs(highest(table, "none") + 4) < 0.1}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """The left of Fig. 17."""
    return runs.curves(table, "Fig. 17, left", ARMS)


def _settings(affine: int, none: int, **common: Any) -> list[dict[str, Any]]:
    rows = [(arm["arm"], 0.1, affine) for arm in ARMS.values()]
    return runs.settings([*rows, *(("none", rate, none) for rate in RATES)], **common)


TITLE = "ResNet-110: the affine part of batch norm, and rates without batch norm"
HOURS = 1500.0
trial = runs.trial
SMOKE = Scale(_settings(4, 2, batch=16, **runs.SMALL), seeds=2, seconds=4)
PAPER = Scale(_settings(165 * runs.STEPS, 2400 * runs.STEPS, **runs.LARGE), seeds=5,
              seconds=6e7, data=("cifar10",))  # fmt: skip
