"""Running probes over data: passes, gradients, progress, and what became of each layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError
from normscope.measure.probes._failures import readable_failures
from normscope.measure.probes._listener import Listener
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.coverage import coverage_of
from normscope.measure.probes.probe import Pass, Probe
from normscope.measure.probes.sites import Selection, Site
from normscope.measure.progress import progress
from normscope.measure.risk import check_model
from normscope.results import Coverage
from normscope.seeds import checked_seed
from normscope.subject.batch import Batch, call_arguments
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import interruptible, safe_point
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.parameters import ParameterSet, computed_dtype
from normscope.subject.process import measurement
from normscope.subject.session import original_module
from normscope.subject.statistics import check_statistics, in_words
from normscope.subject.stream import as_stream
from normscope.subject.task import Task, as_task

__all__ = ["Passes", "every_parameter", "run_probes"]

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


@measurement
def run_probes(
    model: nn.Module,
    data: Any,
    loss: Any,
    probes: Sequence[Probe],
    *,
    statistics: str = "batch",
    layers: Layers = None,
    seed: int = 0,
) -> Passes:
    """Run ``model`` over ``data`` once, with all ``probes`` watching the same passes.

    The model is left as it was, bit by bit, and so are the random generators.

    Args:
        model: any module.
        data: a loader, a pair (inputs, targets), a ``DataSet`` or the name of one; a batch of a
            loader is what one training step sees.
        loss: ``"cross_entropy"``, ``"mse"``, a torch loss, ``loss(outputs, targets)`` or
            ``loss_fn(model, batch)``; see :func:`normscope.subject.task.as_task`. None will do
            for probes that need no gradients.
        probes: what watches.
        statistics: what batch norm does: ``"batch"``, ``"running"`` or ``"frozen"``.
        layers: which layers; None for all, or names, globs, numbers from 1.
        seed: of dropout, and of the order of a data set.
    """
    check_model(model)
    model = original_module(model)
    check_statistics(model, statistics)
    backward = any(probe.needs_gradients for probe in probes)
    task = None if loss is None and not backward else as_task(loss)
    selection = Selection(layers)
    passing = _Passing(model, task, probes, selection, statistics, checked_seed(seed))
    stream = as_stream(
        data,
        split=task is None or task.has_outputs,
        one_hot=task is not None and isinstance(task.loss, SquaredLoss),
        dtype=passing.function.parameters.dtype,
        seed=seed,
    )
    drawn = contextlib.closing(stream.batches(passing.function.device))
    with progress("batches", stream.total) as tick, drawn as batches:
        for batch in batches:
            passing.run(batch, backward=backward)
            tick()
    return passing.result()


class _Passing:
    """One run of the probes: the function, the listener, and the totals."""

    def __init__(
        self,
        model: nn.Module,
        task: Task | None,
        probes: Sequence[Probe],
        selection: Selection,
        statistics: str,
        seed: int,
    ) -> None:
        self._model = model
        self._task = task
        self._probes = probes
        self._selection = selection
        self._statistics = statistics
        self._seed = seed
        self._listener = Listener(probes, selection)
        self._capture = Capture(model, self._listener)
        self.function = ModelFunction(
            model, every_parameter(model), statistics=statistics, seed=seed, run=self._call
        )
        self._batches = self._samples = 0
        self._losses: list[float] = []

    def _call(self, model: nn.Module, inputs: Any) -> Any:
        self._capture.begin_pass()
        if self._task is not None and self._task.run is not None:
            return self._task.run(model, inputs)
        args, kwargs = call_arguments(model, inputs)
        return model(*args, **kwargs)

    def run(self, batch: Batch, *, backward: bool) -> None:
        """One forward pass and, if asked for, one backward pass."""
        function, listener = self.function, self._listener
        with self._guarded(batch):
            batch = function.prepared(batch)
        for probe in self._probes:
            probe.starting(batch)
        graph = backward or any(probe.keeps_graph for probe in self._probes)
        listener.begin(backward=graph)
        with function.open(), self._capture, torch.set_grad_enabled(graph):
            leaves = [v.detach().requires_grad_(graph) for v in function.values]
            with self._guarded(batch):
                outputs = function(leaves, batch)
            loss = self._loss(outputs, batch)
            safe_point()
            gradients = self._gradients(loss, leaves) if backward and loss is not None else []
            self._finish(batch, outputs, loss, leaves, gradients)
        self._batches += 1
        self._samples += batch.size

    def _guarded(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        own = self._task is not None and self._task.run is not None
        how = "as loss_fn(model, batch)" if own else "on its inputs"
        return readable_failures(self.function, batch, f"{how} in batch {self._batches}")

    def _loss(self, outputs: Any, batch: Batch) -> Tensor | None:
        if self._task is None:
            return None
        if self._task.has_outputs and batch.targets is None:
            if any(probe.needs_gradients for probe in self._probes):
                raise InputError(
                    "Gradients need targets, and the data has none. Pass (inputs, targets), or "
                    "a loss_fn(model, batch) that finds them in the batch."
                )
            return None
        targets = self.function.targets(batch)
        self._task.loss.check(outputs, targets)
        return self._task.loss.value(outputs, targets)

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
                f"The loss of batch {self._batches} is {loss.item()}, so that no gradient is "
                f"finite. {where}A diverged run, a logarithm or root of zero, or overflow are the "
                "usual causes; `activations` shows the signals up to that layer."
            )
        keep = any(probe.keeps_graph for probe in self._probes)
        return list(torch.autograd.grad(loss, leaves, retain_graph=keep, allow_unused=True))

    def _finish(
        self,
        batch: Batch,
        outputs: Any,
        loss: Tensor | None,
        leaves: list[Tensor],
        gradients: list[Tensor | None],
    ) -> None:
        names = self.function.parameters.names
        known = self._task is not None and self._task.has_outputs
        value = torch.tensor(float("nan")) if loss is None else loss.detach()
        self._losses.append(float(value))
        run = Pass(
            task=self._task or as_task("mse"),
            function=self.function,
            batch=batch,
            targets=self.function.targets(batch),
            outputs=outputs if known or self._task is None else self._capture.outputs,
            loss=value,
            gradients=dict(zip(names, gradients, strict=True)) if gradients else {},
            weights=dict(zip(names, leaves, strict=True)),
            _quietly=self._quietly,
            _replay=self._replay,
            _spared=self._listener.spared,
        )
        self._listener.deaf = True
        with interruptible():
            for probe in self._probes:
                probe.finished(run)

    def _quietly(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], slopes: Sequence[Tensor]
    ) -> Any:
        return torch.autograd.grad(
            list(outputs), list(inputs), list(slopes), retain_graph=True, allow_unused=True
        )

    def _replay(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        slopes: Sequence[Tensor],
        tell: Callable[[Site, Tensor], None],
    ) -> Any:
        self._listener.replayed_to = tell
        try:
            return self._quietly(outputs, inputs, slopes)
        finally:
            self._listener.replayed_to = None

    def result(self) -> Passes:
        """Coverage and convention, once all batches are done."""
        self._selection.require_found(self._listener.names)
        coverage = tuple(
            coverage_of(self._model, self._listener, index, self._capture.reached)
            for index in range(len(self._probes))
        )
        loss = self._task.loss.description if self._task else "none"
        count = f"{self._batches} batch" + ("es" if self._batches > 1 else "")
        return Passes(
            coverage=coverage,
            convention={
                "loss": loss,
                "statistics": in_words(self._model, self._statistics),
                "samples": f"{self._samples} in {count}",
                "precision": str(self.function.parameters.dtype).removeprefix("torch."),
                "seed": str(self._seed),
            },
            num_batches=self._batches,
            num_samples=self._samples,
            loss=sum(self._losses) / len(self._losses),
        )


def every_parameter(model: nn.Module) -> ParameterSet:
    """All floating-point parameters of a model, trainable or not; an error if it has none."""
    named = dict(model.named_parameters())
    real = {name: p for name, p in named.items() if p.is_floating_point()}
    if not real:
        raise InputError(
            f"{type(model).__name__} has no floating-point parameters, so there is no layer to "
            "measure. Pass the module that holds the layers."
        )
    return ParameterSet(
        tuple(real),
        tuple(p.shape for p in real.values()),
        tuple(computed_dtype(p.dtype) for p in real.values()),
        "all parameters",
    )
