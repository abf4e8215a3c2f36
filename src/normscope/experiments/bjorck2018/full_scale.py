"""What only the authors' own scale can show: the left of Fig. 17, and the rate of Sec. 2."""

from normscope.experiments.bjorck2018 import _runs as runs
from normscope.experiments.bjorck2018.rates import highest
from normscope.experiments.observing import Panels, Table, Values, paired

ARMS = {"all of batch norm": {"arm": "batch"}, "without affine": {"arm": "mean and variance"}}
RATES = (0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5)


def observe(table: Table) -> Values:
    """What the claims read."""
    return {"fig17-left": {"values": paired(table, "test_accuracy", *ARMS.values())},
            "sec2-lr-1e-4": {"holds": abs(highest(table, "none") + 4) < 0.1}}  # fmt: skip


def panels(table: Table) -> Panels:
    """The left of Fig. 17."""
    return runs.curves(table, "Fig. 17, left", ARMS)


trial = runs.trial
