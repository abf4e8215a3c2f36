"""What experiments observe and draw, in one place: scales, tables, observations, panels of arms.

An observation may hold numpy arrays: ``reproduce.outcome`` makes plain data of them once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.experiments.experiment import every_value
from normscope.results.observations import columns, exact, fitted_minimum, over_sizes, parts
from normscope.results.panel import Curve, Panel, curve
from normscope.results.rules import fitted_slope
from normscope.sweeps.panels import arm_bars, arm_curves, training_panel
from normscope.sweeps.plan import grid
from normscope.sweeps.table import Table, by_seed, paired

__all__ = ["Array", "Curve", "Panel", "Panels", "Table", "Values", "arm_bars", "arm_curves",
           "by_seed", "columns", "curve", "every_value", "exact", "fitted_minimum", "fitted_slope",
           "grid", "over_sizes", "paired", "parts", "slopes", "training_panel"]  # fmt: skip

Panels = Iterable[Panel]
Values = dict[str, Any]  # by name: what a trial returns, what is observed of all, settings


def slopes(x: Sequence[float] | Array, rows: Any) -> Array:
    """Slope of a straight line through each row of values at the places x."""
    return np.asarray(np.polyfit(np.asarray(x, float), np.asarray(rows, float).T, 1)[0])
