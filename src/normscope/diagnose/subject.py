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

from normscope.data import DataSet, load_data
from normscope.errors import InputError
from normscope.measure._batches import float_leaves, owned_batch
from normscope.measure._likelihoods import SquaredLoss
from normscope.measure._memory import budget_bytes
from normscope.measure._session import original_module
from normscope.measure._statistics import coupling_layers
from normscope.measure._stream import as_stream
from normscope.measure._task import Task, as_task
from normscope.measure.risk import Risk, check_model
from normscope.seeds import checked_seed
from normscope.train.optim import optimizers

__all__ = ["BATCH_SIZE", "Subject", "as_subject"]

BATCH_SIZE = 256  # of a data set, which has none of its own


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

    @property
    def samples(self) -> int:
        """Samples in the first batch."""
        return owned_batch(self.batches[0], 0, split=self.task.has_outputs).size

    @property
    def batch_norms(self) -> dict[str, nn.Module]:
        """The layers that normalize over the batch."""
        return coupling_layers(self.model)

    @functools.cached_property
    def outputs_per_sample(self) -> int:
        """Numbers that the model gives for one sample: its classes, times its pixels."""
        risk = self.risk()
        function = risk.function()
        with function.open(), torch.no_grad():
            outputs = function(function.values, function.prepared(risk.batches[0]))
        return sum(leaf.numel() for leaf in float_leaves(outputs)) // self.samples

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
        batches: how many batches to keep, at most.
        seed: of everything random.
        deadline: of ``time.monotonic``, after which trainings end.
    """
    check_model(model)
    module = _placed(original_module(model), device)
    task = as_task(loss)
    name, rate, mu = _optimizer(optimizer)
    return Subject(
        model=module,
        loss=loss,
        task=task,
        batches=_kept(data, task, module, batches, seed),
        optimizer=name,
        lr=_positive(lr, "lr") if lr is not None else rate,
        momentum=mu if momentum is None else _fraction(momentum),
        seed=checked_seed(seed),
        deadline=deadline,
    )


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
    one_hot = isinstance(task.loss, SquaredLoss)
    if isinstance(data, str):
        data = load_data(data, "train")
    if isinstance(data, DataSet):
        size = min(BATCH_SIZE, len(data))
        data = data.to(dtype=real[0].dtype).batches(size, seed=seed, one_hot=one_hot)
    stream = as_stream(
        data, split=task.has_outputs, one_hot=one_hot, dtype=real[0].dtype, seed=seed
    )
    with contextlib.closing(stream.batches(real[0].device)) as source:
        taken = list(itertools.islice(source, count))
    return [(b.inputs, b.targets) if task.has_outputs else b.inputs for b in taken]


def _optimizer(optimizer: Any) -> tuple[Any, float | None, float]:
    """Name or factory, learning rate, momentum."""
    if isinstance(optimizer, str):
        optimizers[optimizer]  # an unknown name is refused here
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizer or "sgd", None, 0.0
    group = optimizer.param_groups[0]
    kind: Any = type(optimizer)
    rest = {k: v for k, v in optimizer.defaults.items() if k != "momentum"}
    plain = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
    usual = kind([torch.zeros(1, requires_grad=True)], lr=rest["lr"]).defaults
    name: Any = plain.get(kind)
    if name is None or any(usual[key] != value for key, value in rest.items()):
        settings = dict(optimizer.defaults)

        def name(parameters: Any) -> torch.optim.Optimizer:
            made: torch.optim.Optimizer = kind(parameters, **settings)
            return made

    return name, float(group["lr"]), float(group.get("momentum", 0.0))


def _positive(value: float, name: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise InputError(f"{name} must be a number above 0. Got {value!r}.")
    return float(value)


def _fraction(momentum: float) -> float:
    number = isinstance(momentum, int | float) and not isinstance(momentum, bool)
    if not number or not 0 <= momentum < 1:
        raise InputError(f"momentum must be at least 0 and below 1. Got {momentum!r}.")
    return float(momentum)
