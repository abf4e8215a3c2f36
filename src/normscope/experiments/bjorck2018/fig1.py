"""Learning rate and generalization: Figs 1, 15, 16, the right of 17, Sec. 2.

Stand-ins of ResNet-110: ResNet-14 of width 8, 5000 images of 16 x 16 pixels, no augmentation. The
lower the rate, the more updates, as in the paper.
"""

import numpy as np

from normscope.experiments.bjorck2018 import _runs as runs
from normscope.experiments.observing import Panels, Table, Values, arm_bars, parts

LABELS = {"none": "no norm, low rate", "batch low": "batch norm, low rate",
          "batch middle": "batch norm, middle rate", "batch": "batch norm, 0.1"}  # fmt: skip


def observe(table: Table) -> Values:
    """What the claims read."""
    arms = table.values_of("arm")
    test, train, loss, steps, sharp = (
        {arm: table(name, arm=arm) for arm in arms}
        for name in ("test_accuracy", "train_accuracy", "train_loss", "reached", "curvature")
    )
    none, low, middle, high = (test[a] for a in LABELS)
    gap = {arm: train[arm] - test[arm] for arm in arms}
    both, affine = test["mean and variance"] - none, high - test["mean and variance"]
    return {
        "fig1-low-lr-no-better": {"values": low - (none + high) / 2},
        "fig1-overfit": {"values": loss["batch low"] - loss["none"]},
        "fig1-high-lr-best": parts({f"against {LABELS[a]}": high - test[a] for a in arms[:3]}),
        "fig1-between": parts({"above low": middle - low, "below 0.1": high - middle}),
        "fig1-gap": {"values": gap["batch low"] - gap["batch"]},
        "fig1-faster": {"values": np.log10(steps["none"] / steps["batch"])},
        "sec2-wide-minima": parts({
            "low against 0.1": sharp["batch low"] - sharp["batch"],
            "middle against 0.1": sharp["batch middle"] - sharp["batch"]}),
        "fig15": {"values": train["top"] - (train["none"] + train["batch"]) / 2},
        "fig16": {"values": test["top"] - none - 2 / 3 * (high - none)},
        "sec4-affine": parts({"loss by removal": both - affine, "gain by removal": both + affine}),
        "fig17-right": parts({
            f"{a} against {b}": test[a] - test[b] for a, b in (
                ("mean and variance", "variance"), ("mean and variance", "mean"),
                ("variance", "none"), ("mean", "none"))})}  # fmt: skip


def panels(table: Table) -> Panels:
    """Figs 1, 15, 16 and 17, and the curvature at equal training loss."""
    arms = {label: {"arm": arm} for arm, label in LABELS.items()}
    named = {a: {"arm": a} for a in ("mean and variance", "variance", "mean")}
    full, none = {"all of batch norm": {"arm": "batch"}}, {"no norm": {"arm": "none"}}
    with_norm = {k: v for k, v in arms.items() if v["arm"] != "none"}
    yield from runs.curves(table, "Fig. 1", arms)
    yield from runs.curves(table, "Figs 15, 16", full | {"on top only": {"arm": "top"}} | none)
    yield from runs.curves(table, "Fig. 17", full | named | none)
    if all(np.isfinite(table("curvature", **arm)).all() for arm in with_norm.values()):
        yield arm_bars(table, "Sec. 2.1: width of minima at equal training loss",
                       with_norm, lambda run: 10 ** run["curvature"],
                       "largest eigenvalue of the Hessian", log=True)  # fmt: skip


trial = runs.trial
