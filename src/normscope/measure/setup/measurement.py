"""One training step taken apart: a pass with its backward pass, and what it shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.measure.probes._axes import positions_first
from normscope.measure.probes.capture import Capture
from normscope.measure.probes.run import function_of, readable_graph
from normscope.measure.setup.inner_calls import InnerCalls
from normscope.measure.setup.samples import Looks, looks
from normscope.measure.setup.scales import ScaleWatcher
from normscope.results.start import Start
from normscope.results.wiring import Held, LossCall, ParameterUse, Wiring
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.graph.recorder import tensors_in
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.norms import norm_cards
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import Problem

ENOUGH, SIGMAS = 100, 5.0  # entries, and how far their deviation may lie from the expected one
STIRRED = 0.02  # deviation of the numbers that take the place of zeros


@dataclass(frozen=True)
class SetUp:
    """What one step shows.

    Attributes:
        wiring: loss, parameters and samples.
        start: weights and signals.
        given: the tensor that the model was given first; None if it was not called as a whole.
        target: what the loss compared the outputs with; None if that was not seen.
    """

    wiring: Wiring
    start: Start
    given: Tensor | None
    target: Tensor | None


def set_up(problem: Problem, batch: Batch, held: Held, external: frozenset[int]) -> SetUp:
    """Take one training step apart, without the step. The model stays as it is, bit by bit.

    Args:
        problem: model and loss.
        batch: what the step would see.
        held: what the optimizer holds.
        external: ids of parameters that it holds beside the model's.
    """
    step = _Step(problem, batch)
    found = looks(problem, batch, step.given, step.target)
    tensors = [t for t in tensors_in(step.given) if t.ndim] if step.given is not None else []
    return SetUp(
        _wiring(problem.model, step, found, held, external),
        step.start,
        tensors[0] if tensors else None,
        step.target,
    )


class _Step:
    """A forward and a backward pass in train mode."""

    def __init__(self, problem: Problem, batch: Batch) -> None:
        model, objective = problem.model, problem.objective
        self.given: Any = None
        self.samples = batch.size
        watched = ScaleWatcher(dict(model.named_parameters()), norm_cards(model))
        capture = Capture(model, watched, graph := readable_graph(problem, batch))
        calls = InnerCalls(
            lambda: None if capture.inside is None else capture.names[capture.inside]
        )

        def run(inner: nn.Module, inputs: Any) -> Any:
            capture.begin_pass()
            if not objective.pairs:
                calls.targets = tensors_in(inputs)
            return objective.run(inner, inputs)

        function = function_of(problem, every_parameter(model), "batch", run)
        batch = function.prepared(batch)
        capture.learn_axes(positions_first(function, batch, graph))
        targets = function.targets(batch)
        calls.targets = tensors_in(targets)
        with function.open(), calls, capture, torch.enable_grad():
            model.register_forward_pre_hook(self._note, with_kwargs=True)  # gone with the session
            leaves = [v.detach().requires_grad_() for v in function.values]
            with readable_failures(model, batch, "on the first batch"):
                outputs = function(leaves, batch)
            loss = objective.judged(outputs, targets)
            self.calls = _calls(calls, objective.loss, outputs, targets)
            self.target = calls.seen[0][3].detach().clone() if calls.seen else None
            self.loss = float(loss.detach())
            self.strange = _parameters_behind(loss, leaves)
            self.gradients: list[Tensor | None] = [None] * len(leaves)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, leaves, allow_unused=True)
                self.gradients = list(found)
        self.names = function.parameters.names
        tables = (n for n, m in model.named_modules() if isinstance(m, nn.Embedding))
        self.tables = {f"{n}.weight" for n in tables}
        self.cut = self._cut(problem, batch)
        self.idle = self._idle(problem, batch)
        self.origin = watched.origin
        self.start = watched.result(model, calls.attention, self.samples)

    def _cut(self, problem: Problem, batch: Batch) -> set[str]:
        """Parameters whose gradient stays exactly zero when no weights are zero any more.

        Weights that start at zero stop gradients on purpose: heads, gammas, low-rank updates. And
        what has no effect, as the memory of a recurrent layer at its first step, has none.
        """
        zero = {n for n, g in zip(self.names, self.gradients, strict=True)
                if g is not None and not bool(g.any())}  # fmt: skip
        if not zero:
            return zero
        function = function_of(
            problem, every_parameter(problem.model), "batch", problem.objective.run
        )
        noise = torch.Generator().manual_seed(problem.seed)
        with function.open(), torch.enable_grad():
            leaves = [_stirred(v, noise).requires_grad_() for v in function.values]
            loss = function.loss(function(leaves, batch), batch)
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
        still = zip(self.names, found, strict=True)
        cut = {n for n, g in still if n in zero and (g is None or not bool(g.any()))}
        return cut if cut and self._matter(problem, batch, cut) else set()

    def _idle(self, problem: Problem, batch: Batch) -> set[str]:
        """Parameters without a gradient on whose values the loss does not depend either.

        Heads that the loss leaves out, layers that are dropped at random, experts that were not
        chosen: nothing is cut off there.
        """
        apart = {n for n, g in zip(self.names, self.gradients, strict=True) if g is None}
        return apart if apart and not self._matter(problem, batch, apart) else set()

    def _matter(self, problem: Problem, batch: Batch, chosen: set[str]) -> bool:
        """Whether the loss is another one when these parameters are."""
        function = function_of(
            problem, every_parameter(problem.model), "batch", problem.objective.run
        )
        noise, losses = torch.Generator().manual_seed(problem.seed), []
        with function.open(), torch.no_grad():
            for shaken in (set[str](), chosen):
                values = [
                    _drawn_anew(v, noise) if n in shaken else v
                    for n, v in zip(self.names, function.values, strict=True)
                ]
                losses.append(float(function.loss(function(values, batch), batch)))
        return losses[0] != losses[1]

    def _note(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self.given is None:
            self.given = (args, kwargs)


def _calls(seen: InnerCalls, loss: Any, outputs: Any, targets: Any) -> tuple[LossCall, ...]:
    """Also of the squared loss, which is a formula of ours."""
    if isinstance(loss, SquaredLoss):  # its own difference may have been seen, or none
        pairs = zip(tensors_in(outputs), loss.compared(outputs, targets), strict=False)
        options = {"reduction": "sum" if loss.summed else "mean"}
        seen.seen = [("squared", options | {"dropped": seen.dropped(f)}, f, y) for f, y in pairs]
    return seen.calls()


def _stirred(weight: Tensor, noise: torch.Generator) -> Tensor:
    """Small random numbers in place of zeros."""
    drawn = STIRRED * torch.randn(weight.shape, generator=noise).to(weight)
    return torch.where(weight == 0, drawn, weight).detach()


def _drawn_anew(weight: Tensor, noise: torch.Generator) -> Tensor:
    """Far off, also for what rounds its inputs."""
    return weight + (1 + weight.abs()) * torch.randn(weight.shape, generator=noise).to(weight)


def _parameters_behind(loss: Tensor, leaves: list[Tensor]) -> dict[int, int]:
    """Parameters behind a loss that are not among ``leaves``: id -> entries."""
    known, seen, todo = {id(leaf) for leaf in leaves}, set[Any](), [loss.grad_fn]
    found: dict[int, int] = {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter) and id(variable) not in known:
            found[id(variable)] = variable.numel()
        todo += [behind for behind, _ in node.next_functions]
    return found


def _wiring(
    model: nn.Module, step: _Step, found: Looks, held: Held, external: frozenset[int]
) -> Wiring:
    gradients = dict(zip(step.names, step.gradients, strict=True))
    uses = tuple(
        _use(name, p, gradients.get(name), held, step) for name, p in model.named_parameters()
    )
    strange = {key: size for key, size in step.strange.items() if key not in external}
    return Wiring(
        loss=step.loss,
        calls=step.calls,
        parameters=uses,
        optimizer=held,
        unregistered=sum(strange.values()),
        origin=step.origin,
        mixing=found.mixing,
        mixing_by=found.mixing_by,
        across=found.across,
        leak=found.leak,
        shift=found.shift,
        linear=found.linear,
        ordered=found.ordered,
        dropping=found.dropping,
        beside=found.beside,
        doubling=found.doubling,
        falling=found.falling,
        padded=found.padded,
        samples=step.samples,
        skipped=found.skipped or {},
    )


def _as_torch_begins(weight: Tensor) -> bool:
    """Whether a matrix of weights is uniform up to 1 / sqrt(inputs), as torch's layers begin."""
    if weight.ndim < 2 or weight.numel() < ENOUGH or not weight.is_floating_point():
        return False
    bound = weight[0].numel() ** -0.5
    deviation = float(weight.float().std()) * math.sqrt(3) / bound
    within = float(weight.abs().max()) <= bound * (1 + 1e-6)
    return within and abs(deviation - 1) < SIGMAS * math.sqrt(0.2 / weight.numel())


def _as_tables_begin(weight: Tensor) -> bool:
    """Whether they could be normal numbers of mean 0 and deviation 1."""
    x, size = weight.double().reshape(-1), max(weight.numel(), 1)
    if size < ENOUGH:
        return False
    moments = ((x.mean(), 1), ((x**2).mean() - 1, 2), ((x**4).mean() - 3, 96))
    return all(float(m) ** 2 < 9 * variance / size for m, variance in moments)


def _use(
    name: str, p: nn.Parameter, gradient: Tensor | None, held: Held, step: _Step
) -> ParameterUse:
    values = p.detach()
    return ParameterUse(
        name=name,
        size=p.numel(),
        trainable=p.requires_grad,
        held=None if held.names is None else name in held.names,
        weight=float(values.float().norm()),
        gradient=float("nan") if gradient is None else float(gradient.float().norm()),
        decay=held.decays.get(name, 0.0),
        cut=name in step.cut,
        used=name not in step.idle,
        finite=bool(values.isfinite().all()) if values.is_floating_point() else True,
        initial=not p.requires_grad and _as_torch_begins(values),
        table=not p.requires_grad and name in step.tables and _as_tables_begin(values),
    )
