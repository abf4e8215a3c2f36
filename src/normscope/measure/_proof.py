"""What a risk proves about itself before it is used."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.errors import InputError, MeasurementError, NormscopeError
from normscope.subject.batch import Batch, failed_on
from normscope.subject.functional import ModelFunction
from normscope.subject.losses import flat
from normscope.subject.statistics import coupling_layers

if TYPE_CHECKING:
    from normscope.measure.risk import Risk

__all__ = ["loss_and_gradient", "prove"]

PROOF_SAMPLES = 8  # randomness shows on a few samples; the whole batch would cost two gradients


def prove(risk: Risk) -> None:
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


def loss_and_gradient(
    function: ModelFunction, leaves: list[Tensor], loss: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient as one flat vector; a loss apart from the model is refused."""
    grads = torch.autograd.grad(loss, leaves, allow_unused=True) if loss.requires_grad else ()
    if all(grad is None for grad in grads):
        raise MeasurementError(
            f"The loss does not depend on the parameters ({function.parameters.description}): its "
            "derivative is zero everywhere. Is the output detached, or are the selected layers "
            "unused?"
        )
    return loss.detach(), function.parameters.join(grads, like=function.values[0])


def _probe(risk: Risk, function: ModelFunction, batch: Batch) -> tuple[Tensor, Tensor]:
    with function.open():
        leaves, outputs = function.with_graph(batch)
        with torch.enable_grad():
            loss = _probed_loss(risk, function, outputs, batch)
        return loss_and_gradient(function, leaves, loss)


def _probed_loss(risk: Risk, function: ModelFunction, outputs: Any, batch: Batch) -> Tensor:
    if risk.has_outputs and batch.targets is None:  # any loss will do to test the model
        risk.loss.check(outputs, None)
        return 0.5 * flat(outputs).square().sum()
    return risk.loss_of(function, outputs, batch)


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
