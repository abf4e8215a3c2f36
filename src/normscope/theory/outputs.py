"""What a norm on the outputs makes of A1 and A2: lambda_max, bounds and trace of one network."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.refs import Equation, equations_of
from normscope.theory.fisher import (
    last_batch_norm_bounds,
    last_variance_norm,
    mean_direction,
    mean_subtraction_bounds,
    mean_subtraction_linearised,
    mean_subtraction_trace,
    second_moment_bound,
)
from normscope.theory.layernorm import (
    DRAWS,
    HEAVY,
    output_norm_bounds,
    output_norm_estimate,
    output_norm_leading,
    output_norm_statistics,
)

CENTRED = 1e-9  # off-diagonal over diagonal below which the mean direction is lost

NO_GRADIENT = "No gradient is left: signals or gradients vanish on the way (F = 0)."


@dataclass
class Draft:
    """The numbers of one prediction while they are being put together."""

    trace: float
    lambda_max: float | None = None
    lower: float | None = None
    upper: float | None = None
    standard_error: float | None = None
    quantiles: dict[str, float] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    equations: tuple[Equation, ...] = ()


@dataclass(frozen=True)
class Sums:
    """A1 and A2 of one network, with what the formulas for its outputs need."""

    a1: float
    a2: float
    overlap: float  # largest ratio of off-diagonal to diagonal among the layers
    samples: float
    outputs: int
    input_width: int
    slope: float | None
    q_t: float
    q_st: float
    realised: Array | None  # (T, C), outputs of one network before the norm
    blocked: bool  # gamma = 0 somewhere: terms vanish with gamma, not for want of overlap

    @property
    def centred(self) -> bool:
        """True if the mean direction is lost: no layer's gradients overlap, or they cancel."""
        return not self.blocked and (self.overlap <= CENTRED or self.a2 <= 0)


def with_output_norm(last_norm: str | None, sums: Sums, seed: int) -> Draft:
    """lambda_max, bounds and trace for the norm on the outputs."""
    if last_norm == "mean":
        return _mean_subtracted(sums)
    if last_norm == "variance":
        return _variance_normed(sums)
    if last_norm == "batch":
        return _batch_normed(sums)
    if last_norm == "layer":
        return _layer_normed(sums, seed)
    return _unchanged(sums)


def _unchanged(sums: Sums) -> Draft:
    draft = Draft(
        trace=sums.outputs * sums.a1,
        equations=equations_of(mean_direction) + equations_of(second_moment_bound),
    )
    if sums.a1 == 0:
        return _vanished(draft, NO_GRADIENT)
    if sums.centred:
        return _without_outlier(draft, sums)
    value = float(mean_direction(sums.a1, sums.a2, samples=sums.samples))
    draft.lambda_max, draft.lower = value, value
    draft.upper = float(
        second_moment_bound(sums.a1, sums.a2, samples=sums.samples, outputs=sums.outputs)
    )
    bulk = None if sums.slope is None else sums.slope * _edge(sums)
    if bulk is not None and sums.samples > 1 and sums.a2 < bulk:
        draft.flags.append(
            f"The mean direction ({value:.4g}) does not stand out: the bulk's edge from the "
            f"spread of input overlaps is about {bulk + sums.a1 / sums.samples:.4g}."
        )
    return draft


def _vanished(draft: Draft, flag: str) -> Draft:
    """``draft`` of a matrix that is zero, with the reason."""
    draft.lambda_max = draft.lower = draft.upper = 0.0
    draft.flags.append(flag)
    return draft


def _without_outlier(draft: Draft, sums: Sums) -> Draft:
    """Bounds where two samples' gradients do not overlap on average; their spread is then left."""
    t = sums.samples
    spread2 = 0.0 if sums.slope is None else sums.slope**2 / sums.input_width
    moment = sums.a1**2 / t + (1 - 1 / t) * (sums.a2**2 + spread2)  # tr F*^2 of one output
    draft.lower = max(moment / sums.a1, (sums.a1 - sums.a2) / t)
    draft.upper = math.sqrt(sums.outputs * moment)
    what = "The network is centred: two samples' gradients do not overlap"
    if sums.a2 < -CENTRED * sums.a1:
        what = "Two samples' gradients are opposed, as in a centred network"
    draft.flags.append(
        f"{what} (A2 = {sums.a2:.3g} against A1 = {sums.a1:.3g}), so the leading term of "
        "lambda_max vanishes and no outlier stands apart from the bulk. lower and upper come from "
        "the second moment of the spectrum. Biases, an activation that is not odd or, with batch "
        "norm, more samples bring the outlier back; measuring the network gives the bulk's edge."
    )
    if math.isinf(t) and sums.slope is None:
        _unbounded(draft)
    return draft


def _unbounded(draft: Draft) -> None:
    """At T to infinity the leading term of an upper bound is 0, and says nothing."""
    draft.lower, draft.upper = 0.0, None
    draft.flags.append(
        "The leading term of the upper bound vanishes as T grows at fixed width; what is left is "
        "O(1) and not known. Give samples= for bounds."
    )


def _edge(sums: Sums) -> float:
    return 2 / math.sqrt(sums.samples * sums.input_width) + 1 / sums.input_width


def _mean_subtracted(sums: Sums) -> Draft:
    t, c = sums.samples, sums.outputs
    lower, upper = mean_subtraction_bounds(sums.a1, sums.a2, samples=t, outputs=c)
    draft = Draft(
        trace=float(mean_subtraction_trace(sums.a1, sums.a2, samples=t, outputs=c)),
        lower=float(lower),
        upper=float(upper),
        equations=equations_of(mean_subtraction_bounds) + equations_of(mean_subtraction_trace),
    )
    if sums.slope is None:
        draft.flags.append(
            "lambda_max after mean subtraction is known in closed form for dense networks without "
            "batch norm in the hidden layers; here only its leading-order bounds are."
        )
        if math.isinf(t):
            _unbounded(draft)
        return draft
    value = float(
        mean_subtraction_linearised(
            sums.a1, sums.a2, sums.slope, samples=t, input_width=sums.input_width
        )
    )
    # With a handful of samples the edge exceeds one output's second moment or trace: cap it.
    spread = math.sqrt((sums.a1 - sums.a2) ** 2 / t + sums.slope**2 / sums.input_width)
    draft.lambda_max = min(value, spread, draft.trace / c)
    if draft.lambda_max < value:
        draft.flags.append(
            f"The edge of the input overlaps ({value:.4g}) is more than {t:g} samples of "
            f"{sums.input_width} inputs can carry: lambda_max is capped by one output's trace."
        )
    draft.equations += equations_of(mean_subtraction_linearised)
    if draft.lambda_max > float(upper):
        draft.upper = math.sqrt(c) * spread
        draft.flags.append(
            f"T = {t:g} is not small against the input width {sums.input_width}: the paper's "
            f"upper bound with c2 = 0 ({float(upper):.4g}) is too low, so the spread of the input "
            "overlaps was added to it."
        )
    return draft


def _statistics(sums: Sums) -> tuple[Array, Array]:
    """Variances and squared means of the outputs over the batch: realised, or mean-field."""
    if sums.realised is not None:
        variances, means2 = sums.realised.var(axis=0), sums.realised.mean(axis=0) ** 2
    else:
        spread = sums.q_t - sums.q_st
        variances = np.full(sums.outputs, (1 - 1 / sums.samples) * spread)
        means2 = np.full(sums.outputs, sums.q_st + spread / sums.samples)
    if not (variances > 0).all():
        raise TheoryError(
            "A norm on the outputs divides by their variance over the data, which is zero "
            "here: all samples give the same output. Check the variances of the spec."
        )
    return variances, means2


def _variance_normed(sums: Sums) -> Draft:
    variances, means2 = _statistics(sums)
    value, trace, moment = last_variance_norm(
        sums.a1, sums.a2, samples=sums.samples, variances=variances, squared_means=means2
    )
    draft = Draft(trace=trace, equations=equations_of(last_variance_norm))
    if sums.a1 == 0:
        return _vanished(draft, NO_GRADIENT)
    draft.lambda_max, draft.lower, draft.upper = value, value, math.sqrt(moment)
    if sums.centred:
        draft.lambda_max, draft.lower = None, moment / trace
        draft.flags.append("The network is centred: the leading term of lambda_max vanishes.")
        if math.isinf(sums.samples):
            _unbounded(draft)
    return draft


def _batch_normed(sums: Sums) -> Draft:
    t = sums.samples
    if t == 2:
        draft = Draft(trace=0.0, equations=equations_of(last_batch_norm_bounds))
        flag = "Two samples behind batch norm on the outputs always map to -1 and 1: F = 0."
        return _vanished(draft, flag)
    _, _, trace, lower, upper = last_batch_norm_bounds(
        sums.a1, sums.a2, samples=t, variances=_statistics(sums)[0]
    )
    draft = Draft(trace=(1 - 2 / t) * trace, equations=equations_of(last_batch_norm_bounds))
    if math.isinf(t):
        draft.flags.append(
            "With batch norm on the outputs the leading terms of both bounds vanish as T grows at "
            "fixed width; what is left is O(1) and not known. Give samples= for bounds."
        )
        return draft
    draft.lower, draft.upper = lower, upper
    draft.flags.append(
        "With batch norm on the outputs only bounds of lambda_max are known (leading order, "
        "constants taken as zero); measure the network for its value."
    )
    return draft


def _layer_normed(sums: Sums, seed: int) -> Draft:
    if sums.outputs <= 2:
        draft = Draft(trace=0.0, equations=equations_of(output_norm_bounds))
        flag = (
            "Layer norm over two outputs or fewer leaves no freedom: they are -1 and 1 (or 0) for "
            "every input, so F = 0."
        )
        return _vanished(draft, flag)
    terms = {"diagonal": sums.a1, "offdiagonal": sums.a2, "samples": sums.samples}
    draft = Draft(trace=0.0, equations=equations_of(output_norm_bounds))
    if sums.realised is not None:
        etas = output_norm_statistics(sums.realised)
        _, draft.lower, draft.upper = output_norm_bounds(**terms, outputs=sums.outputs, etas=etas)
        gap = (sums.a1 - sums.a2) / sums.samples
        draft.lambda_max = output_norm_leading(sums.realised, sums.a2, gap=gap)
        draft.trace = (sums.outputs - 2) * etas[0] * sums.a1
        draft.equations += equations_of(output_norm_leading)
        return _centred_layer_norm(draft, sums)
    if sums.q_t <= 0:
        raise TheoryError("Layer norm on the outputs divides by their spread, which is zero here.")
    if sums.a1 == 0:
        return _vanished(draft, NO_GRADIENT)
    made = output_norm_estimate(sums.q_t, sums.q_st, **terms, outputs=sums.outputs, seed=seed)
    draft.trace = (sums.outputs - 2) * made.eta1 * sums.a1
    draft.lambda_max, draft.lower, draft.upper = made.lambda_max, made.lower, made.upper
    draft.standard_error, draft.quantiles = made.standard_error, made.quantiles
    draft.equations += equations_of(output_norm_estimate)
    if sums.outputs <= HEAVY:
        low, high = made.quantiles["0.05"], made.quantiles["0.95"]
        draft.flags.append(
            f"With {sums.outputs} outputs layer norm makes lambda_max heavy-tailed, and its mean "
            f"over networks is not finite. The numbers are medians over {DRAWS} random draws of "
            f"the outputs; 90 % of lambda_max lie between {low:.4g} and {high:.4g}. For one "
            "network, pass its outputs before the norm: outputs=U."
        )
    return _centred_layer_norm(draft, sums)


def _centred_layer_norm(draft: Draft, sums: Sums) -> Draft:
    if sums.centred:
        draft.lambda_max = None
        draft.flags.append("The network is centred: the leading term of lambda_max vanishes.")
    return draft
