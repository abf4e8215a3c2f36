"""The measurements of an examination."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from normscope.diagnose import trial
from normscope.diagnose._curvature import largest_curvature
from normscope.diagnose.comparison import TOLERANCE, compared, coverable, plain_risk, predictions
from normscope.diagnose.learning_rate import advised
from normscope.diagnose.predicted import changed
from normscope.diagnose.rules.signals import DEAD
from normscope.diagnose.steps import Results, probed, step
from normscope.diagnose.subject import POPULATION, Subject
from normscope.diagnose.what_if import tabled
from normscope.measure import fisher, hessian
from normscope.measure.outliers import leading_directions
from normscope.measure.probes.activations import activations
from normscope.measure.probes.conditioning import conditioning
from normscope.measure.probes.layout import norm_layout
from normscope.measure.probes.modes import modes_of
from normscope.measure.probes.order_parameters import order_parameters
from normscope.measure.probes.signals import signals
from normscope.measure.regularization import bn_regularization
from normscope.measure.setup import data_card, set_up
from normscope.measure.spectral import spectral_density, top_eigenvalues
from normscope.messages import said
from normscope.results import Activations
from normscope.subject.running import running_norms
from normscope.subject.statistics import frozen_norms

COARSE = 0.05  # of further eigenvalues, of which the size matters
LARGE = 64  # samples from which a batch is not small for batch statistics
DIRECTIONS = 4  # of the outputs, that gradients are taken in
NUM_BATCHES = 32  # behind a measured gap
MANY_OUTPUTS = 256  # for each the mean gradient takes a backward pass


def _updates(number: float) -> Callable[[Subject], float]:
    """The cost of so many gradients of one batch, in gradients of all batches."""
    return lambda subject: number / len(subject.batches)


def _needs_outputs(subject: Subject) -> str | None:
    if subject.objective.has_outputs:
        return None
    return (
        "the loss is loss_fn(model, batch), which hides the outputs that this needs; loss= with "
        "outputs_fn=(model, batch) -> (outputs, targets) shows them"
    )


def _needs_batch_norm(subject: Subject) -> str | None:
    if not subject.batch_norms:
        if frozen_norms(subject.model):
            return "every batch norm is in evaluation mode, and uses stored statistics"
        return "the network has no batch norm"
    return _needs_outputs(subject)


def _needs_few_outputs(subject: Subject) -> str | None:
    reason = _needs_outputs(subject)
    if reason is None and subject.outputs_per_sample > MANY_OUTPUTS:
        reason = (
            f"the model gives {subject.outputs_per_sample} numbers per sample, and each would take "
            f"a backward pass; up to {MANY_OUTPUTS} are looked at"
        )
    return reason


def _needs_nodes(subject: Subject) -> str | None:
    reason = _needs_prediction(subject)
    try:
        _ = reason or subject.nodes
    except Exception as error:
        reason = said(error)
    return reason


def _needs_theory(subject: Subject) -> str | None:
    reason = _needs_outputs(subject)
    if reason is None:
        try:
            coverable(subject)
        except Exception as error:  # whatever a user's module raises when it is read
            reason = said(error)
    return reason


def _needs_prediction(subject: Subject) -> str | None:
    return None if _needs_theory(subject) is None else "there is no prediction to compare with"


def _of_outliers(subject: Subject) -> float:
    """The mean gradients, their products and directions; and the vectors of Lanczos."""
    return 4 * subject.outputs_per_sample + 20


@step("wiring", "fast", 1.5, gives=("wiring", "start", "data"))
def _wiring(subject: Subject, results: Results) -> Any:
    """Are data, model, loss and optimizer joined as they should be?"""
    problem = replace(subject.problem, graph=subject.graph)
    found = set_up(problem, subject.batches[0], subject.held, subject.foreign)
    classes = max((call.classes for call in found.wiring.calls), default=0)
    data = data_card(subject.population.batches, found.given, found.target, classes)
    again = bool(getattr(getattr(subject.data, "sampler", None), "replacement", False))
    data = replace(data, last=_last(subject), replacement=again)
    return {"wiring": found.wiring, "start": found.start, "data": data}


def _last(subject: Subject) -> int:
    """Samples in the last batch of a loader; 0 if that is not known."""
    loader = subject.data
    if not isinstance(loader, DataLoader) or loader.drop_last or loader.batch_size is None:
        return 0
    with contextlib.suppress(TypeError):  # without a length
        return len(loader.sampler) % loader.batch_size or loader.batch_size  # type: ignore[arg-type]
    return 0


@step("layout", "fast", 1)
def _layout(subject: Subject, results: Results) -> Any:
    """Where is it normalized, and are the norms in use?"""
    return probed(subject, norm_layout)


@step("sharpness", "fast", 8)
def _sharpness(subject: Subject, results: Results) -> Any:
    """How sharp is the loss in its sharpest direction (Gauss-Newton matrix of the loss)?"""
    return largest_curvature(subject)


@step("signals", "fast", 5, gives=("activations", "gradients"))
def _signals(subject: Subject, results: Results) -> Any:
    """How do activations and gradients change with depth, and do they depend on the input?"""
    found = probed(subject, signals, quantities=("alignment",))
    return {"activations": _on_more(subject, found.activations), "gradients": found.gradients}


def _on_more(subject: Subject, found: Activations) -> Activations:
    """The same on more samples, where units look dead on few and the data has more."""
    suspect = any(signal.dying.mean() >= DEAD for signal in found.rectified)
    if subject.further is None or not suspect or found.num_samples >= POPULATION:
        return found
    problem = replace(subject.problem, source=subject.further, graph=subject.graph)
    number = math.ceil(POPULATION / subject.samples)
    more = activations(subject.model, problem, num_batches=number, seed=subject.seed)
    return more if more.num_samples > found.num_samples else found


def _small(subject: Subject) -> int:
    """Batches that the modes are compared on: more than were kept where these are small."""
    kept = len(subject.batches)
    return max(kept, math.ceil(LARGE / subject.samples)) if subject.further is not None else kept


def _passes(subject: Subject) -> float:
    """Forward passes for train and evaluation mode, with statistics made again if they are kept."""
    model = subject.model
    kept, frozen = bool(running_norms(model)), bool(frozen_norms(model))
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())
    number = 2 + drops + kept + frozen + (1 + 2 * kept) * (subject.evaluation is not None)
    return number / 3 * _small(subject) / len(subject.batches)


@step("modes", "fast", _passes)
def _modes(subject: Subject, results: Results) -> Any:
    """Is the loss the same in evaluation mode, and do the running statistics fit?"""
    problem, number = subject.problem, _small(subject)
    if subject.further is not None and number > len(subject.batches):
        problem = replace(problem, source=subject.further)
    return modes_of(problem, subject.evaluation, number)


@step(
    "trial",
    "fast",
    lambda subject: trial.usual_cost(subject) / len(subject.batches),
    obstacle=trial.obstacle,
)
def _trial(subject: Subject, results: Results) -> Any:
    """Does it learn at this learning rate? (25 updates of copies, with your optimizer)"""
    return trial.tried(subject, results)


@step("hessian", "standard", 15, vectors=lambda _: 20)
def _hessian(subject: Subject, results: Results) -> Any:
    """How sharp is the loss itself (Hessian)?"""
    return top_eigenvalues(hessian(subject.risk()), tol=COARSE, seed=subject.seed)


@step("outliers", "standard", _updates(25), obstacle=_needs_few_outputs, vectors=_of_outliers)
def _outliers(subject: Subject, results: Results) -> Any:
    """How much of the sharpness is the mean gradient (pathological sharpness)?"""
    return leading_directions(plain_risk(subject), k=1, tol=TOLERANCE, seed=subject.seed)


@step("conditioning", "standard", 2)
def _conditioning(subject: Subject, results: Results) -> Any:
    """How well conditioned is each layer?"""
    return probed(subject, conditioning)


@step("density", "standard", 18, obstacle=_needs_outputs)
def _density(subject: Subject, results: Results) -> Any:
    """How are all eigenvalues spread?"""
    return spectral_density(fisher(subject.risk()), num_vectors=2, steps=8, seed=subject.seed)


@step("regularization", "standard", 20, obstacle=_needs_batch_norm)
def _regularization(subject: Subject, results: Results) -> Any:
    """How much does the noise of batch statistics add to the loss,
    in all and in the middle layer?
    """
    unused = {norm.name for norm in results["layout"].unused} if "layout" in results else set()
    names = [name for name in subject.batch_norms if name not in unused]
    # The gap falls like 1 / batch size as soon as batches are not small.
    size = subject.samples if subject.samples < LARGE else max(subject.samples // 4, LARGE)
    return bn_regularization(
        subject.model,
        subject.population,
        subject.objective,
        batch_size=size,
        layers=names[len(names) // 2],
        num_batches=NUM_BATCHES,
        max_samples=max(subject.samples, POPULATION),
        probes=2,
        seed=subject.seed,
    )


@step("prediction", "standard", _updates(6), obstacle=_needs_theory)
def _prediction(subject: Subject, results: Results) -> Any:
    """What does mean-field theory say, with and without the norms?"""
    return predictions(subject)


@step("comparison", "standard", _updates(10), obstacle=_needs_prediction)
def _comparison(subject: Subject, results: Results) -> Any:
    """Do prediction and measurement agree?"""
    return compared(subject, results)


@step("order_parameters", "standard", _updates(8), obstacle=_needs_nodes)
def _order_parameters(subject: Subject, results: Results) -> Any:
    """How large are signals and gradients in each layer, predicted and measured?"""
    return probed(subject.first(), order_parameters, directions=DIRECTIONS)


@step("changes", "standard", _updates(12), obstacle=_needs_nodes)
def _changes(subject: Subject, results: Results) -> Any:
    """What does theory say of other widths, depths and norms?"""
    return changed(subject)


@step("stability", "full", _updates(800), gives=("stability", "advice"), anytime=True)
def _stability(subject: Subject, results: Results) -> Any:
    """Which learning rate trains best, and at which does training stop learning or diverge?"""
    advice = advised(subject)
    return {"stability": advice.limit, "advice": advice}


@step("what_if", "full", _updates(2200), anytime=True)
def _what_if(subject: Subject, results: Results) -> Any:
    """What would change if its norms were placed or scaled otherwise?"""
    return tabled(subject, None)
