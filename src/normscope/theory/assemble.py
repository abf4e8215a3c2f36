"""From Gram terms to a prediction: numbers, assumptions, flags."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import TheoryError
from normscope.refs import Equation, equations_of
from normscope.results.prediction import Prediction
from normscope.spec import NetworkSpec, activation
from normscope.theory.fisher import (
    batch_norm_lower_bound,
    kappas,
    mean_direction,
    split_lambda_max,
)
from normscope.theory.grams import PLOTTED, Gram
from normscope.theory.kernel import PairwiseGram, pairwise_gram
from normscope.theory.meanfield.networks import Networks
from normscope.theory.meanfield.order import GramTerms
from normscope.theory.outputs import Draft, Sums, with_output_norm

FEW = 10  # values behind a batch statistic below which 1/T terms are large


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
    realised: Array | None,
) -> Prediction:
    """The prediction of network ``column`` of a stack."""
    t = math.inf if samples is None else float(samples)
    order = {name: np.ascontiguousarray(rows[:, column]) for name, rows in gram.order.items()}
    _check_finite(spec, order)
    totals = {
        name: (float(terms.diagonal[:, column].sum()), float(terms.offdiagonal[:, column].sum()))
        for name, terms in gram.kinds.items()
    }
    sums = Sums(
        a1=sum(total[0] for total in totals.values()),
        a2=sum(total[1] for total in totals.values()),
        overlap=max(_overlap(terms, column) for terms in gram.kinds.values()),
        samples=t,
        outputs=spec.outputs,
        input_width=math.prod(spec.input_shape),
        slope=None if gram.slope is None else float(gram.slope[column]),
        q_t=float(order["q"][-1]),
        q_st=float(order["q_st"][-1]),
        realised=realised,
        blocked=bool(_blocked(spec)),
    )
    draft = with_output_norm(spec.last_norm, sums, seed)
    per_layer = np.array(gram.per_layer(nets.samples)[:, column])
    if spec.last_norm is None:
        if gram.printed is not None:
            _as_printed(draft, per_layer, spec)
        if gram.last_hats is not None and draft.lambda_max is not None:
            hats = (float(gram.last_hats[0][column]), float(gram.last_hats[1][column]))
            bound = float(batch_norm_lower_bound(spec.fan_ins[-1], *hats, samples=t))
            draft.lower = min(max(bound, 0.0), draft.lambda_max)
            draft.equations += equations_of(batch_norm_lower_bound)
    _flag_gamma(spec, draft, per_layer)
    _flag_few_samples(spec, draft, theory, samples)
    per_kind = {k: float(mean_direction(*total, samples=t)) for k, total in totals.items()}
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
        sums=None if theory == "wei2019" and not nets.dense else (sums.a1, sums.a2),
    )


def assembled_from_data(
    spec: NetworkSpec, gram: Array, *, theory: str, parameters: str
) -> Prediction:
    """The prediction on real data: the pairwise kernel, diagonalised."""
    if spec.last_norm not in (None, "mean"):
        raise TheoryError(
            f"Real inputs are covered without norm on the outputs and with last_norm='mean'. Got "
            f"{spec.last_norm!r}. Leave data out, or measure the network on the data."
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
    values = np.where(values > 1e-15 * np.trace(total), values, 0.0)  # rounding about zero
    top = centre @ vectors[:, -1]
    draft = Draft(
        trace=float(spec.outputs * values.sum()),
        lambda_max=float(values[-1]),
        lower=float((values**2).sum() / values.sum()) if values[-1] > 0 else 0.0,
        upper=float(np.sqrt(spec.outputs * (values**2).sum())),
        equations=equations_of(pairwise_gram),
    )
    if values[-1] == 0:
        draft.flags.append("No gradient is left: all samples are zero or copies of one another.")
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
        sums=(float(np.mean(np.diag(total))), float(np.mean(total[~np.eye(size, dtype=bool)]))),
        real=True,
    )


def _overlap(terms: GramTerms, column: int) -> float:
    diagonal, offdiagonal = terms.diagonal[:, column], terms.offdiagonal[:, column]
    present = diagonal > 0
    return float(np.max(offdiagonal[present] / diagonal[present], initial=0.0))


def _as_printed(draft: Draft, per_layer: Array, spec: NetworkSpec) -> None:
    if draft.lambda_max is None:  # centred: the printed sum vanishes as well
        return
    total = float(per_layer.sum())
    draft.lambda_max, draft.lower = total, None
    draft.upper = math.sqrt(spec.outputs) * total
    draft.flags = [flag for flag in draft.flags if "stand out" not in flag]


def _blocked(spec: NetworkSpec) -> list[int]:
    """Layers whose norm has gamma = 0, counted from 1."""
    layers = enumerate(spec.layers, start=1)
    return [number for number, x in layers if x.norm is not None and x.norm.gamma == 0]


def _flag_gamma(spec: NetworkSpec, draft: Draft, per_layer: Array) -> None:
    zero = _blocked(spec)
    if not zero:
        return
    size = 1e-9 * max(spec.fan_ins)
    for name in ("lambda_max", "lower", "upper", "trace"):
        value = getattr(draft, name)
        if value is not None and abs(value) < size:
            setattr(draft, name, 0.0)
    per_layer[np.abs(per_layer) < size] = 0.0
    draft.flags.append(
        f"gamma = 0 in layer(s) {', '.join(map(str, zero))}: the signal is blocked there, and the "
        "weights below have no gradient until gamma has grown. Values are the limit gamma to 0."
    )


def _flag_few_samples(spec: NetworkSpec, draft: Draft, theory: str, samples: int | None) -> None:
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
    draft: Draft,
    per_layer: Array,
    order: dict[str, Array],
    *,
    per_kind: dict[str, float],
    theory: str,
    samples: int | None,
    parameters: str,
    equations: tuple[Equation, ...],
    sums: tuple[float, float] | None,
    real: bool = False,
) -> Prediction:
    count = spec.num_parameters(parameters)
    split = None
    if draft.lambda_max is not None and spec.last_norm is None:
        terms, width = (per_layer[-1], per_layer[:-1].sum()), spec.widths[-2]
        split = float(split_lambda_max(*terms, outputs=spec.outputs, last_width=width))
    entries = sums or (None, None)
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
        quantiles=draft.quantiles,
        assumptions=_assumptions(spec, theory, samples, parameters, real=real),
        flags=tuple(draft.flags),
        equations=tuple(all_equations),
        A1=entries[0],
        A2=entries[1],
        **kappas_of(spec, sums),
    )


def kappas_of(spec: NetworkSpec, sums: tuple[float, float] | None) -> dict[str, Any]:
    """alpha, kappa_1 and kappa_2 where they are defined."""
    if sums is None or spec.depth < 2 or any(layer.is_conv for layer in spec.layers):
        return {}
    found = kappas(*sums, widths=spec.fan_ins, unit=spec.widths[1])
    return dict(zip(("alpha", "kappa1", "kappa2"), found, strict=True))


def _assumptions(
    spec: NetworkSpec, theory: str, samples: int | None, parameters: str, *, real: bool
) -> tuple[str, ...]:
    notes = ["Wide layers: corrections are O(1/sqrt(width)).", "Gaussian weights and biases."]
    if not real:
        notes.append("Inputs are independent, centred, of unit variance.")
    if parameters == "weights":
        notes.append("Weights only: biases, gamma and beta are not differentiated.")
    elif spec.last_norm is not None:
        notes.append("The norm on the outputs has no gain and shift of its own.")
    if spec.norm is not None and spec.norm.kind == "batch":
        notes.append(
            {
                "corrected": "Batch statistics are differentiated (train mode), T >> 1.",
                "frozen": "Batch statistics are held constant.",
                "wei2019": "As printed: statistics constant, variance taken as q, T to infinity.",
                PLOTTED: "As plotted: statistics constant, variance taken as q, T to infinity.",
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
                "vanishes. Use a positive gamma, or leave data out for the limit."
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
