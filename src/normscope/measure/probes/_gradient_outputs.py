"""Gradients at the outputs of a classifier: the favoured class, and what comes through each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from normscope.errors import InputError
from normscope.measure.probes.probe import Pass
from normscope.measure.probes.sites import Site
from normscope.results.gradients import ClassGradients, OutputGradients
from normscope.subject.batch import float_leaves
from normscope.subject.likelihoods import CrossEntropy

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
    """The gradient of one weight, one partial backward pass for each output.

    Args:
        layer: name or number of the layer; None for the middle one.
    """

    def __init__(self, layer: str | int | None) -> None:
        self._layer = layer
        self._site: Site | None = None
        self._batches = 0
        self._mean: Any = 0.0
        self._largest: Any = 0.0
        self._error = 0.0

    def add(self, run: Pass, sites: list[Site]) -> None:
        """Take in one batch; ``sites`` are the weighted layers that were reached."""
        outputs = float_leaves(run.outputs)
        if not run.objective.has_outputs or len(outputs) != 1 or outputs[0].ndim < 2:
            raise InputError(
                "quantities='classes' splits gradients by the columns of one output (samples, "
                "classes), and this loss or model has none. Leave it out, or pass a loss of "
                "outputs and targets such as 'cross_entropy'."
            )
        site = self._site = self._site or _chosen(sites, self._layer)
        name = str(site.weight)
        slope = run.objective.loss.slope(run.outputs, run.targets).reshape(outputs[0].shape)
        whole = run.gradients[name]
        assert whole is not None
        rest = -whole.double()
        means, largest = [], []
        for j in range(slope.shape[1]):
            masked = torch.zeros_like(slope)
            masked[:, j] = slope[:, j]
            part = run.pulled_back([masked], [name])[name]
            part = torch.zeros_like(whole) if part is None else part
            rest += part
            means.append(float(part.abs().double().mean()))
            largest.append(float(part.abs().max()))
        size = float(whole.double().norm())
        self._error = max(self._error, float(rest.norm()) / size if size else 0.0)
        self._batches += 1
        self._mean = self._mean + torch.tensor(means, dtype=torch.float64)
        self._largest = self._largest + torch.tensor(largest, dtype=torch.float64)

    def result(self) -> ClassGradients | None:
        """None if no batch was taken in."""
        if self._site is None:
            return None
        return ClassGradients(
            name=self._site.name,
            number=self._site.layer,
            mean_abs=(self._mean / self._batches).numpy(),
            max_abs=(self._largest / self._batches).numpy(),
            sum_error=self._error,
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
