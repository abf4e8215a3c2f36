"""Second moments of the signals of a network while it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.data import DataSet
from normscope.errors import InputError
from normscope.measure import activations, conditioning
from normscope.measure.probes.run import Layers
from normscope.train.run import Event

LARGEST = 1e14  # what an infinite kappa_p counts as: about what float64 resolves


class SecondMoments:
    """A callback of ``fit``: second moments of inputs and output gradients of layers, over time.

    Args:
        model: the module that is trained.
        data: its data set; its first images are the ones that are measured.
        at: numbers of updates after which to measure.
        measured: how many images the second moments are taken over.
        shares: p of the condition numbers kappa_p (Huang et al. 2020).
        counted: how many images dying and full units are counted over; 0 for none.
        layers: which layers, as in ``conditioning``; None for all.
        weights: measure largest singular values of the weights and their gradients too.

    Example:
        >>> from normscope.data import load_data
        >>> from normscope.nn import network
        >>> from normscope.train import fit
        >>> net, data = network("mlp:64-8-10"), load_data("digits").flat()
        >>> moments = SecondMoments(net, data, at=[0, 3], measured=50)
        >>> run = fit(net, data, "cross_entropy", lr=0.1, steps=3, callbacks=[moments])
        >>> moments.result()["lambda_x"].shape  # steps, layers
        (2, 2)
    """

    def __init__(
        self, model: nn.Module, data: DataSet, at: Sequence[int], measured: int,
        shares: Sequence[float] = (0.5, 0.8, 1.0), *, counted: int = 0, layers: Layers = None,
        weights: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.at, self.shares = model, list(at), shares
        kind = next(model.parameters()).dtype
        self.pair = (data.images[:measured].to(kind), data.labels[:measured])
        self.counted = (data.images[:counted].to(kind), data.labels[:counted])
        self.layers, self.weights = layers, weights
        self.kept: dict[int, dict[str, Any]] = {}

    def __call__(self, event: Event) -> None:
        """Measure, if this is one of the steps."""
        if event.kind in ("start", "step") and event.step in self.at:
            try:
                self.kept[event.step] = self.measure()
            except InputError:  # a network that diverges: its moments are not finite
                return

    def measure(self) -> dict[str, Any]:
        """All numbers of the network as it is."""
        found = conditioning(
            self.model, self.pair, "cross_entropy", batch_size=len(self.pair[1]), layers=self.layers
        )
        made: dict[str, Any] = {"trace_x": [layer.inputs.trace for layer in found]}
        for side, of in (("x", "inputs"), ("g", "gradients")):
            made[f"lambda_{side}"] = found.lambda_max(of)
            made[f"kappa_{side}"] = [np.minimum(found.kappa(p, of), LARGEST) for p in self.shares]
        if count := len(self.counted[1]):
            units = activations(self.model, self.counted, histogram=0, batch_size=count).rectified
            made["dying"] = [int(unit.dying.sum()) for unit in units]
            made["full"] = [int(unit.full.sum()) for unit in units]
        if self.weights:
            made |= self.against_weights()
        return made

    def against_weights(self) -> dict[str, Any]:
        """Largest singular values of the weights, and of their gradients over these."""
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        loss = nn.functional.cross_entropy(self.model(self.pair[0]), self.pair[1])
        slopes = torch.autograd.grad(loss, matrices)
        both = [[float(torch.linalg.matrix_norm(m.detach().flatten(1), 2)) for m in group]
                for group in (matrices, slopes)]  # fmt: skip
        return {"weight": both[0], "domination": np.divide(both[1], both[0])}

    def result(self) -> dict[str, Any]:
        """Each number with steps first; NaN for steps that were not reached."""
        first = next(iter(self.kept.values()))
        empty = {name: np.full(np.shape(value), np.nan) for name, value in first.items()}
        rows = [self.kept.get(step, empty) for step in self.at]
        return {name: np.array([row[name] for row in rows], float) for name in first}
