"""Training runs of ResNets as in the paper's Fig. 1, and what they leave."""

import math
from collections.abc import Mapping

import numpy as np

from normscope.data import FlipAndCrop
from normscope.experiments.bjorck2018._common import images, resnet
from normscope.experiments.observing import Panel, Panels, Table, Values, by_seed, curve
from normscope.nn import initialize, lsuv
from normscope.train import TrainingCurve, evaluate, fit

CHANCE = 0.1
LEARNS = 0.15  # training accuracy above which a network does not guess
LEVEL = 0.8  # training loss at which curvatures are compared
POINTS = 16  # of a training curve
PARTS = {"mean and variance": ["mean", "variance"], "variance": ["variance"], "mean": ["mean"]}


def trial(arm: str, rate: float, steps: int, seed: int, data: str = "cifar10", depth: int = 14,
          width: int = 8, samples: int = 5000, tests: int = 10_000, batch: int = 128,
          ghost: int = 0, half: bool = True, augment: bool = False, curved: bool = False,
          points: int = POINTS) -> Values:  # fmt: skip
    """Train one network with the paper's schedule; a diverged one is left at chance.

    The first word of ``arm`` is ``none``, ``batch``, ``top`` or ``lsuv``, or it names parts of
    batch norm; further words are labels.
    """
    seen = images(data, samples, seed, half=half)
    held = images(data, tests, 0, half=half, split="test")
    options: Values = {"parts": PARTS[arm]} if arm in PARTS else {}
    options |= {"statistics_batch": ghost} if ghost else {}
    word = arm.split(maxsplit=1)[0]
    kind = "none" if word == "lsuv" else "batch" if arm in PARTS else word
    net = resnet(depth, kind, seed, data=data, width=width, norm_options=options)
    if word == "lsuv":
        initialize(net, "orthogonal", seed=seed)
        lsuv(net, seen.images[:256], center=True)
    watch = TrainingCurve(net, seen.rows(slice(0, 1000)), held.rows(slice(0, 2000)),
                          max(steps // points, 1), level=LEVEL if curved else None)  # fmt: skip
    run = fit(net, seen, "cross_entropy", lr=rate, momentum=0.9, weight_decay=5e-4, schedule="step",
              steps=steps, batch_size=batch, drop_last=bool(ghost), seed=seed, callbacks=[watch],
              augment=FlipAndCrop() if augment else None)  # fmt: skip
    epoch = samples / batch
    count = steps // watch.every + 1
    made: Values = {"epochs": np.arange(count) * watch.every / epoch,
                    "reached": run.updates_below(1.0, round(epoch)) or steps,
                    "curvature": watch.curvature}  # fmt: skip
    for name in ("train", "test"):
        seen_so_far = getattr(watch, name)[: 0 if run.diverged else None]
        made[name] = np.array(seen_so_far + [CHANCE] * (count - len(seen_so_far)))
    if run.diverged:
        return made | {"train_loss": math.inf, "train_accuracy": CHANCE, "test_accuracy": CHANCE}
    now, other = (evaluate(net, part) for part in (seen, held))
    return made | {"train_loss": now.loss, "train_accuracy": now.accuracy,
                   "test_accuracy": other.accuracy}  # fmt: skip


def curves(table: Table, title: str, arms: Mapping[str, Values]) -> Panels:
    """Training and test accuracy over epochs, as in Fig. 1; arms may have different lengths."""
    for name, what in (("train", "training"), ("test", "test")):
        drawn = [curve(label, next(iter(by_seed(table, "epochs", arm).values())),
                       100 * np.array([*by_seed(table, name, arm).values()]).T)
                 for label, arm in arms.items()]  # fmt: skip
        yield Panel(f"{title}: {what} accuracy", "epoch", "accuracy (%)", tuple(drawn))
