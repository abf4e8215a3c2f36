"""Figure XII: a 16-layer VGG with BN whose low groups of three convolutions are frozen."""

import numpy as np
from scipy import stats

from normscope.experiments.huang2020 import _errors as runs
from normscope.experiments.observing import Panels, Table, Values, by_seed, paired, parts
from normscope.sweeps.panels import training_panel

FREEZE = {  # the paper's names: a digit for each group from the input on, 0 is frozen
    "00001": "group[1234].layer*", "00011": "group[123].layer*", "00111": "group[12].layer*",
    "01111": "group1.layer*", "11111": ""}  # fmt: skip
GROUPS = [*FREEZE.values()]
ARMS = {name: {"freeze": glob} for name, glob in FREEZE.items()}
MOST, NONE = ARMS["00001"], ARMS["11111"]


def observe(table: Table) -> Values:
    """Losses of the arms and their order; errors with most groups frozen and with none."""
    late = np.array([[*by_seed(table, "late", arm).values()] for arm in ARMS.values()])
    tau = [stats.kendalltau(range(len(ARMS)), -row).statistic for row in late.T]
    fallen = {name: [run["losses"][0] - run["late"] for _, run in table.where(**arm)]
              for name, arm in ARMS.items()}  # fmt: skip
    ends = paired(table, "late", MOST, NONE, log10=True)
    return {
        "fig12-a": parts(fallen),
        "fig12-a-order": parts({"00001 against 11111": ends, "Kendall's tau": tau}),
        "fig12-b": {"values": paired(table, lambda run: run["training"][-1], MOST, NONE)},
        "fig12-c": {"values": paired(table, lambda run: run["test"][-1], MOST, NONE)}}  # fmt: skip


def panels(table: Table) -> Panels:
    """Loss, training error and test error over training, as in the paper."""
    settings = table.rows[0][0]
    places = np.linspace(0, settings["steps"], settings["moments"] + 1)
    note = "A digit for each group of three convolutions from the input on; 0 is frozen."
    yield training_panel(table, "Fig. XII (a): training loss", ARMS, places=places, log=True,
                         y="cross-entropy, mean since the last point", note=note)  # fmt: skip
    for letter, name in (("b", "training"), ("c", "test")):
        title = f"Fig. XII ({letter}): {name} error"
        yield training_panel(table, title, ARMS, name, places=places, y="error, share of 1")


trial = runs.trial
