"""What is examined: a problem on batches in memory, and how copies of the model are trained."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import Array, checked_momentum, checked_positive
from normscope.diagnose._optimizers import Own, chosen_optimizer
from normscope.errors import InputError, MeasurementError
from normscope.measure.risk import Risk
from normscope.messages import failure
from normscope.results.wiring import Held
from normscope.subject.batch import Batch, float_leaves, form_of, shapes_of
from normscope.subject.graph import Graph
from normscope.subject.losses import CallableLoss
from normscope.subject.memory import budget_bytes
from normscope.subject.nodes import ModuleNodes, nodes_and_data
from normscope.subject.objective import LossFn, LossLike, Objective, OutputsFn
from normscope.subject.parameters import floating_dtype
from normscope.subject.problem import Problem, as_problem, check_model, graph_of, model_device
from normscope.subject.reading import Kept, Source
from normscope.subject.session import original_module
from normscope.subject.statistics import coupling_layers
from normscope.subject.usable import usable_device
from normscope.train.options import TrainingOptions
from normscope.train.stability.judge import chance_loss

POPULATION = 512  # samples that several small batches are kept for
MOST = 512  # batches kept, however small
HELD_OUT = 4  # batches that trials are judged on and not trained on
SAMPLES = 32  # that trials use at least, if batches are small


@dataclass(frozen=True)
class Allowance:
    """The time that trials may take, decided before they begin.

    Attributes:
        seconds: time limit of all trials together; 0 for none.
        gradient: seconds that one gradient of the loss of one batch takes.
    """

    seconds: float = 0.0
    gradient: float = math.inf

    @property
    def gradients(self) -> float:
        """As many gradients of one batch fit into it."""
        return self.seconds / max(self.gradient, 1e-9)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with all that is needed to run and to train it.

    Attributes:
        problem: model, loss and the batches that measurements look at, in memory.
        population: these batches, and further ones where they hold few samples.
        data: what copies are trained on: all the data, or what was kept of it if it can be read
            only once.
        training: how copies are trained.
        lr: the learning rate asked about, None if unknown.
        momentum: SGD momentum.
        memory: bytes that curvature may take; None for half of what is free.
        deadline: time (``time.monotonic``) after which training runs end.
        notes: what to know about how the arguments were taken.
        further: where more samples can be read; None if they cannot, or are not asked for.
        held: which parameters the optimizer holds, and what it does with them.
        foreign: ids of parameters that it holds beside those of the model.
        evaluation: the same model and loss on the evaluation data; None if there is none.
        practice: the batches that trials take their updates on, in memory.
        held_out: further batches, that no trial of a few batches trains on.
        own: the user's optimizer, if one was given.
        allowance: what trials may cost.
    """

    problem: Problem
    population: Kept
    data: Any
    training: TrainingOptions
    lr: float | None
    momentum: float
    memory: int | None = None
    deadline: float = math.inf
    notes: tuple[str, ...] = ()
    further: Source | None = None
    held: Held = field(default_factory=Held)
    foreign: frozenset[int] = frozenset()
    evaluation: Problem | None = None
    practice: tuple[Batch, ...] = ()
    held_out: tuple[Batch, ...] = ()
    own: Own | None = None
    allowance: Allowance = Allowance()

    @property
    def model(self) -> nn.Module:
        """Without a compiled or parallel wrapper."""
        return self.problem.model

    @property
    def objective(self) -> Objective:
        """The loss, and how a batch is run."""
        return self.problem.objective

    @property
    def seed(self) -> int:
        """Seed for all random numbers."""
        return self.problem.seed

    @property
    def source(self) -> Kept:
        """The batches that measurements look at."""
        assert isinstance(self.problem.source, Kept)
        return self.problem.source

    @property
    def batches(self) -> list[Batch]:
        """The same as a list."""
        return self.source.batches

    @property
    def samples(self) -> int:
        """Samples in the first batch."""
        return self.batches[0].size

    @property
    def batch_norms(self) -> dict[str, nn.Module]:
        """The layers that normalize over the batch."""
        return coupling_layers(self.model)

    @functools.cached_property
    def _seen(self) -> list[tuple[Any, Any]]:
        """Outputs and targets of every batch."""
        risk = self.risk()
        function, found = risk.function(), []
        for batch in map(function.prepared, risk.batches):
            with function.open(), torch.no_grad():
                found.append((function(function.values, batch), function.targets(batch)))
        return found

    @property
    def outputs_per_sample(self) -> int:
        """Numbers that the model gives for one sample: its classes, times its pixels."""
        return sum(leaf.numel() for leaf in float_leaves(self._seen[0][0])) // self.samples

    @property
    def chance(self) -> float:
        """Loss of the best constant answer on the batches; NaN if that is not known."""
        try:
            if not self.objective.has_outputs or any(goal is None for _, goal in self._seen):
                return math.nan
            return chance_loss(self.objective.loss, self._seen)
        except MeasurementError:  # no finite outputs
            return math.nan

    @functools.cached_property
    def graph(self) -> Graph | None:
        """Read once for all measurements; None if it cannot be, as the layout will say."""
        try:
            return graph_of(self.problem, self.batches[0])
        except (MeasurementError, InputError):
            return None

    @functools.cached_property
    def nodes(self) -> tuple[ModuleNodes, Array]:
        """The network as theory reads it, F over its weights, and the inputs of the first batch."""
        return self.nodes_over("weights")

    def nodes_over(self, parameters: str | None) -> tuple[ModuleNodes, Array]:
        """The same, F over these parameters; None for all that are trained."""
        problem = replace(self.first().problem, graph=self.graph)
        return nodes_and_data(self.model, problem, parameters=parameters, seed=self.seed)

    @property
    def optimizer_name(self) -> str:
        """The optimizer in words."""
        chosen = self.training.optimizer
        return chosen if isinstance(chosen, str) else getattr(chosen, "__name__", "your own")

    @property
    def is_double(self) -> bool:
        """Whether it is computed in float64 already."""
        return floating_dtype(self.model) == torch.float64

    def first(self) -> Subject:
        """The same on the first batch alone."""
        source = replace_batches(self.source, self.batches[:1])
        return replace(self, problem=replace(self.problem, source=source))

    def of(self, model: nn.Module) -> Subject:
        """The same for another model."""
        return replace(self, problem=replace(self.problem, model=model))

    def double(self) -> Subject:
        """The same in float64: a copy of the model, and of the batches."""

        def wide(tensor: Tensor) -> Tensor:
            return tensor.double() if tensor.is_floating_point() else tensor

        reading = replace(self.source.reading, dtype=torch.float64)
        source = replace_batches(self.source, [b.mapped(wide) for b in self.batches], reading)
        model = copy.deepcopy(self.model).double()
        return replace(self, problem=replace(self.problem, model=model, source=source))

    def smaller(self) -> Subject:
        """The same with half the samples in every batch, and half the memory for curvature."""

        def halves(batches: Sequence[Batch]) -> list[Batch]:
            return [replace(b.part(0, max(b.size // 2, 2)), weight=1.0) for b in batches]

        def halved(problem: Problem) -> Problem:
            assert isinstance(problem.source, Kept)
            kept = replace_batches(problem.source, halves(problem.source.batches))
            return replace(problem, source=kept)

        return replace(
            self,
            problem=halved(self.problem),
            population=replace_batches(self.population, halves(self.population.batches)),
            memory=(self.memory or budget_bytes(None, model_device(self.model))) // 2,
            further=None,
            evaluation=None if self.evaluation is None else halved(self.evaluation),
            practice=tuple(halves(self.practice)),
            held_out=tuple(halves(self.held_out)),
        )

    def risk(self, *, parameters: str | None = None) -> Risk:
        """The risk of the batches, batch norm in train mode."""
        return Risk.of(
            self.problem, None, statistics="batch", parameters=parameters, memory=self.memory
        )


def replace_batches(kept: Kept, batches: list[Batch], reading: Any = None) -> Kept:
    """Other batches, read in the same way."""
    return Kept(batches, reading or kept.reading, left_out=kept.left_out)


def as_subject(
    model: nn.Module,
    data: Any,
    loss: LossLike | None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    eval_data: Any = None,
    batch_size: int | None = None,
    num_batches: int | None = 1,
    population: int = 0,
    practice: int = 0,
    optimizer: Any = None,
    lr: float | None = None,
    momentum: float | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    deadline: float = math.inf,
) -> Subject:
    """Check and gather what ``examine`` and its companions take.

    Args:
        model: any module; with ``device`` a copy is moved there.
        data: as every function takes it.
        loss: a name, a torch loss or ``loss(outputs, targets)``; cross-entropy by default.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``.
        eval_data: what the model is evaluated on, as ``data``; None if that is not asked about.
        batch_size: batch size for data that has no batches of its own.
        num_batches: how many batches measurements look at.
        population: samples for which further ones are kept, if these are several.
        practice: batches that are kept for trials.
        optimizer: a name, a factory, or a torch optimizer whose lr and momentum are read.
        lr: overrides that of the optimizer.
        momentum: overrides that of the optimizer.
        device: where to measure.
        seed: seed for all random numbers.
        deadline: time (``time.monotonic``) after which training runs end.
    """
    check_model(model)
    own = original_module(model)
    placed = _placed(own, device)
    _require_numbers(placed)
    problem = as_problem(
        placed, data, loss, loss_fn=loss_fn, outputs_fn=outputs_fn, batch_size=batch_size,
        seed=seed, default="cross_entropy",
    )  # fmt: skip
    inertia = None if momentum is None else checked_momentum(momentum)
    chosen = chosen_optimizer(optimizer, own, inertia)
    named = isinstance(chosen.optimizer, str)
    further, once = problem.source, problem.source.once
    reserve = HELD_OUT if practice else 0
    source, kept, everything = _read(problem, num_batches, population, practice, reserve)
    problem = _as_torch_has_it(replace(problem, source=source), loss)
    practice = max(practice, math.ceil(SAMPLES / source.batches[0].size)) if practice else 0
    other = None if eval_data is None else _evaluation(problem, eval_data, batch_size, source)
    return Subject(
        problem=problem,
        population=kept,
        data=everything if once else data,
        training=TrainingOptions(
            optimizer=chosen.optimizer,
            momentum=chosen.momentum if named else 0.0,  # a factory holds its own
            batch_size=batch_size,
            seed=problem.seed,
        ),
        lr=checked_positive(lr, "lr") if lr is not None else chosen.lr,
        momentum=chosen.momentum,
        deadline=deadline,
        notes=tuple(chosen.notes),
        further=further if population and not once else None,
        held=chosen.held,
        foreign=chosen.foreign,
        evaluation=other,
        practice=tuple(kept.batches[:practice]),
        held_out=tuple(kept.batches[practice : practice + reserve]),
        own=chosen.own,
    )


def _as_torch_has_it(problem: Problem, loss: Any) -> Problem:
    """The same; with torch's own squared loss where that stretches what ours refuses.

    Training would go on with it: it is to be found, not refused.
    """
    if not isinstance(loss, nn.MSELoss) or not problem.objective.has_outputs:
        return problem
    assert isinstance(problem.source, Kept)
    few = replace_batches(problem.source, [problem.source.batches[0].part(0, 2)])

    def stretched(outputs: Any, targets: Any) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of torch, of just that
            found: Tensor = loss(outputs, targets)
            return found

    plain = replace(
        problem.objective, loss=CallableLoss(stretched, "torch's MSELoss, its own scale")
    )
    for objective in (problem.objective, plain):
        try:
            Risk.of(
                replace(problem, objective=objective, source=few), None, statistics="batch"
            ).value()
        except InputError:
            continue
        except Exception:  # whatever the model raises is told later, with its place
            break
        return replace(problem, objective=objective)
    return problem


def _evaluation(problem: Problem, eval_data: Any, batch_size: int | None, source: Kept) -> Problem:
    """The problem on other data, as many batches of it; data of another kind is refused."""
    try:
        other = as_problem(
            problem.model, eval_data, problem.objective, batch_size=batch_size, seed=problem.seed
        )
        kept, _, _ = _read(other, len(source.batches), 0)
    except InputError as error:
        raise InputError(f"eval_data: {error}") from error
    mine, its = (form_of(s.batches[0]) for s in (source, kept))
    if mine != its:
        raise InputError(
            f"eval_data has another form than data: a batch of it holds {its}, one of data {mine}. "
            "The same model and loss are evaluated on both: give batches of the same kind."
        )
    made = replace(other, source=kept)
    if shapes_of(kept.batches[0]) != shapes_of(source.batches[0]):
        _require_runs(made, shapes_of(source.batches[0]))
    return made


def _require_runs(problem: Problem, shapes: str) -> None:
    """Refuse samples of another size that the model does not take; it may take any."""
    source = problem.source
    assert isinstance(source, Kept)
    batch = source.batches[0].part(0, 2)
    try:
        function = Risk.of(
            replace(problem, source=replace_batches(source, [batch])), None, statistics="batch"
        ).function()
        with function.open(), torch.no_grad():
            function.loss(function(function.values, batch), function.with_targets(batch))
    except Exception as error:  # whatever the model or the loss raises
        raise InputError(
            f"eval_data has samples of shape {shapes_of(source.batches[0])}, data has samples of "
            f"shape {shapes}, and the model cannot be run on the former: "
            f"{failure(error)} Give evaluation data that the model takes."
        ) from error


def _read(
    problem: Problem, num_batches: int | None, population: int, practice: int = 0, reserve: int = 0
) -> tuple[Kept, Kept, Kept]:
    """The batches asked for; these with further ones up to so many samples; and all that was read.

    At least ``practice`` batches are read, or as many as hold enough samples, and ``reserve`` more.

    A last, shorter batch is only among the last: it is trained on, and not measured.
    """
    several = population if num_batches is not None and num_batches > 1 else 0
    stream = problem.source.stream(None if several or practice else num_batches)
    wanted, kept = math.inf if num_batches is None else num_batches, list[Batch]()
    for batch in stream:
        kept.append(batch)
        enough = sum(stream.sizes) >= several or len(kept) >= MOST
        most = max(practice, math.ceil(SAMPLES / max(kept[0].size, 1))) if practice else 0
        if len(kept) >= max(wanted, most + reserve) and enough:
            break
    missing = stream.left_out if len(kept) < wanted else 0
    reading, rest = problem.source.reading, [] if stream.shorter is None else [stream.shorter]
    first = Kept(kept[:num_batches], reading, left_out=missing)
    return first, Kept(kept, reading, left_out=stream.left_out), Kept([*kept, *rest], reading)


def _require_numbers(model: nn.Module) -> None:
    if not any(p.is_floating_point() for p in model.parameters()):
        raise InputError(
            f"{type(model).__name__} has no floating-point parameters: there is nothing to train "
            "and nothing to examine."
        )


def _placed(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """The model itself where it is there, else a copy."""
    if device is None:
        return model
    place = usable_device(device)
    there = all(p.device == place for p in model.parameters())
    return model if there else copy.deepcopy(model).to(place)
