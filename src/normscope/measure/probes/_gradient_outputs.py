"""Gradients at the outputs of a classifier: the favoured class, and what comes through each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.measure.probes.probe import Pass
from normscope.measure.probes.sites import Site
from normscope.results.gradients import ClassGradients, OutputGradients
from normscope.subject.batch import float_leaves
from normscope.subject.likelihoods import CrossEntropy

ClassLayer = str | int | Sequence[str | int] | None
EXAMPLES = 512  # samples whose output gradients are kept for a picture


class FavouredClass:
    """G(b, j) = softmax(z_b)_j - [j = y_b] over all samples, for every class at once."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: dict[str, Tensor] = {}
        self._others = _Moments()
        self._examples: list[Tensor] = []
        self._kept = 0

    def add(self, run: Pass) -> None:
        """Take in one batch; a loss other than cross-entropy has no such G."""
        if not isinstance(run.objective.loss, CrossEntropy) or not isinstance(run.targets, Tensor):
            return
        z = float_leaves(run.outputs)[0].detach().double()
        classes = z.shape[1]
        p = z.movedim(1, -1).reshape(-1, classes).softmax(1)
        g = p - _as_rows(run.targets, classes).to(p)
        self._count += len(g)
        self._add("probability", p.sum(0))
        self._add("predicted", torch.bincount(p.argmax(1), minlength=classes).double())
        self._add("slope", g.sum(0))
        self._add("magnitude", g.abs().sum(0))
        label = (p - g).argmax(1)
        self._others.add(g, label[:, None] != torch.arange(classes, device=g.device))
        if self._kept < EXAMPLES:
            self._examples.append(g[: EXAMPLES - self._kept].cpu())
            self._kept += len(self._examples[-1])

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def result(self) -> OutputGradients | None:
        """None if no batch had a G."""
        if not self._count:
            return None
        sums = {name: value.cpu().numpy() for name, value in self._sums.items()}
        magnitude = float(sums["magnitude"].sum())
        return OutputGradients(
            probability=sums["probability"] / self._count,
            predicted=sums["predicted"] / self._count,
            mean=self._others.mean.cpu().numpy(),
            std=self._others.std.cpu().numpy(),
            alignment=float(abs(sums["slope"]).sum()) / magnitude if magnitude else float("nan"),
            num_samples=self._count,
            examples=torch.cat(self._examples).numpy(),
        )


class _Moments:
    """Mean and variance of each column over the rows that count for it, merged."""

    def __init__(self) -> None:
        self._count = self.mean = self._squares = torch.zeros(())

    def add(self, rows: Tensor, counts: Tensor) -> None:
        """Rows (n, columns), and which entries count."""
        n = counts.sum(0).double()
        whole = n.clamp(min=1)
        mean = (rows * counts).sum(0) / whole
        squares = ((rows - mean).square() * counts).sum(0)
        total = (self._count + n).clamp(min=1)
        step = mean - self.mean
        self._squares = self._squares + squares + step.square() * self._count * n / total
        self.mean = self.mean + step * n / total
        self._count = self._count + n

    @property
    def std(self) -> Tensor:
        return (self._squares / self._count.clamp(min=1)).sqrt()


def _as_rows(targets: Tensor, classes: int) -> Tensor:
    """Labels as rows with a single 1; probabilities as they are."""
    if targets.is_floating_point():
        return targets.movedim(1, -1).reshape(-1, classes)
    return torch.nn.functional.one_hot(targets.reshape(-1).long(), classes)


class ByClass:
    """The gradients of some weights, one partial backward pass for each output.

    Args:
        layers: name or number of a layer, or several in a list or tuple; None for the middle one.
    """

    def __init__(self, layers: ClassLayer) -> None:
        self._layers: tuple[str | int | None, ...]
        if layers is None or isinstance(layers, str | int):
            self._layers = (layers,)
        else:
            self._layers = tuple(checked_list(layers, "class_layer"))
        if not self._layers:
            raise InputError("class_layer is empty: name a layer, or pass None for the middle one.")
        self._sites: list[Site] = []
        self._batches = 0
        self._mean: Any = 0.0  # (layers, classes)
        self._largest: Any = 0.0
        self._error: Any = 0.0  # (layers,)

    def add(self, run: Pass, sites: list[Site]) -> None:
        """Take in one batch; ``sites`` are the weighted layers that were reached."""
        outputs = float_leaves(run.outputs)
        if not run.objective.has_outputs or len(outputs) != 1 or outputs[0].ndim < 2:
            raise InputError(
                "quantities='classes' splits gradients by the columns of one output (samples, "
                "classes), and this loss or model has none. Leave it out, or pass a loss of "
                "outputs and targets such as 'cross_entropy'."
            )
        self._sites = self._sites or [_chosen(sites, layer) for layer in self._layers]
        names = [str(site.weight) for site in self._sites]
        slope = run.objective.loss.slope(run.outputs, run.targets).reshape(outputs[0].shape)
        wholes = [run.gradients[name] for name in names]
        sizes = [0.0 if whole is None else float(whole.double().norm()) for whole in wholes]
        rests: list[Any] = [0.0 if whole is None else -whole.double() for whole in wholes]
        shape = (len(names), slope.shape[1])
        means, largest = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        for j in range(slope.shape[1]):
            masked = torch.zeros_like(slope)
            masked[:, j] = slope[:, j]
            parts = run.pulled_back([masked], [*dict.fromkeys(names)])
            for i, name in enumerate(names):
                if (part := parts[name]) is not None:
                    rests[i] = rests[i] + part
                    means[i, j], largest[i, j] = part.abs().double().mean(), part.abs().max()
        left = [float(torch.as_tensor(rest).norm()) for rest in rests]
        errors = [rest / size if size else 0.0 for rest, size in zip(left, sizes, strict=True)]
        self._error = np.maximum(self._error, errors)
        self._batches += 1
        self._mean, self._largest = self._mean + means, self._largest + largest

    def result(self) -> tuple[ClassGradients, ...]:
        """One record per layer; none if no batch was taken in."""
        return tuple(
            ClassGradients(
                name=site.name,
                number=site.layer,
                mean_abs=(self._mean[i] / self._batches).numpy(),
                max_abs=(self._largest[i] / self._batches).numpy(),
                sum_error=float(self._error[i]),
            )
            for i, site in enumerate(self._sites)
        )


def _chosen(sites: list[Site], layer: str | int | None) -> Site:
    own = [s for s in sites if s.weight is not None]
    if not own:
        raise InputError(
            "quantities='classes' splits the gradient of a layer's weight, and the loss depends on "
            "no weight that is a parameter itself (a parametrized weight is computed from others). "
            "Leave it out."
        )
    if layer is None:
        return own[(len(own) - 1) // 2]
    for site in own:
        if layer == site.name or (layer == site.layer and not isinstance(layer, bool)):
            return site
    names = ", ".join(s.name for s in own[:4]) + (", ..." if len(own) > 4 else "")
    raise InputError(
        f"class_layer={layer!r} names no layer with a weight of its own that the loss depends "
        f"on. Such layers: {names}; their numbers will do too."
    )
