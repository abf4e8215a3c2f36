"""Figure VII: the 20-layer MLP under Adam, Plain and BN."""

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Array, Panel, Table, Values, parts

RATES = (1e-3, 5e-4, 1e-4)
SGD: Values = {"optimizer": "sgd", "norm": "none"}


def best(table: Table) -> dict[str, Values]:
    """For each norm the arm with the learning rate of the lowest training loss."""
    arms = {}
    for norm in runs.NORMS:
        own = [{"optimizer": "adam", "norm": norm, "lr": lr} for lr in RATES]
        arms[norm] = min(own, key=lambda arm: float(runs.late_of(table, **arm).mean()))
    return arms


def rise(table: Table, name: str, **arm: object) -> Array:
    """Decades by which the smallest lambda_max of all layers rises in training."""
    values = np.log10(table(name, **arm)).min(-1)
    return np.asarray(values[:, -1] - values[:, 0])


def observe(table: Table) -> Values:
    """Observations of Fig. VII."""
    arms = best(table)
    made: Values = {}
    for name, moment in zip(("fig7-a", "fig7-b"), runs.MOMENTS, strict=True):
        made[name] = {"values": rise(table, moment, **arms["none"]) - rise(table, moment, **SGD)}
    late = [runs.late_of(table, **arm) for arm in arms.values()]
    losses = [table("losses", **arm) for arm in arms.values()]
    spread = [np.log10(v[:, -v.shape[1] // 4 :]).std(1) for v in losses]
    made["fig7-stability"] = parts({"loss": late[0] - late[1], "spread": spread[0] - spread[1]})
    kappas: Values = {}
    for name, words in (("kappa_x", "inputs"), ("kappa_g", "gradients")):
        found = runs.kappa_parts(table, name, (0.5, 0.8), *arms.values())["parts"]
        kappas |= {f"{words}, {step}": part for step, part in found.items()}
    return made | {
        "fig7-conditioning": parts(kappas),
        "fig7-protocol": {"holds": [arm["lr"] in RATES for arm in arms.values()]}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Fig. VII, each network at its best rate, with SGD for comparison."""
    arms = {f"{runs.NORMS[norm]}, Adam at {arm['lr']:g}": arm for norm, arm in best(table).items()}
    by_layer = runs.layer_panels(table, "Fig. VII", arms | {"Plain, SGD": SGD}, runs.LABELS)
    return [*by_layer, *runs.step_panels(table, "Fig. VII", arms, 0.5)]


NET, trial = runs.NET, runs.trial
