"""Highest rates at which networks learn, and what they reach there: Secs 2, 5, App. H.

Stand-ins: ResNet-32 of width 8, 5000 images of 16 x 16 pixels, batches of 32, equal numbers of
updates in all arms.
"""

import math

import numpy as np

from normscope.experiments.bjorck2018 import _runs as runs
from normscope.experiments.observing import Array, Panel, Table, Values, curve, parts

RATES = {"none": (0.1, 0.03, 0.01, 0.003), "lsuv": (0.1, 0.03, 0.01, 0.003),
         "batch": (1.0, 0.1, 0.03, 0.01, 0.003)}  # fmt: skip
NAMES = {"none": "no norm, Xavier", "lsuv": "no norm, LSUV", "batch": "batch norm"}


def learned(table: Table, arm: str) -> tuple[list[float], Array]:
    """The rates of an arm, falling, and whether each network learns at them, (rates, seeds)."""
    found = sorted(table.where(arm=arm).values_of("rate"), reverse=True)
    return found, np.array([table("train_accuracy", arm=arm, rate=r) > runs.LEARNS for r in found])


def own(table: Table, arm: str, most: float = math.inf) -> tuple[float, float]:
    """The highest rate up to ``most`` at which all networks of an arm learn, and the next lower."""
    found, ok = learned(table, arm)
    good = [r for r, row in zip(found, ok, strict=True) if row.all() and r <= most]
    lower = [r for r in found if good and r < good[0]]
    return (good or [math.nan])[0], (lower or [math.nan])[0]


def highest(table: Table, arm: str) -> Array:
    """log10 of the highest rate at which each network learns; a step below the grid if at none."""
    found, ok = learned(table, arm)
    places = np.log10([*found, found[-1] / 3])
    return np.asarray(places[np.argmax(np.vstack([ok, np.ones_like(ok[:1])]), axis=0)])


def observe(table: Table) -> Values:
    """What the claims read."""

    def accuracy(arm: str, rate: float) -> Array:
        known = not math.isnan(rate) and table.where(arm=arm, rate=rate).rows
        return table("test_accuracy", arm=arm, rate=rate) if known else np.full(seeds, math.nan)

    def gain(arm: str) -> Array:
        best, lower = own(table, arm, 0.1)
        return accuracy(arm, best) - accuracy(arm, lower)

    seeds = len(table.where(arm="none", rate=0.1).rows)
    mine, their = own(table, "none")[0], own(table, "lsuv")[0]
    none, high = accuracy("none", mine), accuracy("batch", 0.1)
    return {"sec2-lr-lower": {"values": highest(table, "batch") - highest(table, "none")},
            "fig1-own-rate": {"values": accuracy("batch", mine) - (none + high) / 2},
            "appH-highest-best": parts({NAMES[arm]: gain(arm) for arm in ("none", "batch")}),
            "appH-beyond": {"values": accuracy("batch", 1.0) - high},
            "sec5-lsuv": parts({"highest rate": highest(table, "lsuv") - highest(table, "none"),
                                "two thirds of the gain": accuracy("lsuv", their) - none - 2 / 3 * (
                                    high - none)})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Accuracy by learning rate."""
    drawn = [curve(label, rates, [100 * table("test_accuracy", arm=arm, rate=r) for r in rates])
             for arm, label in NAMES.items() for rates in [sorted(RATES[arm])]]  # fmt: skip
    return [Panel("App. H: accuracy by learning rate", "learning rate", "test accuracy (%)",
                  tuple(drawn), log_x=True, note="10 % where a network diverged.")]  # fmt: skip


trial = runs.trial
