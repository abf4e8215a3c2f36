"""Section C.2: freezing the low layers of a five-layer MLP with BN."""

from typing import Any

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.huang2020.mlp_training import mlp
from normscope.experiments.observing import Panel, Scale, Table, curve, parts, slopes

FREEZE = ["", "layer1", "layer[12]", "layer[123]", "layer[1234]"]


def observe(table: Table) -> dict[str, Any]:
    """Late loss against the number of frozen layers."""
    late = np.array([runs.late_of(table, freeze=name) for name in FREEZE]).T
    found = {"slope": slopes(range(len(FREEZE)), late),
             "four against none": late[:, -1] - late[:, 0]}  # fmt: skip
    return {"secC2-mlp": parts(found)}


def panels(table: Table) -> list[Panel]:
    """The loss over training, and at its end."""
    arms = {f"{k} frozen": {"freeze": name} for k, name in enumerate(FREEZE)}
    ends = curve("BN", range(len(FREEZE)), [runs.late_of(table, freeze=name) for name in FREEZE])
    label = "cross-entropy, last tenth of training"
    shown = Panel("Sec. C.2: frozen layers", "frozen layers, from the input on", label, (ends,))
    return [shown, runs.loss_panel(table, "Sec. C.2, five-layer MLP", arms)]


_BN = {"freeze": FREEZE, "norm": "batch"}
_MNIST = {"net": mlp(784, 5, 100), "data": "mnist", "steps": 300, "batch": 128}
TITLE = "A five-layer MLP with BN whose low layers are frozen"
trial = runs.trial
SMOKE = Scale(_BN | {"net": mlp(64, 5, 16), "steps": 10, "measured": 64}, 1, 2)
DESK = Scale(_BN | _MNIST, 5, 80, ("mnist",))
