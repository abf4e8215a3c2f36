"""Section C.1: does full-batch gradient descent give the signs of SGD in Figs V and VI?"""

import numpy as np

from normscope.experiments.huang2020 import mlp_training
from normscope.experiments.observing import Panels, Table, Values


def signs(table: Table, batch: int) -> dict[str, float]:
    """The sign of each observation of Figs V and VI, thresholds taken off, part by part."""
    found: dict[str, float] = {}
    for name, one in mlp_training.observe(table.where(batch=batch)).items():
        for part, values in one.get("parts", {"": one}).items():
            mean = np.mean(values["values"]) - values.get("threshold", 0.0)
            found[f"{name} {part}".strip()] = float(np.sign(mean))
    return found


def observe(table: Table) -> Values:
    """For each statement whether both methods give the same sign."""
    sgd, full = (signs(table, batch) for batch in table.values_of("batch"))
    return {"secC1-gd-sgd": {"holds": [sgd[name] == full[name] for name in sgd]}}


def panels(table: Table) -> Panels:
    """Figs V and VI of gradient descent."""
    return mlp_training.panels(table.where(batch=max(table.values_of("batch"))))


NET, trial = mlp_training.NET, mlp_training.trial
