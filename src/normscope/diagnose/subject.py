"""What is examined: a model, batches that can be run again and again, a loss, an optimizer."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normscope.checks import checked_momentum, checked_positive
from normscope.data import DataSet, load_data
from normscope.diagnose._optimizers import chosen_optimizer
from normscope.errors import InputError
from normscope.measure.risk import Risk, check_model
from normscope.seeds import checked_seed
from normscope.subject.batch import float_leaves, owned_batch
from normscope.subject.likelihoods import SquaredLoss
from normscope.subject.memory import budget_bytes
from normscope.subject.parameters import computed_dtype
from normscope.subject.session import original_module
from normscope.subject.statistics import coupling_layers
from normscope.subject.stream import as_stream, is_pair
from normscope.subject.task import Task, as_task
from normscope.train.stability.judge import chance_loss

__all__ = ["BATCH_SIZE", "Subject", "as_subject"]

BATCH_SIZE = 256  # of a data set, which has none of its own
POPULATION = 512  # samples that several small batches are kept for
MOST = 512  # batches kept, however small


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with all that is needed to run and to train it.

    Attributes:
        model: as given, without a compiled or parallel wrapper.
        loss: as given, for probes and training.
        task: how it is fed.
        batches: items as a loader gives them; the first one is used for curvature.
        optimizer: name or factory, as training takes it.
        lr: the learning rate asked about, None if unknown.
        momentum: of sgd.
        seed: of everything random.
        memory: bytes that curvature may take; None for half of what is free.
        deadline: of ``time.monotonic``, after which trainings end.
        notes: what to know about how the arguments were taken.
    """

    model: nn.Module
    loss: Any
    task: Task
    batches: list[Any]
    optimizer: Any
    lr: float | None
    momentum: float
    seed: int
    memory: int | None = None
    deadline: float = math.inf
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Samples in the first batch."""
        return _samples(self.batches[0], self.task)

    @property
    def batch_norms(self) -> dict[str, nn.Module]:
        """The layers that normalize over the batch."""
        return coupling_layers(self.model)

    @functools.cached_property
    def _outputs(self) -> Any:
        """Of the first batch."""
        risk = self.risk()
        function = risk.function()
        with function.open(), torch.no_grad():
            return function(function.values, function.prepared(risk.batches[0]))

    @property
    def outputs_per_sample(self) -> int:
        """Numbers that the model gives for one sample: its classes, times its pixels."""
        return sum(leaf.numel() for leaf in float_leaves(self._outputs)) // self.samples

    @property
    def chance(self) -> float:
        """Loss of the best constant answer on the first batch; NaN if that is not known."""
        if not self.task.has_outputs or self.batches[0][1] is None:
            return math.nan
        return chance_loss(self.task.loss, [(self._outputs, self.batches[0][1])])

    @property
    def attends(self) -> bool:
        """Whether it has layers of attention, by their names."""
        return any("attention" in type(m).__name__.lower() for m in self.model.modules())

    @property
    def optimizer_name(self) -> str:
        """The optimizer in words."""
        chosen = self.optimizer
        return chosen if isinstance(chosen, str) else getattr(chosen, "__name__", "your own")

    @property
    def is_double(self) -> bool:
        """Whether it is computed in float64 already."""
        return all(
            p.dtype == torch.float64 for p in self.model.parameters() if p.is_floating_point()
        )

    def double(self) -> Subject:
        """The same in float64: a copy of the model, and of the batches."""

        def wide(leaf: Any) -> Any:
            real = isinstance(leaf, Tensor) and leaf.is_floating_point()
            return leaf.double() if real else leaf

        batches = [pytree.tree_map(wide, batch) for batch in self.batches]
        return replace(self, model=copy.deepcopy(self.model).double(), batches=batches)

    def smaller(self) -> Subject:
        """The same with half the samples in every batch, and half the memory for curvature."""
        halves = []
        for index, item in enumerate(self.batches):
            batch = owned_batch(item, index, split=self.task.has_outputs)
            part = batch.part(0, max(batch.size // 2, 2))
            halves.append((part.inputs, part.targets) if self.task.has_outputs else part.inputs)
        device = next(self.model.parameters()).device
        memory = (self.memory or budget_bytes(None, device)) // 2
        return replace(self, batches=halves, memory=memory)

    def risk(self, *, parameters: str | None = None) -> Risk:
        """The risk of the first batch, batch norm in train mode."""
        options: dict[str, Any] = {
            "statistics": "batch",
            "parameters": parameters,
            "seed": self.seed,
            "memory": self.memory,
        }
        if self.task.run is not None:
            return Risk.from_loss_fn(self.model, self.batches[:1], self.task.run, **options)
        return Risk.from_batches(self.model, self.batches[:1], loss=self.loss, **options)


def as_subject(
    model: nn.Module,
    data: Any,
    loss: Any,
    *,
    optimizer: Any = None,
    lr: float | None = None,
    momentum: float | None = None,
    device: torch.device | str | None = None,
    batches: int = 1,
    seed: int = 0,
    deadline: float = math.inf,
) -> Subject:
    """Check and gather what ``examine`` and its companions take.

    Args:
        model: any module; with ``device`` a copy is moved there.
        data: a loader, a pair of tensors, a data set or its name.
        loss: a name, a torch loss or ``loss_fn(model, batch)``.
        optimizer: a name, a factory, or a torch optimizer whose lr and momentum are read.
        lr: overrides that of the optimizer.
        momentum: overrides that of the optimizer.
        device: where to measure.
        batches: how many batches to keep; more of small ones, if it is more than one.
        seed: of everything random.
        deadline: of ``time.monotonic``, after which trainings end.
    """
    check_model(model)
    module = _placed(original_module(model), device)
    task = as_task(loss)
    inertia = None if momentum is None else checked_momentum(momentum)
    chosen = chosen_optimizer(optimizer, model, inertia)
    notes = [*chosen.notes]
    kept = _kept(data, task, module, batches, seed)
    if is_pair(data) and len(kept) == 1 and (count := _samples(kept[0], task)) > BATCH_SIZE:
        notes.append(
            f"The pair of tensors is taken as one batch of {count} samples, in trainings too. Pass "
            "a loader for smaller ones."
        )
    return Subject(
        model=module,
        loss=loss,
        task=task,
        batches=kept,
        optimizer=chosen.optimizer,
        lr=checked_positive(lr, "lr") if lr is not None else chosen.lr,
        momentum=chosen.momentum,
        seed=checked_seed(seed),
        deadline=deadline,
        notes=tuple(notes),
    )


def _samples(item: Any, task: Task) -> int:
    return owned_batch(item, 0, split=task.has_outputs).size


def _placed(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """The model itself where it is there, else a copy."""
    if device is None:
        return model
    try:
        place = torch.device(device)
        if all(p.device == place for p in model.parameters()):
            return model
        return copy.deepcopy(model).to(place)
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that there is none
        reason = str(error).splitlines()[0]
        raise InputError(f"The device {str(device)!r} cannot be used: {reason}.") from error


def _kept(data: Any, task: Task, model: nn.Module, count: int, seed: int) -> list[Any]:
    real = [p for p in model.parameters() if p.is_floating_point()]
    if not real:
        raise InputError(
            f"{type(model).__name__} has no floating-point parameters: there is nothing to train "
            "and nothing to examine."
        )
    one_hot, dtype = isinstance(task.loss, SquaredLoss), computed_dtype(real[0].dtype)
    if isinstance(data, str):
        data = load_data(data, "train")
    if isinstance(data, DataSet):
        size = min(BATCH_SIZE, len(data))
        data = data.to(dtype=dtype).batches(size, seed=seed, one_hot=one_hot)
    stream = as_stream(data, split=task.has_outputs, one_hot=one_hot, dtype=dtype, seed=seed)
    with contextlib.closing(stream.batches(real[0].device)) as source:
        taken = list(itertools.islice(source, count))
        if count > 1 and taken:
            enough = min(math.ceil(POPULATION / max(taken[0].size, 1)), MOST)
            taken += itertools.islice(source, max(enough - count, 0))
    return [(b.inputs, b.targets) if task.has_outputs else b.inputs for b in taken]
