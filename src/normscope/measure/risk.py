"""`Risk`: the model, the loss, the parameters and the data whose curvature is measured."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError, MeasurementError, NormscopeError
from normscope.measure._sharding import Sharing, joined
from normscope.subject.batch import Batch, failed_on
from normscope.subject.functional import ModelFunction
from normscope.subject.losses import flat
from normscope.subject.memory import PASSING, PASSING_TWICE, Piece, budget_bytes, pieces
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.parameters import ParameterSet, half_precision, select_parameters
from normscope.subject.problem import Problem, as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES, sampled
from normscope.subject.session import recomputed
from normscope.subject.statistics import check_statistics, coupling_layers, in_words

PROOF_SAMPLES = 8  # randomness shows on a few samples; the whole batch would cost two gradients


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
        problem = as_problem(model, [(inputs, targets)], loss, seed=seed, exact=True)
        self._setup(problem, None, statistics=statistics, parameters=parameters, memory=memory)

    @classmethod
    @measurement
    def from_data(
        cls,
        model: nn.Module,
        data: Any,
        loss: LossLike | None = None,
        *,
        loss_fn: LossFn | None = None,
        outputs_fn: OutputsFn | None = None,
        batch_size: int | None = None,
        num_batches: int | None = NUM_BATCHES,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        seed: int = 0,
        memory: str | int | None = None,
    ) -> Risk:
        """The risk of the first batches of any data, as every measurement reads it.

        Args:
            model: any module.
            data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch
                ``Dataset``, a loader or a list of batches.
            loss: as above; or pass ``loss_fn``.
            loss_fn: ``loss_fn(model, batch)``, for the Hessian only: it hides the outputs.
            outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)`` for batches that are not
                (inputs, targets); goes with ``loss``.
            batch_size: samples in a batch, 128 by default; a loader keeps its own.
            num_batches: how many of the first batches; None for all.
            statistics: as above.
            parameters: as above.
            seed: seed for the order of the data too.
            memory: as above.
        """
        problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed)
        return cls.of(
            problem, num_batches, statistics=statistics, parameters=parameters, memory=memory
        )

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
        """The risk of exactly these batches, each ``(inputs, targets)`` or ``inputs``."""
        problem = as_problem(model, _batches(batches), loss, seed=seed, exact=True)
        return cls.of(problem, None, statistics=statistics, parameters=parameters, memory=memory)

    @classmethod
    @measurement
    def from_loss_fn(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        loss_fn: LossFn,
        *,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        seed: int = 0,
        memory: str | int | None = None,
    ) -> Risk:
        """The risk given by ``loss_fn(model, batch)`` on exactly these batches, for the Hessian.

        The outputs are hidden inside ``loss_fn``, so Jacobian and Fisher matrix are not defined.
        """
        problem = as_problem(model, _batches(batches), loss_fn=loss_fn, seed=seed, exact=True)
        return cls.of(problem, None, statistics=statistics, parameters=parameters, memory=memory)

    @classmethod
    @torch.inference_mode(False)
    def of(cls, problem: Problem, num_batches: int | None, **options: Any) -> Risk:
        """The risk of the first batches of a problem."""
        risk = cls.__new__(cls)
        risk._setup(problem, num_batches, **options)
        return risk

    def _setup(
        self,
        problem: Problem,
        num_batches: int | None,
        *,
        statistics: str,
        parameters: str | Sequence[str] | None = None,
        memory: str | int | None = None,
    ) -> None:
        self.model = problem.model
        self.objective = problem.objective
        self.loss = problem.objective.loss
        self.statistics = statistics
        self.seed = problem.seed
        self.parameters: ParameterSet = select_parameters(self.model, parameters)
        self.sharing: Sharing | None = None
        check_statistics(self.model, statistics)
        self.budget = budget_bytes(memory, self.device)
        stream = problem.source.stream(num_batches)
        function = self.function()
        held = [function.with_targets(batch) for batch in stream]
        self.left_out = stream.left_out
        self.batches = [replace(batch, weight=1 / len(held)) for batch in held]
        _prove(self)

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
        return self.objective.has_outputs

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
            **sampled([batch.size for batch in self.batches], self.left_out),
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
            self.model, self.parameters, self.objective, statistics=self.statistics, seed=self.seed
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
            group: process group of ``torch.distributed``; the default group if not given.
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
            loss = function.loss(outputs, piece.batch)
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
                    loss = function.loss(outputs, piece.batch)
                total += piece.batch.weight * function.loss_gradient(leaves, loss)[1]
        total = self.reduced(total)
        self.parameters.require_finite(total, "The gradient of the loss")
        return total


def _batches(batches: Any) -> Any:
    """What can only be batches: two tensors in a list are two of them, not a pair."""
    single = isinstance(batches, Tensor | Mapping | str)
    if single or not isinstance(batches, Iterable):
        raise InputError(
            "batches must be a DataLoader or a list, one (inputs, targets) per batch. Got a "
            f"{type(batches).__name__}; for one batch write Risk(model, inputs, targets, ...), for "
            "other data Risk.from_data."
        )
    return list(batches) if isinstance(batches, tuple) else batches


def checked_risk(risk: Any, what: str) -> Risk:
    """``risk`` if it is one, otherwise an error that says how to make it."""
    if not isinstance(risk, Risk):
        raise InputError(
            f"{what} takes a Risk: a model with its data, loss and statistics. Got a "
            f"{type(risk).__name__}. Write Risk(model, inputs, targets, loss=..., statistics=...)."
        )
    return risk


def _check_parameters(function: ModelFunction) -> None:
    for name, value in zip(function.parameters.names, function.values, strict=True):
        if not bool(value.isfinite().all()):
            count = int((~value.isfinite()).sum())
            raise MeasurementError(
                f"Parameter {name!r} is not finite ({count} of {value.numel()} numbers are NaN or "
                "infinite). Training has diverged, or a wrong checkpoint was loaded: measure an "
                "earlier one."
            )


def _prove(risk: Risk) -> None:
    """Run loss and gradient twice on some samples: finite, connected and reproducible."""
    _refuse_single_samples(risk)
    function = risk.function()
    batch = _proof_batch(risk, function)
    try:
        first = _probe(risk, function, batch)
        second = _probe(risk, function, batch)
    except NormscopeError:
        raise
    except Exception as error:
        raise MeasurementError(
            f"The model and its loss cannot be run on the first batch: "
            f"{failed_on(error, risk.model, batch.inputs, batch.targets)}"
        ) from error
    _require_finite(function, batch, *first)
    gap = max(_relative(a, b) for a, b in zip(first, second, strict=True))
    if gap > torch.finfo(first[1].dtype).eps ** 0.75:
        raise MeasurementError(
            f"Two passes over the same batch differ (relative {gap:.1e}), although the random "
            "generators of torch, numpy and Python restart from the same seed. The model must "
            "keep a state or draw numbers elsewhere; curvature of a changing function is not "
            "defined. Make that part deterministic for the measurement."
        )


def _probe(risk: Risk, function: ModelFunction, batch: Batch) -> tuple[Tensor, Tensor]:
    with function.open():
        leaves, outputs = function.with_graph(batch)
        with torch.enable_grad():
            loss = _probed_loss(risk, function, outputs, batch)
        return function.loss_gradient(leaves, loss)


def _probed_loss(risk: Risk, function: ModelFunction, outputs: Any, batch: Batch) -> Tensor:
    if risk.has_outputs and batch.targets is None:  # any loss will do to test the model
        risk.loss.check(outputs, None)
        return 0.5 * flat(outputs).square().sum()
    return function.loss(outputs, batch)


def _proof_batch(risk: Risk, function: ModelFunction) -> Batch:
    batch = risk.batches[0]
    if batch.size > PROOF_SAMPLES and risk.has_outputs:
        part = batch.part(0, PROOF_SAMPLES)
        try:
            with function.open(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _probed_loss(risk, function, function(function.values, part), part)
            return part
        except Exception:
            pass  # only whole batches fit this model
    return batch


def _require_finite(function: ModelFunction, batch: Batch, loss: Tensor, gradient: Tensor) -> None:
    if not bool(loss.isfinite()):
        with function.open(), torch.no_grad():
            outputs = function(function.values, batch)
        function.check_finite(flat(outputs), batch)
        raise MeasurementError(
            f"The loss is {float(loss)} although the outputs are finite: look at the loss "
            "function and the targets (a logarithm of zero, an overflow of exp)."
        )
    function.parameters.require_finite(gradient, "The gradient of the loss")


def _refuse_single_samples(risk: Risk) -> None:
    layers = coupling_layers(risk.model)
    if risk.statistics == "running" or not layers or not risk.has_outputs:
        return
    for index, batch in enumerate(risk.batches):
        if batch.size == 1:
            name, layer = next(iter(layers.items()))
            raise InputError(
                f"Batch {index} has one sample, and {type(layer).__name__} {name!r} would "
                f"normalize it by its own mean and variance under statistics="
                f"{risk.statistics!r}. Use larger batches; Risk and the probes "
                "also take statistics='running'."
            )


def _relative(a: Tensor, b: Tensor) -> float:
    scale = float(torch.maximum(a.norm(), b.norm()))
    return float((a - b).norm()) / scale if scale > 0 else 0.0
