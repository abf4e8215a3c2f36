"""Where a landscape is looked at: the same batches, at any values of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import MeasurementError
from normscope.measure.probes import run
from normscope.measure.probes._landscape_directions import given_tensors
from normscope.measure.probes._listener import Listener
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.coverage import coverage_of
from normscope.measure.probes.moments import ChannelMoments
from normscope.measure.probes.probe import Probe
from normscope.measure.probes.sites import Selection, Site
from normscope.results import Coverage
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import Problem

LARGE = 1e15  # squares of larger signals may overflow in float32


@dataclass(frozen=True)
class Visit:
    """What was seen at one point.

    Attributes:
        loss: mean over batches; inf or NaN is a result.
        moments: (mean |mu_c|, mean sigma_c^2) of each layer whose signals are finite.
        first_nonfinite: the first place whose signals are not.
    """

    loss: float
    moments: dict[str, tuple[float, float]]
    first_nonfinite: str | None


class _Moments(Probe):
    """Channel moments of what comes out of weighted layers."""

    def __init__(self) -> None:
        self.channels: dict[str, ChannelMoments] = {}

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        rows = site.rows(out)
        if float(rows.abs().max()) > LARGE:
            rows = rows.double()
        self.channels.setdefault(site.name, ChannelMoments()).add(rows)

    def found(self, failed: set[str]) -> dict[str, tuple[float, float]]:
        """(mean |mu_c|, mean sigma_c^2) of the layers whose signals stayed finite."""
        return {
            name: (float(m.mean.abs().mean()), float(m.variance.mean()))
            for name, m in self.channels.items()
            if name not in failed
        }


class Terrain:
    """The loss of a model on kept batches as a function of all its parameters.

    Attributes:
        model: whose parameters.
        parameters: all of them.
        start: their values at distance 0.
        coverage: the layers seen at the start.
        convention: what is measured and how, in words.
    """

    def __init__(
        self, problem: Problem, count: int | None, statistics: str, layers: run.Layers, start: Any
    ) -> None:
        self.model = problem.model
        self._objective = problem.objective
        self._layers = layers
        self._capture: Capture | None = None
        self.parameters = every_parameter(self.model)
        self._function = run.function_of(problem, self.parameters, statistics, self._call)
        if start is not None:
            self._function.values = self.given(start, self._function.values, "start")
        self.start = self._function.values
        stream = problem.source.stream(count)
        self._batches = [self._prepared(batch) for batch in stream]
        self._graph = run.readable_graph(problem, self._batches[0])
        self.convention = run.measured_with(self._function, statistics, stream)
        self._coverage: Coverage | None = None

    def given(self, state: Any, rest: Sequence[Tensor], what: str) -> list[Tensor]:
        """The tensors of a state or direction, checked; what it leaves out is in ``rest``."""
        return given_tensors(self.model, self.parameters, state, rest, what)

    @property
    def coverage(self) -> Coverage:
        """The layers of the first visit."""
        if self._coverage is None:
            self.visit(self.start)
        assert self._coverage is not None
        return self._coverage

    def _call(self, model: nn.Module, inputs: Any) -> Any:
        if self._capture is not None:
            self._capture.begin_pass()
        return self._objective.run(model, inputs)

    def visit(self, values: Sequence[Tensor]) -> Visit:
        """Loss and moments at other values of the parameters."""
        probe, selection = _Moments(), Selection(self._layers)
        listener = Listener([probe], selection)
        capture = self._capture = Capture(self.model, listener, self._graph)
        losses = []
        try:
            for batch in self._batches:
                listener.begin(backward=False)
                with self._function.open(), capture, torch.no_grad():
                    losses.append(float(self._loss(values, batch)))
                listener.deaf = True
        finally:
            self._capture = None
        if self._coverage is None:
            selection.require_found(listener.names)
            self._coverage = coverage_of(capture, listener, 0)
        failed = {name for (_, name), (status, _) in listener.troubles.items() if status}
        return Visit(sum(losses) / len(losses), probe.found(failed), listener.first_nonfinite)

    def gradient(self) -> list[Tensor]:
        """Of the loss at the start, mean over batches, one tensor per parameter."""
        function, total = self._function, torch.zeros(())
        for batch in self._batches:
            with function.open(), torch.enable_grad():
                leaves = [v.detach().requires_grad_() for v in self.start]
                loss = self._loss(leaves, batch)
                total = function.loss_gradient(leaves, loss)[1] / len(self._batches) + total
        if not bool(total.isfinite().all()):
            origin = self.visit(self.start).first_nonfinite
            where = f" The first layer with a non-finite output is {origin!r}." if origin else ""
            raise MeasurementError(
                f"The gradient at the start is not finite, so that it is no direction.{where} "
                "Give a direction, or an end, or start from an earlier state."
            )
        return self.parameters.split(total)

    def _prepared(self, batch: Batch) -> Batch:
        with readable_failures(self.model, batch, "on its data"):
            return self._function.prepared(batch)

    def _loss(self, values: Sequence[Tensor], batch: Batch) -> Tensor:
        with readable_failures(self.model, batch, "on its data"):
            outputs = self._function(values, batch)
        return self._function.loss(outputs, batch)
