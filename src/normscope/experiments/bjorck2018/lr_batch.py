"""Whether learning rate and batch size play the same role: Sec. 2.1.

The network of Fig. 1 with equal numbers of epochs. Statistics are those of 16 images in all arms,
since the noise of batch norm itself depends on the number.
"""

from normscope.experiments.bjorck2018 import _runs as runs
from normscope.experiments.observing import Panel, Table, Values, arm_bars, parts

PAIRS = [(0.1, 128), (0.025, 32), (0.0125, 16), (0.0125, 128)]  # the last is the contrast
ARMS = {f"rate {r:g}, batch {b}": {"rate": r, "batch": b} for r, b in PAIRS}


def observe(table: Table) -> Values:
    """What the claim reads: differences within half the contrast, on both sides."""
    first, *equal, contrast = (table("test_accuracy", **arm) for arm in ARMS.values())
    half, found = (first - contrast) / 2, {}
    for (_, batch), other in zip(PAIRS[1:3], equal, strict=True):
        found[f"batch {batch}, not worse"] = half + other - first
        found[f"batch {batch}, not better"] = half - other + first
    noise = {f"batch {b}": a - contrast for (_, b), a in zip(PAIRS, (first, *equal), strict=False)}
    return {"sec2-lr-batch": parts(found), "sec2-lr-batch-noise": parts(noise)}


def panels(table: Table) -> list[Panel]:
    """Accuracy of the arms."""
    bars = arm_bars(table, "Sec. 2.1: equal rate over batch size",
                    ARMS, lambda run: 100 * run["test_accuracy"], "test accuracy (%)",
                    x="arm")  # fmt: skip
    return [bars, *runs.curves(table, "Sec. 2.1", ARMS)]


trial = runs.trial
