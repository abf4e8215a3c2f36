"""Training runs of ResNets as in the paper's Fig. 1, and what they leave."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from normscope.data import DataSet, FlipAndCrop
from normscope.experiments.bjorck2018._common import images, resnet
from normscope.experiments.observing import Panel, Table, by_seed, curve
from normscope.measure import Risk, hessian, top_eigenvalues
from normscope.nn import initialize, lsuv
from normscope.train import Event, TrainingRun, evaluate, fit

CHANCE = 0.1
LEARNS = 0.15  # training accuracy above which a network does not guess
LEVEL = 0.8  # training loss at which curvatures are compared
POINTS = 16  # of a training curve
PARTS = {"mean and variance": ["mean", "variance"], "variance": ["variance"], "mean": ["mean"]}
SMALL: dict[str, Any] = {"data": "digits", "depth": 8, "width": 2, "samples": 64, "tests": 50,
                         "half": False}  # fmt: skip
LARGE: dict[str, Any] = {"depth": 110, "width": 16, "samples": 50_000, "half": False,
                         "augment": True}  # fmt: skip
STEPS = 391  # updates of an epoch at paper scale


class Watch:
    """Accuracy over training on some images, and the curvature when the loss is at ``LEVEL``.

    The largest eigenvalue of the Hessian, with running statistics, is taken at the two points of
    the training curve around the level, and log10 of it interpolated linearly in the loss.
    """

    def __init__(self, net: Any, seen: DataSet, held: DataSet, every: int, *, curved: bool) -> None:
        self.net, self.every, self.curved = net, every, curved
        self.seen, self.held = seen.rows(slice(0, 1000)), held.rows(slice(0, 2000))
        self.train: list[float] = []
        self.test: list[float] = []
        self.last: tuple[float, dict[str, Tensor]] = (math.inf, {})
        self.curvature = math.nan

    def __call__(self, event: Event) -> None:
        """Look at the network."""
        if event.kind not in ("start", "step") or event.step % self.every:
            return
        now, other = (evaluate(self.net, part) for part in (self.seen, self.held))
        self.train.append(now.accuracy or 0.0)
        self.test.append(other.accuracy or 0.0)
        if self.curved:
            state = {k: v.clone() for k, v in self.net.state_dict().items()}
            before, weights = self.last
            if now.loss <= LEVEL < before and math.isnan(self.curvature):
                here = self._sharpness()
                self.net.load_state_dict(weights)
                there = self._sharpness()
                self.net.load_state_dict(state)
                self.curvature = float(np.interp(LEVEL, [now.loss, before], [here, there]))
            self.last = now.loss, state

    def _sharpness(self) -> float:
        some = self.seen.rows(slice(0, 256))
        risk = Risk(self.net, some.images, some.labels, loss="cross_entropy", statistics="running")
        return math.log10(top_eigenvalues(hessian(risk), tol=0.02).values[0])


def trial(
    arm: str, rate: float, steps: int, seed: int, data: str = "cifar10", depth: int = 14,
    width: int = 8, samples: int = 5000, tests: int = 10_000, batch: int = 128, ghost: int = 0,
    half: bool = True, augment: bool = False, curved: bool = False, points: int = POINTS,
) -> dict[str, Any]:  # fmt: skip
    """Train one network with the paper's schedule; a diverged one is left at chance.

    The first word of ``arm`` is ``none``, ``batch``, ``top`` or ``lsuv``, or it names parts of
    batch norm; further words are labels.
    """
    seen = images(data, samples, seed, half=half)
    held = images(data, tests, 0, half=half, split="test")
    options: dict[str, Any] = {"parts": PARTS[arm]} if arm in PARTS else {}
    options |= {"statistics_batch": ghost} if ghost else {}
    word = arm.split(maxsplit=1)[0]
    kind = "none" if word == "lsuv" else "batch" if arm in PARTS else word
    net = resnet(depth, kind, seed, data=data, width=width, norm_options=options)
    if word == "lsuv":
        initialize(net, "orthogonal", seed=seed)
        lsuv(net, seen.images[:256], center=True)
    watch = Watch(net, seen, held, max(steps // points, 1), curved=curved)
    run = fit(
        net, seen, "cross_entropy", lr=rate, momentum=0.9, weight_decay=5e-4, schedule="step",
        steps=steps, batch_size=batch, drop_last=bool(ghost), seed=seed, callbacks=[watch],
        augment=FlipAndCrop() if augment else None,
    )  # fmt: skip
    epoch = samples / batch
    count = steps // watch.every + 1
    made: dict[str, Any] = {
        "epochs": np.arange(count) * watch.every / epoch,
        "reached": first_below(run, 1.0, round(epoch), steps), "curvature": watch.curvature,
    }  # fmt: skip
    for name in ("train", "test"):
        seen_so_far = getattr(watch, name)[: 0 if run.diverged else None]
        made[name] = np.array(seen_so_far + [CHANCE] * (count - len(seen_so_far)))
    if run.diverged:
        return made | {"train_loss": math.inf, "train_accuracy": CHANCE, "test_accuracy": CHANCE}
    now, other = (evaluate(net, part) for part in (seen, held))
    return made | {"train_loss": now.loss, "train_accuracy": now.accuracy,
                   "test_accuracy": other.accuracy}  # fmt: skip


def first_below(run: TrainingRun, level: float, window: int, steps: int) -> int:
    """Updates until the mean loss of an epoch is below a level; ``steps``, if it never is."""
    if run.diverged or len(run.losses) < window:
        return steps
    means = np.convolve(run.losses, np.full(window, 1 / window), "valid")
    return int(np.argmax(means < level)) + window if np.any(means < level) else steps


def curves(table: Table, title: str, arms: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """Training and test accuracy over epochs, as in Fig. 1; arms may have different lengths."""
    made = []
    for name, what in (("train", "training"), ("test", "test")):
        drawn = [
            curve(label, next(iter(by_seed(table, "epochs", arm).values())),
                  100 * np.array([*by_seed(table, name, arm).values()]).T)
            for label, arm in arms.items()
        ]  # fmt: skip
        made.append(Panel(f"{title}: {what} accuracy", "epoch", "accuracy (%)", tuple(drawn)))
    return made


def settings(rows: Sequence[tuple[str, float, int]], **common: Any) -> list[dict[str, Any]]:
    """Settings of arms: name, learning rate and updates."""
    return [{"arm": arm, "rate": rate, "steps": steps} | common for arm, rate, steps in rows]
