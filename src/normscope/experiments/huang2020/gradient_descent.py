"""Section C.1: does full-batch gradient descent give the signs of SGD in Figs V and VI?"""

from __future__ import annotations

from typing import Any

import numpy as np

from normscope.experiments.experiment import Experiment, Scale, Table
from normscope.experiments.huang2020._training import trial
from normscope.experiments.huang2020.mlp_training import SETTINGS, mlp, observe, panels


def signs(table: Table, batch: int) -> dict[str, float]:
    """The sign of each observation of Figs V and VI, thresholds taken off, part by part."""
    found: dict[str, float] = {}
    for name, one in observe(table.where(batch=batch)).items():
        for part, values in one.get("parts", {"": one}).items():
            mean = np.mean(values["values"]) - values.get("threshold", 0.0)
            found[f"{name} {part}".strip()] = float(np.sign(mean))
    return found


def compared(table: Table) -> dict[str, Any]:
    """For each statement whether both methods give the same sign."""
    sgd, full = (signs(table, batch) for batch in table.values_of("batch"))
    return {"secC1-gd-sgd": {"holds": [sgd[name] == full[name] for name in sgd]}}


_COMMON = SETTINGS | {"lr": 0.1}
EXPERIMENT = Experiment(
    title="Full-batch gradient descent beside SGD on the 20-layer MLP",
    trial=trial,
    scales={
        "smoke": Scale(
            _COMMON
            | {
                "net": mlp(64, 5, 16),
                "at": "0 2",
                "steps": 2,
                "images": 200,
                "batch": [50, 200],
                "measured": 99,
            },
            1,
            3,
        ),
        "desk": Scale(
            _COMMON
            | {
                "net": mlp(784, 20, 256),
                "data": "mnist",
                "images": 3000,
                "steps": 40,
                "at": "0 1 5 20 40",
                "measured": 1024,
                "batch": [1024, 3000],
            },
            3,
            420,
            ("mnist",),
        ),
        "paper": Scale(
            _COMMON
            | {
                "net": mlp(784, 20, 256),
                "data": "mnist",
                "images": 60000,
                "steps": 6000,
                "at": "0 1 10 100 1000 6000",
                "measured": 1024,
                "batch": [1024, 60000],
            },
            3,
            1e6,
            ("mnist",),
        ),
    },
    observe=compared,
    panels=lambda table: panels(table.where(batch=max(table.values_of("batch")))),
)
