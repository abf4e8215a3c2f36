"""Accuracy over a training, and the curvature of networks that are compared at equal loss."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

from normscope.data import DataSet
from normscope.measure import Risk, hessian
from normscope.measure.spectral import top_eigenvalues
from normscope.train.evaluate import evaluate
from normscope.train.run import Event


class TrainingCurve:
    """A callback of ``fit``: accuracy over training, and the curvature when the loss is at a level.

    The largest eigenvalue of the Hessian of cross-entropy on the first 256 images, with running
    statistics, is taken at the two points of the curve around the level, and log10 of it
    interpolated linearly in the loss. The training run is the same as without.

    Args:
        net: the module that is trained.
        seen: images of the training set, and their loss.
        held: images of the test set.
        every: updates between two points of the curve.
        level: loss on ``seen`` at which to take the curvature; None to take none.

    Attributes:
        train: accuracy on ``seen`` at every point.
        test: accuracy on ``held`` at every point.
        curvature: log10 of the largest eigenvalue at the level; NaN if the loss did not reach it.

    Example:
        >>> from normscope.data import load_data
        >>> from normscope.nn import network
        >>> from normscope.train import fit
        >>> net, data = network("mlp:64-8-10"), load_data("digits").flat()
        >>> points = TrainingCurve(net, data, load_data("digits", "test").flat(), every=5)
        >>> run = fit(net, data, "cross_entropy", lr=0.1, steps=10, callbacks=[points])
        >>> len(points.train)
        3
    """

    def __init__(
        self, net: nn.Module, seen: DataSet, held: DataSet, every: int, *,
        level: float | None = None,
    ) -> None:  # fmt: skip
        self.net, self.seen, self.held, self.every, self.level = net, seen, held, every, level
        self.train: list[float] = []
        self.test: list[float] = []
        self.curvature = math.nan
        self._last: tuple[float, dict[str, Tensor]] = (math.inf, {})

    def __call__(self, event: Event) -> None:
        """Look at the network."""
        if event.kind not in ("start", "step") or event.step % self.every:
            return
        now, other = (evaluate(self.net, part) for part in (self.seen, self.held))
        self.train.append(now.accuracy or 0.0)
        self.test.append(other.accuracy or 0.0)
        if self.level is not None:
            state = {k: v.clone() for k, v in self.net.state_dict().items()}
            before, weights = self._last
            if now.loss <= self.level < before and math.isnan(self.curvature):
                here = self._sharpness()
                self.net.load_state_dict(weights)
                there = self._sharpness()
                self.net.load_state_dict(state)
                self.curvature = float(np.interp(self.level, [now.loss, before], [here, there]))
            self._last = now.loss, state

    def _sharpness(self) -> float:
        some = self.seen.rows(slice(0, 256))
        risk = Risk(self.net, some.images, some.labels, loss="cross_entropy", statistics="running")
        return math.log10(top_eigenvalues(hessian(risk), tol=0.02).values[0])
