"""Running probes over data: passes, gradients, progress, and what became of each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import MeasurementError
from normscope.measure.probes._axes import positions_first
from normscope.measure.probes._listener import Listener
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.coverage import coverage_of
from normscope.measure.probes.probe import Pass, Probe
from normscope.measure.probes.sites import Selection
from normscope.measure.progress import progress
from normscope.results import Coverage
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.functional import ModelFunction
from normscope.subject.graph import Graph
from normscope.subject.interrupts import held, interruptible, safe_point
from normscope.subject.parameters import ParameterSet, every_parameter, half_precision
from normscope.subject.problem import Problem, graph_of
from normscope.subject.process import measurement
from normscope.subject.reading import Stream
from normscope.subject.statistics import check_statistics, in_words

Layers = str | int | Sequence[str | int] | None


@dataclass(frozen=True)
class Passes:
    """What was run.

    Attributes:
        coverage: the layers of each probe, in the order the probes were given.
        convention: what is measured and how, in words.
        num_batches: passes made.
        num_samples: samples in them.
        loss: mean over batches; NaN if it was not asked for.
    """

    coverage: tuple[Coverage, ...]
    convention: dict[str, str]
    num_batches: int
    num_samples: int
    loss: float

    def record(self, index: int = 0) -> dict[str, Any]:
        """What every result of probe ``index`` says of its passes."""
        return {
            "coverage": self.coverage[index],
            "num_samples": self.num_samples,
            "num_batches": self.num_batches,
            "seed": int(self.convention["seed"]),
            "convention": self.convention,
        }


@measurement
def run_probes(
    problem: Problem,
    probes: Sequence[Probe],
    num_batches: int | None = None,
    statistics: str = "batch",
    layers: Layers = None,
) -> Passes:
    """Run the model over its data once, with all ``probes`` watching the same passes.

    The model is left as it was, bit by bit, and so are the random generators.

    Args:
        problem: model, data and loss; a batch is what one training step sees.
        probes: what watches.
        num_batches: how many of the first batches; None for all.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
    """
    check_statistics(problem.model, statistics)
    selection = Selection(layers)
    passing = _Passing(problem, probes, selection, statistics)
    stream = problem.source.stream(num_batches)
    batches = iter(stream)
    with progress("batches", stream.total) as tick, contextlib.closing(batches):
        for batch in batches:
            passing.run(batch)
            tick()
    return passing.result(stream)


class _Passing:
    """One run of the probes: the function, the listener, and the totals."""

    def __init__(
        self, problem: Problem, probes: Sequence[Probe], selection: Selection, statistics: str
    ) -> None:
        self._problem, self._probes = problem, probes
        self._model, self._objective = problem.model, problem.objective
        self._selection, self._statistics = selection, statistics
        self._backward = any(probe.needs_gradients for probe in probes)
        self._listener = Listener(probes, selection)
        self._capture = Capture(self._model, self._listener)
        parameters = every_parameter(self._model)
        self.function = function_of(problem, parameters, statistics, self._call)
        self._losses: list[float] = []

    def _call(self, model: nn.Module, inputs: Any) -> Any:
        self._capture.begin_pass()
        return self._objective.run(model, inputs)

    def run(self, batch: Batch) -> None:
        """One forward pass and, if asked for, one backward pass."""
        function, listener, backward = self.function, self._listener, self._backward
        with self._guarded(batch):
            batch = function.prepared(batch)
        if not self._losses:
            self._capture.follow(graph := readable_graph(self._problem, batch))
            self._capture.learn_axes(positions_first(function, batch, graph))
        for probe in self._probes:
            probe.starting(batch)
        joined = backward or any(probe.keeps_graph for probe in self._probes)
        listener.begin(backward=joined)
        with function.open(), self._capture, torch.set_grad_enabled(joined):
            leaves = [v.detach().requires_grad_(joined) for v in function.values]
            with self._guarded(batch):
                outputs = function(leaves, batch)
            loss = self._loss(outputs, batch)
            safe_point()
            gradients = self._gradients(loss, leaves) if backward and loss is not None else []
            self._finish(batch, outputs, loss, leaves, gradients)

    def _guarded(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        how = "as loss_fn(model, batch)" if self._objective.loss_fn else "on its inputs"
        return readable_failures(self._model, batch, f"{how} in batch {len(self._losses)}")

    def _loss(self, outputs: Any, batch: Batch) -> Tensor | None:
        known = batch.targets is not None or not self._objective.has_outputs
        if not self._backward and not (self._objective.has_loss and known):
            return None
        return self.function.loss(outputs, batch)

    def _gradients(self, loss: Tensor, leaves: list[Tensor]) -> list[Tensor | None]:
        if not loss.requires_grad:
            raise MeasurementError(
                "The loss does not depend on any parameter of the model: every gradient is zero. "
                "Is the output detached?"
            )
        if not bool(loss.isfinite()):
            origin = self._listener.first_nonfinite
            where = f"The first layer with a non-finite output is {origin!r}. " if origin else ""
            raise MeasurementError(
                f"The loss of batch {len(self._losses)} is {loss.item()}, so that no gradient is "
                f"finite. {where}A diverged run, a logarithm or root of zero, or overflow are the "
                "usual causes; `activations` shows the signals up to that layer."
            )
        keep = any(probe.keeps_graph for probe in self._probes)
        return list(torch.autograd.grad(loss, leaves, retain_graph=keep, allow_unused=True))

    def _finish(
        self, batch: Batch, outputs: Any, loss: Tensor | None, leaves: list[Tensor], gradients: Any
    ) -> None:
        names = self.function.parameters.names
        value = torch.tensor(float("nan")) if loss is None else loss.detach()
        self._losses.append(float(value))
        run = Pass(
            objective=self._objective,
            function=self.function,
            batch=batch,
            model_inputs=batch.inputs if self._objective.pairs else self._capture.inputs,
            targets=self.function.targets(batch),
            outputs=outputs if self._objective.has_outputs else self._capture.outputs,
            loss=value,
            gradients=dict(zip(names, gradients, strict=True)) if gradients else {},
            weights=dict(zip(names, leaves, strict=True)),
            graph=self._capture.graph,
            _replay=self._listener.replayed,
            _spared=self._listener.spared,
        )
        self._listener.deaf = True
        with interruptible():
            for probe in self._probes:
                probe.finished(run)

    def result(self, stream: Stream) -> Passes:
        """Coverage and convention, once all batches are done."""
        self._selection.require_found(self._listener.names)
        seen = [coverage_of(self._capture, self._listener, i) for i in range(len(self._probes))]
        convention = measured_with(self.function, self._statistics, stream)
        loss = sum(self._losses) / len(self._losses)
        return Passes(tuple(seen), convention, len(stream.sizes), sum(stream.sizes), loss)


def readable_graph(problem: Problem, batch: Batch) -> Graph | None:
    """The graph of the model, or None where it cannot be read: layers are then counted."""
    try:
        with held():  # an interrupt at the end of a generator would be lost
            return graph_of(problem, batch)
    except Exception:  # what is wrong with the model or the batch shows when it is measured
        return None


def function_of(
    problem: Problem, parameters: ParameterSet, statistics: str, run: Callable[..., Any]
) -> ModelFunction:
    """The model as a function of its parameters, run by another function."""
    how = problem.model, parameters, problem.objective
    return ModelFunction(*how, statistics=statistics, seed=problem.seed, run=run)


def measured_with(function: ModelFunction, statistics: str, stream: Stream) -> dict[str, str]:
    """What a probe measures and how, in words."""
    half = half_precision(function.model)
    return {
        "loss": function.objective.loss.description,
        "parameters": function.parameters.description,
        "statistics": in_words(function.model, statistics),
        **stream.convention,
        "precision": str(function.parameters.dtype).removeprefix("torch.")
        + (f" (the model is in {half})" if half else ""),
        "seed": str(function.seed),
    }
