"""The few numbers of each measurement that one would want to see first, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from normscope.record import Record
from normscope.results.activations import Activations
from normscope.results.comparison import Comparison
from normscope.results.conditioning import Conditioning
from normscope.results.density import SpectralDensity
from normscope.results.gradients import Gradients
from normscope.results.layout import Layout
from normscope.results.learning_rate import LRAdvice
from normscope.results.modes import Modes
from normscope.results.outliers import LeadingDirections
from normscope.results.prediction import PredictionSet
from normscope.results.regularization import BatchNormRegularization
from normscope.results.spectrum import Spectrum
from normscope.results.stability import StabilityLimit
from normscope.results.trial import Trial
from normscope.results.what_if import WhatIf

P = 0.5  # share of kappa_p that is shown


@dataclass(frozen=True, eq=False)
class KeyNumber(Record):
    """A number of a measurement.

    Attributes:
        quantity: what it is, in words; the same for every network.
        value: the number.
        meaning: how to read it, in one line.
        low: lower end of its interval; NaN if it has none.
        high: upper end.
    """

    quantity: str
    value: float
    meaning: str = ""
    low: float = math.nan
    high: float = math.nan


def key_numbers(result: object) -> tuple[KeyNumber, ...]:
    """Those of ``result``; none for a kind of result that has no short form."""
    read = READINGS.get(type(result).__name__)
    return () if read is None else tuple(n for n in read(result) if not math.isnan(n.value))


def _layout(found: Layout) -> Iterator[KeyNumber]:
    share = found.normalized / found.hidden_layers if found.hidden_layers else math.nan
    yield KeyNumber(
        "share of hidden layers normalized", share, f"{found.normalized} of {found.hidden_layers}"
    )
    yield KeyNumber("norms", len(found.norms), f"{len(found.unused)} of them never used")
    yield KeyNumber(
        "mean square of the last layer's inputs", found.last_input_power,
        "about 1 behind a norm; the curvature of the last layer is proportional to it",
    )  # fmt: skip


def _spectrum(found: Spectrum) -> Iterator[KeyNumber]:
    top, bound = found.largest, float(found.bounds[int(found.values.argmax())])
    yield KeyNumber(
        "lambda_max", top, "curvature in the sharpest direction", top - bound, top + bound
    )
    if top > 0:
        yield KeyNumber(
            "2 / lambda_max", 2 / top,
            "learning rate above which plain gradient descent overshoots in that direction",
            2 / (top + bound), 2 / (top - bound) if top > bound else math.inf,
        )  # fmt: skip


def _activations(found: Activations) -> Iterator[KeyNumber]:
    for growth in found.growth[:1]:
        ends = [10.0 ** (growth.slope + sign * 2 * growth.error) for sign in (-1, 1)]
        yield KeyNumber(
            "factor of the variance per layer", growth.factor,
            "1 keeps signals alive; above they grow with depth, below they vanish", *ends,
        )  # fmt: skip
        if math.isfinite(growth.overflow_layer):
            yield KeyNumber(
                "layer at which float32 overflows", growth.overflow_layer, "at this rate of growth"
            )
    if found.rectified:
        units = sum(len(s.mean) for s in found.rectified)
        dead, full = (
            sum(int(getattr(s, kind).sum()) for s in found.rectified) / units
            for kind in ("dying", "full")
        )
        yield KeyNumber("share of dead units", dead, "zero for every sample")
        yield KeyNumber("share of always active units", full, "these act linearly")


def _gradients(found: Gradients) -> Iterator[KeyNumber]:
    yield KeyNumber("loss", found.loss, "on the batches looked at")
    ratios = [layer.alignment for layer in found.layers if math.isfinite(layer.alignment)]
    if ratios:
        yield KeyNumber(
            "median alignment T4 / T1", float(np.median(ratios)),
            "1 if all samples pull a weight one way, near 0 if they cancel",
            min(ratios), max(ratios),
        )  # fmt: skip
    sizes = [layer.mean_abs for layer in found.layers if layer.mean_abs > 0]
    if sizes:
        yield KeyNumber(
            "largest / smallest mean gradient of a layer", max(sizes) / min(sizes),
            "1 if all layers learn at the same speed",
        )  # fmt: skip
    if found.outputs is not None:
        yield KeyNumber(
            "share of samples given the favoured class",
            float(found.outputs.predicted[found.outputs.favoured]),
            f"class {found.outputs.favoured}",
        )


def _modes(found: Modes) -> Iterator[KeyNumber]:
    for name, score in found.scores.items():
        share = "" if math.isnan(score.accuracy) else f"accuracy {score.accuracy:.3g}, "
        yield KeyNumber(f"loss, {name}", score.loss, f"{share}{score.num_samples} samples")


def _trial(found: Trial) -> Iterator[KeyNumber]:
    for rung in found.rungs:
        if math.isfinite(rung.after):
            name = f"loss after {rung.updates} updates at {rung.factor:g} times the rate"
            yield KeyNumber(name, rung.after, f"{found.before:.3g} before")
    if not math.isnan(found.constant):
        yield KeyNumber("loss of the best constant prediction", found.constant, "to get below")
    yield KeyNumber("gradients that the trial took", found.gradients, "of the loss of one batch")


def _outliers(found: LeadingDirections) -> Iterator[KeyNumber]:
    top, bound = float(found.values[0]), float(found.bounds[0])
    yield KeyNumber(
        "lambda_max of J^T J / T", top, "over the weights, the matrix of the theory",
        top - bound, top + bound,
    )  # fmt: skip
    if top > 0:
        yield KeyNumber(
            "share of lambda_max along mean gradients", found.explained,
            "1 if the sharpest direction only shifts an output for all samples together",
        )  # fmt: skip


def _conditioning(found: Conditioning) -> Iterator[KeyNumber]:
    if not found.layers:
        return
    kappas, sizes = found.kappa(P), found.lambda_max()
    yield KeyNumber(
        "median kappa_50%", float(np.median(kappas)),
        "sharpest over middle direction of a layer; 1 is ideal",
        float(kappas.min()), float(kappas.max()),
    )  # fmt: skip
    known = sizes[sizes > 0]
    if len(known):
        yield KeyNumber(
            "largest / smallest lambda_max of a layer", float(known.max() / known.min()),
            "1 if one learning rate suits all layers",
        )  # fmt: skip
    last = found.layers[-1].inputs
    yield KeyNumber(
        "lambda_max of the last layer's inputs", last.largest / len(last.values),
        "per feature; below 2 behind a norm",
    )  # fmt: skip


def _density(found: SpectralDensity) -> Iterator[KeyNumber]:
    mean = found.moment(1)
    yield KeyNumber(
        "mean eigenvalue", mean.value, "over all directions, the flat ones too",
        mean.value - 2 * mean.standard_error, mean.value + 2 * mean.standard_error,
    )  # fmt: skip
    top = float(found.nodes.max())
    if mean.value > 0:
        yield KeyNumber(
            "largest / mean eigenvalue", top / mean.value, "how far the sharpest stands out"
        )
    yield KeyNumber(
        "share of eigenvalues exactly 0", found.zero_mass, "directions that change nothing"
    )


def _regularization(found: BatchNormRegularization) -> Iterator[KeyNumber]:
    size, gap = int(found.batch_sizes[-1]), float(found.together[-1])
    error = 2 * float(found.together_error[-1])
    yield KeyNumber(
        "loss that batch noise adds", gap, f"at batch size {size}, all measured norms together",
        gap - error, gap + error,
    )  # fmt: skip
    yield KeyNumber(
        "loss under population statistics", found.population_loss, "what it is added to"
    )
    zeta = float(np.mean([layer.zeta[-1].mean() for layer in found.layers]))
    yield KeyNumber("zeta", zeta, "gamma decay that it amounts to, mean over norms and channels")


def _prediction(found: PredictionSet) -> Iterator[KeyNumber]:
    for prediction, whose in zip(found, ("as it is", "without its norms"), strict=False):
        if prediction.lambda_max is None:
            continue
        low, high = (
            math.nan if end is None else end for end in (prediction.lower, prediction.upper)
        )
        yield KeyNumber(
            f"predicted lambda_max {whose}", prediction.lambda_max_split or prediction.lambda_max,
            "of J^T J / T over the weights, wide layers", low, high,
        )  # fmt: skip


def _comparison(found: Comparison) -> Iterator[KeyNumber]:
    low, high = found.measured - found.bound, found.measured + found.bound
    yield KeyNumber("predicted lambda_max", found.predicted, "by mean-field theory")
    yield KeyNumber("measured lambda_max", found.measured, "of the same matrix", low, high)
    if found.predicted:
        yield KeyNumber("measured / predicted", found.ratio, "1 if theory and network agree")


def _stability(found: StabilityLimit) -> Iterator[KeyNumber]:
    for bound, quantity, meaning in (
        (found.does_not_learn, "stops learning above", "the loss falls less than half as far"),
        (found.diverges, "diverges at", "from here on the loss blows up"),
    ):
        value = bound.lr if bound.closed else math.inf if bound.low > 0 else math.nan
        yield KeyNumber(quantity, value, bound.reason or meaning, bound.low, bound.high)


def _advice(found: LRAdvice) -> Iterator[KeyNumber]:
    yield KeyNumber(
        "recommended learning rate", found.lr, "the interval trains almost as well",
        found.low, found.high,
    )  # fmt: skip


def _what_if(found: WhatIf) -> Iterator[KeyNumber]:
    best = found.best
    if best is not None:
        value, low, high = found.loss_ratio(best)
        yield KeyNumber(
            "loss reached after / before, best change", value, best.change, low, high,
        )  # fmt: skip
        ratio, low, high = found.limit_ratio(best)
        if low > 0:
            yield KeyNumber(
                "stable rate after / before, best change", ratio, best.change, low, high
            )


READINGS: dict[str, Callable[[Any], Iterator[KeyNumber]]] = {
    "Activations": _activations,
    "BatchNormRegularization": _regularization,
    "Comparison": _comparison,
    "Conditioning": _conditioning,
    "Gradients": _gradients,
    "LRAdvice": _advice,
    "Layout": _layout,
    "LeadingDirections": _outliers,
    "Modes": _modes,
    "Trial": _trial,
    "PredictionSet": _prediction,
    "SpectralDensity": _density,
    "Spectrum": _spectrum,
    "StabilityLimit": _stability,
    "WhatIf": _what_if,
}
