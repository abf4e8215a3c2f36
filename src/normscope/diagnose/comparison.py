"""What theory says of the subject, beside the measurement of the same matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from normscope.diagnose.predicted import over_all_parameters, predictions_of
from normscope.diagnose.subject import Subject
from normscope.errors import TheoryError
from normscope.measure import fisher
from normscope.measure.risk import Risk
from normscope.measure.spectral import top_eigenvalues
from normscope.results import Comparison, Prediction, PredictionSet
from normscope.subject.batch import float_leaves
from normscope.subject.describe import describe
from normscope.subject.likelihoods import CrossEntropy, SquaredLoss
from normscope.subject.objective import Objective, OutputsFn, as_loss
from normscope.subject.reading import Kept
from normscope.theory import predict

TOLERANCE = 0.02


def coverable(subject: Subject) -> None:
    """Refuse a network that no theory covers, by name."""
    try:
        _ = subject.nodes
    except TheoryError as error:
        _of_a_chain(subject, error)


def predictions(subject: Subject) -> PredictionSet:
    """The theory's numbers for the network as it is and, if it has norms, without them."""
    try:
        return PredictionSet(tuple(predictions_of(subject)))
    except TheoryError as error:
        return _of_a_chain(subject, error)


def trained_prediction(subject: Subject) -> Prediction:
    """The theory's numbers for the network as it is, over all parameters that are trained."""
    try:
        return over_all_parameters(subject)
    except TheoryError as error:
        return _of_a_chain(subject, error, "all")[0]


def _of_a_chain(
    subject: Subject, reason: TheoryError, parameters: str = "weights"
) -> PredictionSet:
    """The recursions of a plain chain, which know norms on the outputs; else the reason."""
    function = subject.first().risk().function()
    description = describe(subject.model, function.model_inputs(subject.batches[0]))
    if description.spec is None:
        raise reason
    specs = [description.spec]
    if any(layer.norm is not None for layer in description.spec.layers):
        plain = tuple(replace(layer, norm=None) for layer in description.spec.layers)
        specs.append(replace(description.spec, layers=plain))
    found = predict(
        specs,
        samples=subject.samples,
        seed=subject.seed,
        theory="corrected",
        parameters=parameters,
    )
    assert isinstance(found, PredictionSet)
    return found


def plain_risk(subject: Subject) -> Risk:
    """The risk whose Fisher matrix is J^T J / T over the weights, the matrix of the theory."""
    given = subject.objective.outputs_fn
    objective = Objective(as_loss("mse"), outputs_fn=given and _with_own_targets(given))
    first = [replace(batch, targets=None) for batch in subject.first().batches]
    source = Kept(first, subject.source.reading)
    problem = replace(subject.problem, objective=objective, source=source)
    return Risk.of(problem, None, statistics="batch", parameters="weights", memory=subject.memory)


def _with_own_targets(given: OutputsFn) -> OutputsFn:
    """The same outputs, and targets that they hit: J^T J / T does not depend on them."""

    def run(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        outputs = given(model, batch)[0]
        return outputs, [leaf.detach() for leaf in float_leaves(outputs)]

    return run


def compared(subject: Subject, results: dict[str, Any]) -> Comparison:
    """lambda_max of J^T J / T over the weights, predicted and measured.

    For cross-entropy the theory's value is scaled by the largest eigenvalue of
    mean(diag p - p p^T): an approximation, because the outputs' curvature varies with the sample.
    """
    if "prediction" not in results:
        raise TheoryError("There is no prediction to compare with.")
    prediction = results["prediction"][0]
    if prediction.lambda_max is None:
        raise TheoryError(f"There is no predicted lambda_max: {prediction.reason}")
    predicted = prediction.lambda_max_split or prediction.lambda_max
    measured, bound, convention = _measured(subject, results)
    scale, own = _loss_matrix(subject, measured)
    of_loss = (scale, scale * predicted, own)
    return Comparison(predicted, measured, bound, *of_loss, prediction.flags, convention)


def _measured(subject: Subject, results: dict[str, Any]) -> tuple[float, float, dict[str, str]]:
    """lambda_max of J^T J / T with its bound, from an earlier step if that found it."""
    found = results.get("outliers")
    if found is None:
        found = top_eigenvalues(fisher(plain_risk(subject)), tol=TOLERANCE, seed=subject.seed)
    return float(found.values[0]), float(found.bounds[0]), found.convention


def _loss_matrix(subject: Subject, plain: float) -> tuple[float, float]:
    """The scale of the loss's Fisher matrix against J^T J / T, and its own lambda_max."""
    scale = loss_scale(subject)
    loss = subject.objective.loss
    if isinstance(loss, SquaredLoss) and loss.is_half_mean:
        return scale, plain
    matrix = fisher(subject.first().risk(parameters="weights"))
    return scale, top_eigenvalues(matrix, tol=TOLERANCE, seed=subject.seed).largest


def loss_scale(subject: Subject) -> float:
    """Curvature of the loss in the outputs, by which J^T J / T is scaled; NaN if not known.

    1 for the squared loss of the papers; for cross-entropy the largest eigenvalue of
    mean(diag p - p p^T), an approximation.
    """
    loss = subject.objective.loss
    if isinstance(loss, SquaredLoss) and loss.is_half_mean:
        return 1.0
    if not isinstance(loss, CrossEntropy):
        return float("nan")
    risk = subject.first().risk()
    function = risk.function()
    with function.open(), torch.no_grad():
        (outputs,) = float_leaves(function(function.values, risk.batches[0]))
    p = torch.softmax(outputs.double().reshape(-1, outputs.shape[-1]), dim=1)
    mean = torch.diag(p.mean(0)) - p.T @ p / len(p)
    return float(torch.linalg.eigvalsh(mean)[-1])
