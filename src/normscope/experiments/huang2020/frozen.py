"""Section C.2: freezing the low layers of a five-layer MLP with BN."""

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Panel, Table, Values, curve, parts, slopes

FREEZE = ["", "layer1", "layer[12]", "layer[123]", "layer[1234]"]


def observe(table: Table) -> Values:
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


trial = runs.trial
