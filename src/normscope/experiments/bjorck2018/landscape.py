"""The loss along the gradient, on the first and on the fifth batch: Fig. 24."""

import numpy as np

import normscope as ns
from normscope.experiments.bjorck2018._common import NAMES, images, resnet
from normscope.experiments.observing import Panel, Table, Values, curve

RATES = {"none": 1e-4, "batch": 0.1}
STEPS = [0.0, *(m * 10.0**e for e in range(-6, 1) for m in (1, 3)), 10.0]
LEAST = 3e-7  # stands for no step that lowers the loss
CAP = 1e30  # stands for an overflow in a chart


def trial(norm: str, seed: int, data: str = "cifar10", width: int = 16, depth: int = 110,
          batch: int = 32) -> Values:  # fmt: skip
    """Losses along minus the gradient, before training and after four updates."""
    net = resnet(depth, norm, seed, data=data, width=width)
    drawn = images(data, 5 * batch, seed)
    batches = [(drawn.images[k : k + batch], drawn.labels[k : k + batch])
               for k in range(0, 5 * batch, batch)]  # fmt: skip
    made: Values = {}
    for name, chosen in (("first", batches[0]), ("fifth", batches[4])):
        if name == "fifth":
            ns.fit(net, batches[:4], "cross_entropy", lr=RATES[norm], momentum=0.9, steps=4,
                   seed=seed)  # fmt: skip
        found = ns.landscape(net, [chosen], "cross_entropy", distances=STEPS, layers=[1])
        made[name] = np.nan_to_num(found.loss, nan=CAP, posinf=CAP)
        made[f"{name}_decrease"] = found.largest_decrease or LEAST
    return made


def observe(table: Table) -> Values:
    """What the claims read."""
    none, batch = (table.where(norm=n) for n in NAMES)
    far = np.log10(batch("first")[:, -1] / batch("first")[:, STEPS.index(1.0)])
    gain = {f"fig24-{k}": {"values": np.log10(batch(f"{k}_decrease") / none(f"{k}_decrease"))}
            for k in ("first", "fifth")}  # fmt: skip
    return gain | {"sec3-safe-landing": {"values": far}}


def panels(table: Table) -> list[Panel]:
    """Fig. 24: the loss along the gradient."""
    return [Panel(f"Fig. 24, {which} batch", "step along minus the gradient", "loss",
                  tuple(curve(name, STEPS[1:], np.clip(table(which, norm=n).T[1:], 1e-12, CAP),
                              log=True) for n, name in NAMES.items()), log_x=True, log_y=True)
            for which in ("first", "fifth")]  # fmt: skip
