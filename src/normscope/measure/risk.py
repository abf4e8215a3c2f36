"""`Risk`: the model, the loss, the parameters and the data whose curvature is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError
from normscope.measure._proof import loss_and_gradient, prove
from normscope.measure._sharding import Sharing, joined
from normscope.measure.splitting import PASSING, PASSING_TWICE, Piece, pieces
from normscope.seeds import checked_seed
from normscope.subject.batch import Batch, materialized
from normscope.subject.checkpoints import recomputed
from normscope.subject.functional import ModelFunction
from normscope.subject.grammar import as_loss
from normscope.subject.loaders import reading
from normscope.subject.losses import Loss, LossItself, flat
from normscope.subject.memory import budget_bytes
from normscope.subject.parameters import ParameterSet, half_precision, select_parameters
from normscope.subject.process import measurement
from normscope.subject.session import original_module
from normscope.subject.statistics import check_statistics, in_words

__all__ = ["Risk", "check_model", "checked_risk"]

LossLike = str | nn.Module | Callable[[Any, Any], Tensor]


class Risk:
    r"""The mean over batches of the loss of a model, as a function of its parameters.

    .. math:: L(\theta) = \frac1B \sum_{b=1}^B \ell\bigl(f_\theta(x_b), y_b\bigr)

    Batch norm couples the samples of one batch, never of two: a batch is what one training step
    sees. Batches count equally, whatever their size.

    The data is copied when the risk is made. The parameters are read when an operator or a value
    is asked for, so that one risk serves a model in training; an operator keeps the point it was
    made at. The model is left as it was, bit by bit: parameters, buffers, gradients, mode, hooks,
    and the global random generators too.

    Args:
        model: any module; a compiled or data-parallel one is measured without its wrapper, and
            gradient checkpointing of its own is off. Half precision is computed in float32.
        inputs: what the model takes: a tensor, a tuple (several arguments), a dict (keywords).
        targets: what the loss compares with; None is enough for the Jacobian and the true Fisher
            matrix of the named losses.
        loss: ``"mse"`` (half the squared error summed over outputs, mean over samples),
            ``"cross_entropy"`` (softmax, mean over samples), a torch loss module (its own scale:
            ``nn.MSELoss`` is 2/C times ``"mse"``) or a function ``loss(outputs, targets)``.
        statistics: what batch norm does. ``"batch"``: train mode, each batch normalized by its
            own statistics, exactly. ``"running"``: evaluation mode. ``"frozen"``: train mode with
            the batch's statistics held constant. Dropout acts in train mode, with a fixed mask.
        parameters: None (all trainable), ``"weights"`` (weight matrices and kernels only, as in
            the theory), or names, globs, layers, kinds (``"weight"``, ``"bias"``, ``"norm"``).
        seed: draws dropout masks and other randomness of the model, the same in every pass.
        memory: budget for saved passes, such as ``"2GB"``; None is half of what is free. Samples
            that do not depend on one another are cut to fit; batches whose samples do are
            recomputed block by block.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> risk = Risk(nn.Linear(3, 2), torch.ones(4, 3), loss="mse", statistics="batch")
        >>> risk.num_parameters, risk.convention["samples"]
        (8, '4 in 1 batch')
    """

    @measurement
    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any = None,
        *,
        loss: LossLike,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        seed: int = 0,
        memory: str | int | None = None,
    ) -> None:
        self._setup(
            model,
            loss=as_loss(loss),
            run=None,
            statistics=statistics,
            parameters=parameters,
            seed=seed,
            memory=memory,
        )
        self.batches: list[Batch] = materialized([(inputs, targets)], split=True)
        prove(self)

    @classmethod
    @measurement
    def from_batches(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        loss: LossLike,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        seed: int = 0,
        memory: str | int | None = None,
    ) -> Risk:
        """The risk of several batches, each ``(inputs, targets)`` or ``inputs``; all are kept."""
        risk = cls.__new__(cls)
        risk._setup(
            model,
            loss=as_loss(loss),
            run=None,
            statistics=statistics,
            parameters=parameters,
            seed=seed,
            memory=memory,
        )
        with reading(batches, risk.device):
            risk.batches = materialized(batches, split=True)
        prove(risk)
        return risk

    @classmethod
    @measurement
    def from_loss_fn(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        loss_fn: Callable[[nn.Module, Any], Tensor],
        *,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        seed: int = 0,
        memory: str | int | None = None,
    ) -> Risk:
        """The risk given by ``loss_fn(model, batch)``, for the Hessian only.

        The outputs are hidden inside ``loss_fn``, so Jacobian and Fisher matrix are not defined.
        """
        if not callable(loss_fn):
            raise InputError(f"loss_fn must be a function loss_fn(model, batch). Got {loss_fn!r}.")
        risk = cls.__new__(cls)
        risk._setup(
            model,
            loss=LossItself(),
            run=loss_fn,
            statistics=statistics,
            parameters=parameters,
            seed=seed,
            memory=memory,
        )
        with reading(batches, risk.device):
            risk.batches = materialized(batches, split=False)
        prove(risk)
        return risk

    def _setup(
        self,
        model: nn.Module,
        *,
        loss: Loss,
        run: Callable[[nn.Module, Any], Any] | None,
        statistics: str,
        parameters: str | Sequence[str] | None,
        seed: int,
        memory: str | int | None,
    ) -> None:
        check_model(model)
        self.model = original_module(model)
        self.loss = loss
        self.statistics = statistics
        self.seed = checked_seed(seed)
        self.parameters: ParameterSet = select_parameters(self.model, parameters)
        self._run = run
        self.sharing: Sharing | None = None
        check_statistics(self.model, statistics)
        self.budget = budget_bytes(memory, self.device)

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of flat parameter vectors."""
        return self.parameters.dtype

    @property
    def num_parameters(self) -> int:
        """Length of the flat parameter vector."""
        return self.parameters.total

    @property
    def num_samples(self) -> int:
        """Number of samples in all batches, of all processes."""
        if self.sharing is not None:
            return self.sharing.num_samples
        return sum(batch.size for batch in self.batches)

    @property
    def has_outputs(self) -> bool:
        """False for ``from_loss_fn``: outputs, and all that needs them, are unknown."""
        return self._run is None

    @property
    def convention(self) -> dict[str, str]:
        """What is measured and how, in words; every operator and result carries it."""
        count = len(self.batches) if self.sharing is None else self.sharing.num_batches
        batches = "1 batch" if count == 1 else f"{count} batches, mean over batches"
        if self.sharing is not None:
            batches += f", {self.sharing.processes} processes"
        half = half_precision(self.model)
        kept = f" (the model is in {half})" if half else ""
        return {
            "loss": self.loss.description,
            "parameters": self.parameters.description,
            "statistics": in_words(self.model, self.statistics),
            "samples": f"{self.num_samples} in {batches}",
            "precision": str(self.dtype).removeprefix("torch.") + kept,
            "seed": str(self.seed),
        }

    def __repr__(self) -> str:
        said = ("loss", "statistics", "parameters", "samples")
        lines = [f"  {name}: {self.convention[name]}" for name in said]
        return "\n".join([f"Risk of {type(self.model).__name__}", *lines])

    @torch.inference_mode(False)
    def function(self) -> ModelFunction:
        """The outputs as a function of the parameters, at the model's present point."""
        function = ModelFunction(
            self.model,
            self.parameters,
            statistics=self.statistics,
            seed=self.seed,
            run=self._run,
        )
        _check_parameters(function)
        return function

    def pieces(self, function: ModelFunction, *, second_order: bool = False) -> list[Piece]:
        """The batches, divided so that one pass stays within the memory budget."""
        loss = self.loss if self.has_outputs else None
        passing = PASSING_TWICE if second_order else PASSING
        return pieces(function, self.batches, loss=loss, budget=self.budget, passing=passing)

    def reduced(self, total: Tensor) -> Tensor:
        """The sum over all processes of one process's sum over its batches."""
        return total if self.sharing is None else self.sharing.summed(total)

    def shared(self, group: Any = None) -> Risk:
        """The same risk as the mean over the batches of all processes of ``group``.

        Every process makes a risk of its own batches and calls this; products are then summed
        over processes, and every process gets the same result. Batch norm couples the samples of
        one batch, on one process, as in distributed training. An error on one process leaves the
        others waiting until the group's timeout.

        Args:
            group: of ``torch.distributed``; the default group if not given.
        """
        together = copy.copy(self)
        together.sharing = joined(self, group)
        share = 1 / together.sharing.num_batches
        together.batches = [replace(batch, weight=share) for batch in self.batches]
        return together

    @measurement
    def value(self) -> float:
        """The loss, mean over batches."""
        function = self.function()
        total = torch.zeros((), dtype=torch.float64)
        for piece in self.pieces(function):
            with function.open(), torch.no_grad():
                outputs = function(function.values, piece.batch)
            function.check_finite(flat(outputs), piece.batch)
            loss = self.loss_of(function, outputs, piece.batch)
            total += piece.batch.weight * loss.detach().cpu().double()
        return float(self.reduced(total))

    @measurement
    def gradient(self) -> Tensor:
        """The gradient of the loss as one flat vector, (parameters,)."""
        function = self.function()
        total = torch.zeros(self.num_parameters, dtype=self.dtype, device=self.device)
        for piece in self.pieces(function):
            with function.open(blocks=recomputed if piece.checkpointed else None):
                leaves, outputs = function.with_graph(piece.batch)
                with torch.enable_grad():
                    loss = self.loss_of(function, outputs, piece.batch)
                total += piece.batch.weight * loss_and_gradient(function, leaves, loss)[1]
        total = self.reduced(total)
        self.parameters.require_finite(total, "The gradient of the loss")
        return total

    def loss_of(self, function: ModelFunction, outputs: Any, batch: Batch) -> Tensor:
        """The loss of given outputs of one batch; refuses what does not fit."""
        if self.has_outputs and batch.targets is None:
            raise InputError(
                "This needs the loss itself, and the risk has no targets. Pass targets; without "
                "them only the Jacobian and the true or sampled Fisher matrix are defined."
            )
        targets = function.targets(batch)
        self.loss.check(outputs, targets)
        return self.loss.value(outputs, targets)


def checked_risk(risk: Any, what: str) -> Risk:
    """``risk`` if it is one, otherwise an error that says how to make it."""
    if not isinstance(risk, Risk):
        raise InputError(
            f"{what} takes a Risk: a model with its data, loss and statistics. Got a "
            f"{type(risk).__name__}. Write Risk(model, inputs, targets, loss=..., statistics=...)."
        )
    return risk


def check_model(model: nn.Module) -> None:
    """Refuse what is no module, a scripted one, and one spread over several devices."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module. Got {type(model).__name__} instead.")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "A scripted module cannot be measured: its parameters cannot be exchanged. Pass the "
            "original nn.Module."
        )
    devices = {str(p.device) for p in model.parameters()}
    if len(devices) > 1:
        raise InputError(
            f"The parameters are spread over {', '.join(sorted(devices))}; one vector of all of "
            "them needs one device. Move the model with model.to(device)."
        )


def _check_parameters(function: ModelFunction) -> None:
    for name, value in zip(function.parameters.names, function.values, strict=True):
        if not bool(value.isfinite().all()):
            count = int((~value.isfinite()).sum())
            raise MeasurementError(
                f"Parameter {name!r} is not finite ({count} of {value.numel()} numbers are NaN or "
                "infinite). Training has diverged, or a wrong checkpoint was loaded: measure an "
                "earlier one."
            )
