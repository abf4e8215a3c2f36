"""Section C.1: does full-batch gradient descent give the signs of SGD in Figs V and VI?"""

from typing import Any

import numpy as np

from normscope.experiments.huang2020 import mlp_training
from normscope.experiments.huang2020._training import last_step
from normscope.experiments.huang2020.mlp_training import SETTINGS, mlp
from normscope.experiments.observing import Panel, Scale, Table


def signs(table: Table, batch: int) -> dict[str, float]:
    """The sign of each observation of Figs V and VI, thresholds taken off, part by part."""
    found: dict[str, float] = {}
    for name, one in mlp_training.observe(table.where(batch=batch)).items():
        for part, values in one.get("parts", {"": one}).items():
            mean = np.mean(values["values"]) - values.get("threshold", 0.0)
            found[f"{name} {part}".strip()] = float(np.sign(mean))
    return found


def observe(table: Table) -> dict[str, Any]:
    """For each statement whether both methods give the same sign."""
    sgd, full = (signs(table, batch) for batch in table.values_of("batch"))
    return {"secC1-gd-sgd": {"holds": [sgd[name] == full[name] for name in sgd]}}


def panels(table: Table) -> list[Panel]:
    """Figs V and VI of gradient descent."""
    return mlp_training.panels(table.where(batch=max(table.values_of("batch"))))


def _scale(
    net: str, images: int, batch: int, at: str, seconds: float, *, seeds: int = 3, **data: str
) -> Scale:
    steps = {"at": at, "steps": last_step(at), "images": images, "batch": [batch, images]}
    real = {"net": net, "lr": 0.1, "measured": min(images, 1024)}
    return Scale(SETTINGS | steps | real | data, seeds, seconds, tuple(data.values()))


TITLE = "Full-batch gradient descent beside SGD on the 20-layer MLP"
trial = mlp_training.trial
SMOKE = _scale(mlp(64, 5, 16), 200, 50, "0 2", 3, seeds=1)
DESK = _scale(mlp(784, 20, 256), 3000, 1024, "0 1 5 20 40", 420, data="mnist")
PAPER = _scale(mlp(784, 20, 256), 60000, 1024, "0 1 10 100 1000 6000", 1e6, data="mnist")
