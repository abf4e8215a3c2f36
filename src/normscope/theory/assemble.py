"""From Gram terms to a prediction: the norm on the outputs, bounds, flags."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normscope.errors import TheoryError
from normscope.refs import Equation, equations_of
from normscope.results.prediction import Prediction
from normscope.spec import NetworkSpec, activation
from normscope.theory.fisher import (
    batch_norm_lower_bound,
    last_batch_norm_bounds,
    mean_direction,
    mean_subtraction_bounds,
    mean_subtraction_linearised,
    mean_subtraction_trace,
    second_moment_bound,
    split_lambda_max,
)
from normscope.theory.grams import Gram
from normscope.theory.kernel import PairwiseGram, pairwise_gram
from normscope.theory.layernorm import output_norm_bounds, output_norm_estimate
from normscope.theory.meanfield.networks import Networks

__all__ = ["assembled", "assembled_from_data"]

Array = NDArray[np.float64]
FEW = 10  # values behind a batch statistic below which 1/T terms are large
CENTRED = 1e-9  # off-diagonal over diagonal below which the mean direction is lost


@dataclass
class _Draft:
    """The numbers of one prediction while they are being put together."""

    trace: float
    lambda_max: float | None = None
    lower: float | None = None
    upper: float | None = None
    standard_error: float | None = None
    flags: list[str] = field(default_factory=list)
    equations: tuple[Equation, ...] = ()


@dataclass(frozen=True)
class _Sums:
    """A1 and A2 of one network, with what the formulas for its outputs need."""

    a1: float
    a2: float
    samples: float
    outputs: int
    input_width: int
    slope: float | None
    q_t: float
    q_st: float


def assembled(
    spec: NetworkSpec,
    nets: Networks,
    gram: Gram,
    column: int,
    *,
    theory: str,
    samples: int | None,
    parameters: str,
    seed: int,
) -> Prediction:
    """The prediction of network ``column`` of a stack."""
    t = math.inf if samples is None else float(samples)
    order = {name: np.ascontiguousarray(rows[:, column]) for name, rows in gram.order.items()}
    _check_finite(spec, order)
    sums = _Sums(
        a1=sum(float(terms.diagonal[:, column].sum()) for terms in gram.kinds.values()),
        a2=sum(float(terms.offdiagonal[:, column].sum()) for terms in gram.kinds.values()),
        samples=t,
        outputs=spec.outputs,
        input_width=math.prod(spec.input_shape),
        slope=None if gram.slope is None else float(gram.slope[column]),
        q_t=float(order["q"][-1]),
        q_st=float(order["q_st"][-1]),
    )
    draft = _with_outputs(spec, sums, seed)
    per_layer = np.array(gram.per_layer(nets.samples)[:, column])
    if spec.last_norm is None:
        if gram.printed is not None:
            _as_printed(draft, per_layer, spec)
        if gram.last_hats is not None and draft.lambda_max is not None:
            hats = (float(gram.last_hats[0][column]), float(gram.last_hats[1][column]))
            bound = float(batch_norm_lower_bound(spec.fan_ins[-1], *hats, samples=t))
            draft.lower = min(max(bound, 0.0), draft.lambda_max)
            draft.equations += equations_of(batch_norm_lower_bound)
    _flag_gamma(spec, draft, per_layer, sums)
    _flag_few_samples(spec, draft, theory, samples)
    per_kind = {
        name: float(
            mean_direction(
                terms.diagonal[:, column].sum(), terms.offdiagonal[:, column].sum(), samples=t
            )
        )
        for name, terms in gram.kinds.items()
    }
    return _prediction(
        spec,
        draft,
        per_layer,
        order,
        per_kind=per_kind,
        theory=theory,
        samples=samples,
        parameters=parameters,
        equations=gram.equations,
    )


def assembled_from_data(
    spec: NetworkSpec, gram: Array, *, theory: str, parameters: str
) -> Prediction:
    """The prediction on real data: the pairwise kernel, diagonalised."""
    if spec.last_norm not in (None, "mean"):
        raise TheoryError(
            f"Real inputs are covered without norm on the outputs and with last_norm='mean'. Got "
            f"{spec.last_norm!r}. Leave inputs out, or measure the network on the data."
        )
    _check_real_variances(spec)
    size = len(gram)
    pairwise = pairwise_gram(spec, gram)
    kinds = {"weight": pairwise.weight}
    if parameters == "all":
        kinds["bias"] = pairwise.bias
        if spec.norm is not None:
            kinds |= {"gamma": pairwise.scale, "beta": pairwise.shift}
    total = np.sum([np.sum(k, axis=0) for k in kinds.values()], axis=0)
    centre = np.eye(size) - (1 / size if spec.last_norm == "mean" else 0.0)
    matrix = centre @ total @ centre / size
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    top = centre @ vectors[:, -1]
    draft = _Draft(
        trace=float(spec.outputs * values.sum()),
        lambda_max=float(values[-1]),
        lower=float((values**2).sum() / values.sum()),
        upper=float(np.sqrt(spec.outputs * (values**2).sum())),
        equations=equations_of(pairwise_gram),
    )
    per_layer = np.array(
        [sum(float(top @ k[row] @ top) for k in kinds.values()) for row in range(spec.depth)]
    )
    per_kind = {name: float(top @ k.sum(axis=0) @ top) / size for name, k in kinds.items()}
    return _prediction(
        spec,
        draft,
        per_layer / size,
        _kernel_order(spec, pairwise),
        per_kind=per_kind,
        theory=theory,
        samples=size,
        parameters=parameters,
        equations=(),
        real=True,
    )


def _with_outputs(spec: NetworkSpec, sums: _Sums, seed: int) -> _Draft:
    """lambda_max, bounds and trace for the norm on the outputs."""
    if spec.last_norm == "mean":
        return _mean_subtracted(sums)
    if spec.last_norm == "batch":
        return _batch_normed(sums)
    if spec.last_norm == "layer":
        return _layer_normed(sums, seed)
    draft = _Draft(
        trace=sums.outputs * sums.a1,
        upper=float(
            second_moment_bound(sums.a1, sums.a2, samples=sums.samples, outputs=sums.outputs)
        ),
        equations=equations_of(mean_direction) + equations_of(second_moment_bound),
    )
    value = float(mean_direction(sums.a1, sums.a2, samples=sums.samples))
    mean = sums.a1 / sums.samples  # the mean eigenvalue of F*, below the largest one
    if sums.a2 <= CENTRED * sums.a1:
        draft.lower = max(value, mean)
        draft.flags.append(
            "The network is centred: two samples' gradients do not overlap (A2 = "
            f"{sums.a2:.3g} against A1 = {sums.a1:.3g}), so the leading term of lambda_max "
            "vanishes and no outlier stands apart from the bulk. lower is the mean eigenvalue of "
            "the Gram matrix, upper the root of its second moment; biases or a non-odd activation "
            "bring the outlier back, and measuring the network gives the bulk's edge."
        )
        return draft
    draft.lambda_max, draft.lower = value, value
    if sums.slope is not None and sums.a2 < sums.slope * _edge(sums):
        draft.flags.append(
            f"The mean direction ({value:.4g}) does not stand out: the bulk's edge from the "
            f"spread of input overlaps is about {sums.slope * _edge(sums) + mean:.4g}."
        )
    return draft


def _edge(sums: _Sums) -> float:
    return 2 / math.sqrt(sums.samples * sums.input_width) + 1 / sums.input_width


def _mean_subtracted(sums: _Sums) -> _Draft:
    t, c = sums.samples, sums.outputs
    lower, upper = mean_subtraction_bounds(sums.a1, sums.a2, samples=t, outputs=c)
    draft = _Draft(
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


def _batch_normed(sums: _Sums) -> _Draft:
    t = sums.samples
    if t == 2:
        return _Draft(
            trace=0.0,
            lambda_max=0.0,
            lower=0.0,
            upper=0.0,
            flags=["Two samples behind batch norm on the outputs always map to -1 and 1: F = 0."],
            equations=equations_of(last_batch_norm_bounds),
        )
    variance = (1 - 1 / t) * (sums.q_t - sums.q_st)
    if variance <= 0:
        raise TheoryError(
            "Batch norm on the outputs divides by their variance over the data, which is zero "
            "here: all samples give the same output. Check the variances of the spec."
        )
    _, _, trace, lower, upper = last_batch_norm_bounds(
        sums.a1, sums.a2, samples=t, variances=np.full(sums.outputs, variance)
    )
    draft = _Draft(trace=(1 - 2 / t) * trace, equations=equations_of(last_batch_norm_bounds))
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


def _layer_normed(sums: _Sums, seed: int) -> _Draft:
    if sums.outputs <= 2:
        return _Draft(
            trace=0.0,
            lambda_max=0.0,
            lower=0.0,
            upper=0.0,
            flags=[
                "Layer norm over two outputs or fewer leaves no freedom: they are -1 and 1 (or "
                "0) for every input, so F = 0."
            ],
            equations=equations_of(output_norm_bounds),
        )
    if sums.q_t <= 0:
        raise TheoryError("Layer norm on the outputs divides by their spread, which is zero here.")
    made = output_norm_estimate(
        sums.q_t,
        sums.q_st,
        diagonal=sums.a1,
        offdiagonal=sums.a2,
        samples=sums.samples,
        outputs=sums.outputs,
        seed=seed,
    )
    draft = _Draft(
        trace=(sums.outputs - 2) * made.eta1 * sums.a1,
        lambda_max=made.lambda_max,
        lower=made.lower,
        upper=made.upper,
        standard_error=made.standard_error,
        equations=equations_of(output_norm_bounds) + equations_of(output_norm_estimate),
    )
    if sums.outputs <= 5:
        draft.flags.append(
            f"With {sums.outputs} outputs the inverse fourth moment of their spread has no finite "
            "mean: bounds and trace are averages of a heavy-tailed quantity."
        )
    if sums.a2 <= CENTRED * sums.a1:
        draft.lambda_max = None
        draft.flags.append("The network is centred: the leading term of lambda_max vanishes.")
    return draft


def _as_printed(draft: _Draft, per_layer: Array, spec: NetworkSpec) -> None:
    if draft.lambda_max is None:  # centred: the printed sum vanishes as well
        return
    total = float(per_layer.sum())
    draft.lambda_max, draft.lower = total, None
    draft.upper = math.sqrt(spec.outputs) * total
    draft.flags = [flag for flag in draft.flags if "stand out" not in flag]


def _flag_gamma(spec: NetworkSpec, draft: _Draft, per_layer: Array, sums: _Sums) -> None:
    zero = [
        number
        for number, layer in enumerate(spec.layers, start=1)
        if layer.norm is not None and layer.norm.gamma == 0
    ]
    if not zero:
        return
    size = 1e-9 * max(spec.fan_ins)
    draft.flags = [flag for flag in draft.flags if "centred" not in flag]
    if draft.lambda_max is None and spec.last_norm is None:
        draft.lambda_max = float(mean_direction(sums.a1, sums.a2, samples=sums.samples))
    for name in ("lambda_max", "lower", "upper", "trace"):
        value = getattr(draft, name)
        if value is not None and abs(value) < size:
            setattr(draft, name, 0.0)
    per_layer[np.abs(per_layer) < size] = 0.0
    draft.flags.append(
        f"gamma = 0 in layer(s) {', '.join(map(str, zero))}: the signal is blocked there, and the "
        "weights below have no gradient until gamma has grown. Values are the limit gamma to 0."
    )


def _flag_few_samples(spec: NetworkSpec, draft: _Draft, theory: str, samples: int | None) -> None:
    batch = spec.norm is not None and spec.norm.kind == "batch"
    if batch and theory == "corrected" and samples is not None:
        fewest = samples * min(spec.positions[1:-1])
        if fewest < FEW:
            draft.flags.append(
                f"Only {fewest} values stand behind each batch statistic: the hidden layers' terms "
                "are an expansion for many values, off by tens of per cent here."
            )


def _prediction(
    spec: NetworkSpec,
    draft: _Draft,
    per_layer: Array,
    order: dict[str, Array],
    *,
    per_kind: dict[str, float],
    theory: str,
    samples: int | None,
    parameters: str,
    equations: tuple[Equation, ...],
    real: bool = False,
) -> Prediction:
    count = spec.num_parameters(parameters)
    split = None
    if draft.lambda_max is not None and spec.last_norm is None:
        split = float(
            split_lambda_max(
                per_layer[-1],
                per_layer[:-1].sum(),
                outputs=spec.outputs,
                last_width=spec.widths[-2],
            )
        )
    all_equations = dict.fromkeys(str(e) for e in (*equations, *draft.equations))
    return Prediction(
        spec=spec,
        theory=theory,
        samples=samples,
        parameters=parameters,
        lambda_max=draft.lambda_max,
        lambda_max_split=split,
        lower=draft.lower,
        upper=draft.upper,
        trace=draft.trace,
        mean_eigenvalue=draft.trace / count,
        num_parameters=count,
        per_layer=per_layer,
        per_kind=per_kind,
        order_parameters=order,
        standard_error=draft.standard_error,
        assumptions=_assumptions(spec, theory, samples, parameters, real=real),
        flags=tuple(draft.flags),
        equations=tuple(all_equations),
    )


def _assumptions(
    spec: NetworkSpec, theory: str, samples: int | None, parameters: str, *, real: bool
) -> tuple[str, ...]:
    notes = ["Wide layers: corrections are O(1/sqrt(width)).", "Gaussian weights and biases."]
    if not real:
        notes.append("Inputs are independent, centred, of unit variance.")
    if parameters == "weights":
        notes.append("Weights only: biases, gamma and beta are not differentiated.")
    if spec.norm is not None and spec.norm.kind == "batch":
        notes.append(
            {
                "corrected": "Batch statistics are differentiated (train mode), T >> 1.",
                "frozen": "Batch statistics are held constant.",
                "wei2019": "As printed: statistics constant, variance taken as q, T to infinity.",
            }[theory]
        )
        smooth = [x.activation for x in spec.layers[:-1] if not _homogeneous(x.activation)]
        if smooth and samples is not None and samples < 30:
            notes.append(f"{smooth[0]} behind batch norm is expanded to O(1/T); T = {samples}.")
    if any(layer.is_conv for layer in spec.layers):
        notes.append("Feature-map positions are alike; real pixels are correlated.")
        if any(layer.padding for layer in spec.layers):
            notes.append("Zero padding makes border positions differ; their effect is left out.")
    if spec.norm is not None and spec.norm.eps > 0:
        notes.append(f"eps = {spec.norm.eps:g} of the norm is taken as 0.")
    return tuple(notes)


def _homogeneous(name: str | None) -> bool:
    return name is None or activation(name).homogeneous


def _check_finite(spec: NetworkSpec, order: dict[str, Array]) -> None:
    for name, rows in order.items():
        bad = np.flatnonzero(~np.isfinite(rows))
        if bad.size:
            layer = int(bad[0]) + (0 if name.startswith("qhat") else 1)
            raise TheoryError(
                f"The order parameter {name} leaves the range of float64 at layer {layer} of "
                f"{spec.depth}: signals or gradients explode exponentially with depth. Use "
                "variances nearer to the edge of chaos (phase_diagram), a norm, or fewer layers."
            )


def _check_real_variances(spec: NetworkSpec) -> None:
    for number, layer in enumerate(spec.layers[:-1], start=1):
        if layer.norm is not None and layer.weight_variance == 0:
            raise TheoryError(
                f"weight_variance is 0 in layer {number}, which a norm follows: its output does "
                "not depend on the data, and the norm would divide by zero."
            )
        if layer.norm is not None and layer.norm.gamma == 0:
            raise TheoryError(
                f"gamma is 0 in layer {number}: the signal is blocked, and the kernel on real data "
                "vanishes. Use a positive gamma, or leave inputs out for the limit."
            )


def _kernel_order(spec: NetworkSpec, pairwise: PairwiseGram) -> dict[str, Array]:
    """Means over samples and over pairs, in the place of the order parameters."""
    off = ~np.eye(pairwise.hats.shape[1], dtype=bool)
    weight = np.array([layer.weight_variance for layer in spec.layers])
    bias = np.array([layer.bias_variance for layer in spec.layers])
    hat = np.array([np.mean(np.diag(k)) for k in pairwise.hats])
    hat_st = np.array([np.mean(k[off]) for k in pairwise.hats])
    return {
        "q": weight * hat + bias,
        "q_st": weight * hat_st + bias,
        "qhat": hat,
        "qhat_st": hat_st,
        "qtilde": np.array([np.mean(np.diag(k)) for k in pairwise.tildes]),
        "qtilde_st": np.array([np.mean(k[off]) for k in pairwise.tildes]),
    }
