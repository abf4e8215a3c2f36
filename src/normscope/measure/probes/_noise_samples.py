"""Gradients of single samples: their sum, and their squared lengths layer by layer.

Where every parameter sits in a layer of known form, the squared lengths follow from what went into
the layer and the slope of what came out, for a whole batch at once; otherwise from one backward
pass per sample. The first is used only after it agreed with the second.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import MeasurementError
from normscope.measure.probes._noise_groups import GROUPS
from normscope.measure.probes._noise_layers import ParameterLayers
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.run import function_of
from normscope.measure.probes.taps import Names, Tap, Taps
from normscope.seeds import child_seed
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.functional import ModelFunction
from normscope.subject.problem import Problem
from normscope.subject.statistics import coupling_layers

PART = 64  # samples in one pass: bounds the memory
TESTED = 4  # samples that prove that a batch is the mean of its samples


class Gradients:
    """The gradient of the loss of any batch, and of every sample of it.

    Attributes:
        function: the model as a function of its parameters.
        coupling: why the gradient of one sample is not defined; empty if it is.
        by_sample: one backward pass per sample.
        random: a pass draws random numbers, as dropout does.
    """

    def __init__(self, problem: Problem, layers: ParameterLayers, *, statistics: str) -> None:
        self._model, self._objective = problem.model, problem.objective
        self._layers, self._seed = layers, problem.seed
        self._taps = Taps(self._model, set(layers.parameters.names))
        self._capture = Capture(self._model, self._taps)
        self._quiet = False  # dropout off, for proofs
        self._passes = 0
        self._summed = problem.objective.loss.summed
        self.by_sample = self.random = self._proved = False
        self.coupling = ""
        self.function = function_of(problem, layers.parameters, statistics, self._call)

    def _call(self, model: nn.Module, inputs: Any) -> Any:
        if self._quiet:
            _drop_nothing(model)
        self._capture.begin_pass()
        return self._objective.run(model, inputs)

    def prepared(self, batch: Batch) -> Batch:
        """``batch`` with the constants of frozen statistics."""
        with self.guarded(batch):
            return self.function.prepared(batch)

    def guarded(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """A context whose errors say that the model cannot be run on ``batch``."""
        return readable_failures(self._model, batch, "on its data")

    # ---- one batch as a whole

    def of_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The gradient of the loss of a batch, flat, and its squared length in each layer."""
        loss, gradient = self._gradient(self._fresh(), batch)
        self._require_finite(loss, gradient, batch)
        return gradient, self._squares(gradient)

    def _gradient(self, function: ModelFunction, batch: Batch) -> tuple[Tensor, Tensor]:
        with function.open():
            leaves, outputs = function.with_graph(batch)
            with torch.enable_grad():
                loss = function.loss(outputs, batch)
            return function.loss_gradient(leaves, loss)

    def _fresh(self) -> ModelFunction:
        """The function with random numbers of its own for each pass, if it draws any."""
        self._passes += 1
        if not self.random:
            return self.function
        return self.function.reseeded(child_seed(self._seed, "pass", self._passes))

    def _squares(self, gradient: Tensor) -> Tensor:
        squares = [[gradient[p].double().square().sum() for p in ps] for ps in self._layers.slices]
        return torch.stack([torch.stack(layer).sum() for layer in squares])

    def _require_finite(self, loss: Tensor, gradient: Tensor, batch: Batch) -> None:
        if not bool(loss.isfinite()):
            origin = self.function.first_nonfinite(batch)
            where = f" The first layer with a non-finite output is {origin}." if origin else ""
            raise MeasurementError(
                f"The loss of a batch is {float(loss)}, so that its gradient is not defined.{where}"
            )
        self._layers.parameters.require_finite(gradient, "The gradient of the loss")

    # ---- are the samples independent?

    def examine(self, batch: Batch) -> None:
        """Find out on a few samples of ``batch`` whether its gradient is the mean of theirs."""
        self.random = self._draws(batch)
        if self.function.coupled:
            layers = coupling_layers(self._model)
            name, layer = next(iter(layers.items()))
            verb = f"and {len(layers) - 1} more normalize" if len(layers) > 1 else "normalizes"
            self.coupling = f"{type(layer).__name__} {name!r} {verb} by the statistics of the batch"
        elif batch.size > 1:
            self._quiet = True
            self.coupling = self._coupling(batch.part(0, min(TESTED, batch.size)))
            self._quiet = False

    def _draws(self, batch: Batch) -> bool:
        try:
            return self.function.draws(batch.part(0, min(TESTED, batch.size)))
        except (RuntimeError, ValueError, IndexError):  # only whole batches fit this model
            return self.function.draws(batch)

    def _coupling(self, batch: Batch) -> str:
        half = batch.size // 2
        pieces = [batch.part(0, half), batch.part(half, batch.size)]
        _, whole = self._gradient(self.function, batch)
        try:
            parts = [self._gradient(self.function, piece)[1] * piece.size for piece in pieces]
        except (RuntimeError, ValueError, IndexError) as error:
            return f"a part of a batch cannot be run alone ({type(error).__name__}: {error})"
        total = parts[0] + parts[1]
        if _close(whole, total / batch.size):
            self._summed = False
            return ""
        plain = sum(part / piece.size for part, piece in zip(parts, pieces, strict=True))
        if isinstance(plain, Tensor) and _close(whole, plain):
            self._summed = True
            return ""
        return (
            "the gradient of a batch is not the mean of the gradients of its samples: they are "
            "coupled in the model or in the loss, or the model draws random numbers by itself"
        )

    # ---- samples

    def of_samples(self, part: Batch) -> tuple[Tensor, Tensor]:
        """Sum of the gradients of the samples, flat, and of their squared lengths by layer."""
        if not self.by_sample:
            found = self._by_layer(self._fresh(), part)
            if found is not None and self._agrees(part):
                return found[0], found[1].sum(0)
            self.by_sample = True
        total, squares = self.of_batch(part.part(0, 1))
        for i in range(1, part.size):
            gradient, lengths = self.of_batch(part.part(i, i + 1))
            total, squares = total.add_(gradient), squares + lengths
        return total, squares

    def _agrees(self, part: Batch) -> bool:
        """Once: the squared lengths of the last sample, with the others and alone."""
        if self._proved or part.size < 2:
            return True
        self._quiet = True
        found = self._by_layer(self.function, part)
        alone = self._gradient(self.function, part.part(part.size - 1, part.size))[1]
        self._quiet = False
        self._proved = found is not None and _close(self._squares(alone), found[1][-1], loose=True)
        return self._proved

    def _by_layer(self, function: ModelFunction, part: Batch) -> tuple[Tensor, Tensor] | None:
        """Sum of gradients, and squared lengths (samples, layers); None if a layer is unknown."""
        self._taps.begin(part.size)
        with function.open(), self._capture:
            leaves, outputs = function.with_graph(part)
            with torch.enable_grad():
                loss = function.loss(outputs, part)
                total = loss if self._summed else part.size * loss
            taps = self._taps.found
            offsets = [tap.offset for tap in taps]
            found = torch.autograd.grad(total, [*leaves, *offsets], allow_unused=True)
        gradient = self._layers.parameters.join(found[: len(leaves)], like=self.function.values[0])
        self._require_finite(loss.detach(), gradient, part)
        names = self._layers.parameters.names
        grads = dict(zip(names, found[: len(leaves)], strict=True))
        rows = _Rows(part.size, grads)
        for tap, delta in zip(taps, found[len(leaves) :], strict=True):
            rows.add(tap, torch.zeros_like(tap.offset) if delta is None else delta)
        if not rows.complete():
            return None
        return gradient, self._lengths(rows)

    def _lengths(self, rows: _Rows) -> Tensor:
        """Squared lengths of the samples' gradients, (samples, layers)."""
        starts = {s.start: name for name, s in self._layers.parameters.slices.items()}
        columns = []
        for pieces in self._layers.slices:
            names = [starts[piece.start] for piece in pieces]
            groups = {rows.group[name] for name in names if name in rows.group}
            column = torch.zeros(rows.size, dtype=torch.float64)
            columns.append(column + sum(rows.lengths(group).cpu() for group in sorted(groups)))
        return torch.stack(columns, 1)


class _Rows:
    """Squared lengths of per-sample gradients, by groups of parameters, from the taps of a pass."""

    def __init__(self, size: int, grads: Mapping[str, Tensor | None]) -> None:
        self.size = size
        self._grads = grads
        self.group: dict[str, Names] = {}
        self._factors: dict[Names, list[tuple[Tensor | None, Tensor]]] = {}
        self._tables: dict[Names, Tensor] = {}

    def add(self, tap: Tap, delta: Tensor) -> None:
        """Take in one use of one layer."""
        for names, pair in tap.factors(delta).items():
            self._factors.setdefault(names, []).append(tap.stored(*pair))
            self.group.update(dict.fromkeys(names, names))

    def complete(self) -> bool:
        """Whether the uses seen make up the whole gradient of every parameter."""
        needed = [name for name, grad in self._grads.items() if grad is not None]
        owners = Counter(name for names in self._factors for name in names)
        return all(owners[name] == 1 for name in needed) and all(
            _close(self._whole(names), self._sum(names)) for names in self._factors
        )

    def _whole(self, names: Names) -> Tensor:
        """The gradient of a group as autograd gives it; a bias is the last column."""
        found = (self._grads[name] for name in names)
        grads = [grad for grad in found if grad is not None]
        if len(grads) < len(names):  # what was seen does not lead to the loss
            return torch.zeros_like(self._sum(names))
        if len(grads) == 1:
            return grads[0].reshape(-1)
        return torch.cat([grad.reshape(len(grad), -1) for grad in grads], 1).reshape(-1)

    def _sum(self, names: Names) -> Tensor:
        """The same from what the taps saw, over all samples and positions."""
        if self._is_short(names):
            [(x, d)] = self._factors[names]
            assert x is not None
            return (d.flatten(0, 1).T @ x.flatten(0, 1)).reshape(-1)
        return self._table(names).sum(0)

    def lengths(self, names: Names) -> Tensor:
        """Squared lengths, (samples,) float64."""
        if self._is_short(names):
            [(x, d)] = self._factors[names]
            assert x is not None
            return _short_lengths(x, d)
        return self._table(names).double().square().sum(1)

    def _is_short(self, names: Names) -> bool:
        """Whether inner products over pairs of positions are less work than the gradients."""
        uses = self._factors[names]
        if len(uses) > 1 or uses[0][0] is None:
            return False
        x, d = uses[0][0], uses[0][1]
        positions, size_in, size_out = x.shape[1], x.shape[2], d.shape[2]
        return positions == 1 or positions * (size_in + size_out) < size_in * size_out

    def _table(self, names: Names) -> Tensor:
        """The gradients themselves, (samples, entries), summed over the uses of the layer."""
        if names not in self._tables:
            uses = self._factors[names]
            rows = [d.sum(1) if x is None else (d.mT @ x).flatten(1) for x, d in uses]
            self._tables[names] = rows[0] if len(rows) == 1 else torch.stack(rows).sum(0)
        return self._tables[names]


def _short_lengths(x: Tensor, d: Tensor) -> Tensor:
    """|sum over positions of d x^T|^2 of every sample."""
    if x.shape[1] == 1:
        return x[:, 0].double().square().sum(1) * d[:, 0].double().square().sum(1)
    return ((x @ x.mT).double() * (d @ d.mT).double()).sum((1, 2))


def parts_of(batch: Batch, *, groups: bool) -> Iterator[Batch]:
    """Pieces of about equal size that fit into memory, enough for all groups if asked."""
    count = -(-batch.size // PART)
    if groups:
        count = min(batch.size, GROUPS * -(-batch.size // (GROUPS * PART)))
    edges = [round(i * batch.size / count) for i in range(count + 1)]
    for start, stop in itertools.pairwise(edges):
        yield batch.part(start, stop)


def _drop_nothing(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd | nn.MultiheadAttention | nn.RNNBase):
            module.training = False


def _close(a: Tensor, b: Tensor, *, loose: bool = False) -> bool:
    tolerance = torch.finfo(torch.float32 if loose else a.dtype).eps ** 0.6
    return bool((a - b).norm() <= tolerance * torch.maximum(a.norm(), b.norm()) + 1e-30)
