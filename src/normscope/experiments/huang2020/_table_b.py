"""Table B: networks without BN, with and without a single BN before the last layer."""

from typing import Any

import numpy as np

from normscope.experiments import observing
from normscope.experiments.huang2020._errors import trial as run
from normscope.experiments.huang2020._training import CHANCE, late_of
from normscope.experiments.huang2020.printed import DEPTHS, TABLE_B
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, paired, parts
from normscope.sweeps.panels import training_panel

NEAR = 0.01  # a loss within this of ln 10 is at chance
INIT = {"VGG": "he-fan-out", "ResNet": "lecun-uniform"}


def named(family: str, depth: int, seed: int, width: int = 16, **settings: Any) -> Values:
    """The training run of one cell of the table."""
    return run(f"{family.lower()}{depth}:width={width}", seed, init=INIT[family], **settings)


def error(run: Any) -> float:
    """Test error at the end."""
    return float(run["test"][-1])


def observe(table: Table) -> Values:
    """Gains by depth, and what the networks without that BN do with depth."""
    family = table.values_of("family")[0]
    depths, name = table.values_of("depth"), f"tableB-{family.lower()}"
    made: Values = {}
    for cell, depth in zip(DEPTHS, depths, strict=True):  # smoke runs have other depths
        arms = [{"depth": depth, "last": last} for last in (False, True)]
        made[f"{name}{cell}"] = {"values": paired(table, error, *arms)}
    bare = np.array([[run["test"][-1] for _, run in table.where(depth=d, last=False)]
                     for d in depths])  # fmt: skip
    made[f"{name}-depth"] = {"values": bare[0] - bare[-1]}
    if family == "VGG":
        stuck = {f"depth {cell} at chance": NEAR - abs(late_of(table, depth=d, last=False) - CHANCE)
                 for cell, d in [*zip(DEPTHS, depths, strict=True)][2:]}  # fmt: skip
        made[f"{name}-depth"] = parts({"slope of the error": observing.slopes(depths, bare.T)}
                                      | stuck)  # fmt: skip
        with_bn = CHANCE - NEAR - late_of(table, depth=depths[2], last=True)
        made["tableB-rescue"] = parts({"with": with_bn, "without": stuck["depth 56 at chance"]})
    return made


def panels(table: Table) -> Panels:
    """The table as a chart beside what is printed, and the training loss."""
    family, depths = table.values_of("family")[0], table.values_of("depth")
    names = {family: False, f"{family}_LastBN": True}
    lines = [curve(f"{name}, printed", DEPTHS, cells, style="dashed")
             for name, (cells, _) in zip(names, TABLE_B[family], strict=True)]  # fmt: skip
    for name, last in names.items():
        found = [100 * table("test", depth=d, last=last)[:, -1] for d in depths]
        lines.append(curve(f"{name}, measured", depths, found))
    settings = table.rows[0][0]
    places = np.linspace(0, settings["steps"], settings["moments"] + 1)
    note = "Printed errors are those of 160 epochs of whole images and 16 channels."
    yield Panel(f"Table B, {family}", "depth", "test error, %", tuple(lines), note=note)
    arms = {f"{name}, depth {d}": {"depth": d, "last": last}
            for d in depths for name, last in names.items()}  # fmt: skip
    label = "cross-entropy, mean since the last point"
    title = f"Table B, {family}: training loss"
    yield training_panel(table, title, arms, places=places, y=label)


trial = named
