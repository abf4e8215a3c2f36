"""Fig. 2c: the convolutional network on CIFAR-10."""

from __future__ import annotations

from functools import partial

from normscope.experiments.experiment import Experiment, Scale
from normscope.experiments.wei2019 import _boundary
from normscope.experiments.wei2019._boundary import GAMMAS, rows

EXPERIMENT = Experiment(
    title="Largest stable learning rate of the convolutional network on CIFAR-10",
    trial=_boundary.trial,
    scales={
        "smoke": Scale(
            rows("digits-cnn", "mse", [None, 0.1, 1.0], samples=128, steps=8)
            + rows("digits-cnn", "cross_entropy", [None, 1.0], samples=128, steps=8),
            [1], 6.0,
        ),
        "desk": Scale(
            rows("cifar-cnn", "mse", [None, *GAMMAS])
            + rows("cifar-cnn", "cross_entropy", [None, 0.1, 1.0, 3.0]),
            5, 900.0, ("cifar10",),
        ),
    },
    observe=_boundary.observe,
    panels=partial(_boundary.panels, title="Fig. 2c: CIFAR-10, convolutional"),
)  # fmt: skip
