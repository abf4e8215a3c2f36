"""From a pass to a prediction: the level, the cost, the numbers, what they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.refs import NORMSCOPE, Equation
from normscope.registry import check_choice
from normscope.results.gradient_kernel import along_top, bulk_leads, doubts, numbers, pair_of
from normscope.results.prediction import Contribution, Prediction, kinds_of
from normscope.spec import NetworkSpec
from normscope.theory.assemble import kappas_of
from normscope.theory.grams import gram_of
from normscope.theory.graph.algebra import LEVELS, input_kernel, white_kernel
from normscope.theory.graph.cost import BY_LAYER, Cost, check_cost, cost_of, fits
from normscope.theory.graph.forward import Passed, propagate
from normscope.theory.graph.nodes import STATISTICS, Affine, BatchNorm, Graph
from normscope.theory.graph.specs import graph_of
from normscope.theory.kernel import checked_inputs
from normscope.theory.meanfield.networks import stack
from normscope.theory.outputs import Sums, with_output_norm

MANY = 1e8  # samples that stand for infinitely many: what is left is of order 1/MANY
PATIENCE = 3.0  # seconds that a finer level may take where nobody asked for it
FEW_ROWS = 256  # samples of an MLP up to which random inputs are drawn for the gram level
BATCH_NORM = {
    "batch": "Batch statistics are differentiated (train mode).",
    "frozen": "Batch statistics are held constant.",
    "running": "Batch norm uses its stored statistics.",
}
EQUATIONS = tuple(
    str(Equation(NORMSCOPE, f"docs/design/0013, {part}"))
    for part in ("What is computed", "Batch norm")
)


def predict_graph(
    graph: Graph,
    *,
    data: Array | None = None,
    samples: int | None = None,
    statistics: str = "batch",
    level: str | None = None,
    seed: int = 0,
    network: str = "the network",
    parameters: str = "all",
    layer_of: Callable[[str], str] = str,
    **fields: Any,
) -> Prediction:
    """The prediction of F = J^T J / T for a graph of nodes.

    Args:
        graph: the nodes; which parameters F is taken over stands in them.
        data: the samples, (T, *size of the input); None for independent Gaussian inputs.
        samples: T without data; None is the limit T to infinity.
        statistics: what batch norm does: ``"batch"`` (train mode), ``"frozen"`` (held constant in
            the backward pass) or ``"running"``.
        level: ``"homogeneous"``, ``"positions"`` or ``"gram"``; None takes the finest one that is
            worth its cost: gram for networks without positions, else positions.
        seed: for the Gaussian inputs of ``"gram"`` without data.
        network: what the network is called in tables.
        parameters: what the answer says of the parameters.
        layer_of: the layer that a node's terms belong to, by the node's name.
        fields: other fields of the answer, such as its spec.
    """
    check_choice("statistics", statistics, STATISTICS)
    if level is not None:
        check_choice("level", level, LEVELS)
    given = None if data is None else checked_data(graph, data)
    count = samples if given is None else len(given)
    chosen, notes = _chosen(graph, count, level, statistics, drawn=given is None)
    trains = statistics == "batch"
    t = MANY if count is None else float(count)
    cost = cost_of(graph, t, chosen, by_layer=True, trains=trains)
    by_layer = fits(cost, *BY_LAYER)
    if not by_layer:
        cost = cost_of(graph, t, chosen, by_layer=False, trains=trains)
        check_cost(cost)
    if given is None and chosen == "gram":
        rng = np.random.default_rng(seed)
        given = rng.standard_normal((int(t), *graph.shapes[graph.nodes[0].name]))
        notes.append(f"Inputs are {count} Gaussian samples drawn with seed {seed}.")
    elif given is None:
        notes.append("Inputs are independent, centred, of unit variance.")
    size = graph.shapes[graph.nodes[0].name]
    sides = size[1:]
    start = white_kernel(chosen, t, sides) if given is None else input_kernel(given, chosen)
    with np.errstate(over="ignore", invalid="ignore"):
        found = propagate(
            graph, *start, statistics=statistics, by_layer=by_layer, gradients=by_layer
        )
    shares = found
    if not by_layer:  # the layers' shares from four numbers a node
        coarse = white_kernel("homogeneous", t, sides)
        if given is not None:
            coarse = input_kernel(given, "homogeneous")
        shares = propagate(graph, *coarse, statistics=statistics, gradients=True)
        notes.append(
            "Terms of single layers are those of level 'homogeneous', scaled to the total: all of "
            "them at this level take too much memory or time."
        )
    spread = (1 + math.sqrt(t / math.prod(size))) ** 2 if given is None else _spread(given)
    made = _assembled(
        graph,
        found,
        shares,
        spread=spread,
        samples=count,
        statistics=statistics,
        level=chosen,
        network=network,
        notes=notes,
        layer_of=layer_of,
        parameters=parameters,
        fields=fields,
    )
    if level is not None or chosen != "homogeneous" or sides or given is not None or not count:
        return made
    finer = cost_of(graph, t, "gram", by_layer=False, trains=trains)
    if finer.seconds > PATIENCE or not bulk_leads(vars(made), samples=t, spread=spread):
        return made
    return predict_graph(  # four numbers see the mean of the bulk alone
        graph, samples=count, statistics=statistics, level="gram", seed=seed, network=network,
        parameters=parameters, layer_of=layer_of, **fields,
    )  # fmt: skip


def predict_spec(
    spec: NetworkSpec,
    inputs: Any,
    samples: int | None,
    parameters: str,
    realised: Array | None,
    *,
    statistics: str,
    level: str | None,
    seed: int,
) -> Prediction:
    """The prediction for a spec, with what a norm on its outputs makes of it."""
    graph = graph_of(spec, parameters=parameters)
    data = None if inputs is None else checked_data(graph, inputs)
    if data is not None and samples not in (None, len(data)):
        raise InputError(
            f"samples = {samples} contradicts the {len(data)} rows of data. Leave samples out: "
            "with real data T is the number of rows."
        )
    if spec.last_norm is not None and data is None and level is None:
        level = "homogeneous"  # its formulas take one number for all pairs of samples
    made = predict_graph(
        graph,
        data=data,
        samples=samples,
        statistics=statistics,
        level=level,
        seed=seed,
        parameters=parameters,
        layer_of=lambda name: name.split(".", maxsplit=1)[0],
        spec=spec,
        network="",
    )
    assert made.A1 is not None
    assert made.A2 is not None
    made = replace(made, **kappas_of(spec, (made.A1, made.A2)))
    return made if spec.last_norm is None else _normed(made, spec, realised, seed)


def _normed(made: Prediction, spec: NetworkSpec, realised: Array | None, seed: int) -> Prediction:
    """What a norm on the outputs makes of it; its terms stay those before that norm."""
    diagonal, other = made.A1 or 0.0, made.A2 or 0.0
    powers = made.order_parameters
    sums = Sums(
        a1=diagonal,
        a2=other,
        overlap=other / diagonal if diagonal > 0 else 0.0,
        samples=math.inf if made.samples is None else float(made.samples),
        outputs=spec.outputs,
        input_width=math.prod(spec.input_shape),
        slope=_slope(spec, made.samples) if made.level == "homogeneous" else None,
        q_t=float(powers["q"][-1]),
        q_st=float(powers["q_st"][-1]),
        realised=realised,
        blocked=any(x.norm is not None and x.norm.gamma == 0 for x in spec.layers),
    )
    draft = with_output_norm(spec.last_norm, sums, seed)
    return replace(
        made,
        lambda_max=draft.lambda_max,
        lambda_max_split=None,
        mean_direction=None,
        lower=draft.lower,
        upper=draft.upper,
        trace=draft.trace,
        mean_eigenvalue=draft.trace / max(made.num_parameters, 1),
        standard_error=draft.standard_error,
        quantiles=draft.quantiles,
        flags=tuple(draft.flags),
        equations=(*made.equations, *(str(e) for e in draft.equations)),
        kernels={},
    )


def _slope(spec: NetworkSpec, samples: int | None) -> float | None:
    """How Theta grows with the overlap of two inputs; None where no formula has it."""
    nets = stack([spec], math.inf if samples is None else samples)
    try:
        slope = gram_of(nets, "corrected", "weights").slope
    except TheoryError:  # norms in residual branches
        return None
    return None if slope is None else float(slope[0])


def planned_cost(
    graph: Graph, samples: int, *, level: str | None = None, statistics: str = "batch"
) -> Cost:
    """Memory and time that ``predict_graph`` would take, estimated beforehand.

    Example:
        >>> from normscope.spec import mlp
        >>> from normscope.theory.graph.specs import graph_of
        >>> planned_cost(graph_of(mlp([20, 50, 3], norm="batch")), 100).level
        'gram'
    """
    chosen, _ = _chosen(graph, samples, level, statistics, drawn=False)
    trains = statistics == "batch"
    cost = cost_of(graph, samples, chosen, by_layer=True, trains=trains)
    if fits(cost, *BY_LAYER):
        return cost
    return cost_of(graph, samples, chosen, by_layer=False, trains=trains)


def affordable_level(
    graph: Graph, samples: int, seconds: float, *, statistics: str = "batch"
) -> str:
    """The finest level worth its cost that takes no more than so many seconds, by estimate."""
    chosen, _ = _chosen(graph, samples, None, statistics, drawn=False)
    for level in LEVELS[LEVELS.index(chosen) :: -1]:
        if planned_cost(graph, samples, level=level, statistics=statistics).seconds <= seconds:
            break
    return level


def checked_data(graph: Graph, data: Any) -> Array:
    """The samples as (T, *size), checked for shape and NaN."""
    found = checked_inputs(data)
    size = graph.shapes[graph.nodes[0].name]
    features = math.prod(found.shape[1:])
    if features != math.prod(size):
        raise InputError(
            f"The data has {features} features a sample ({found.shape}), but the network reads "
            f"samples of shape {size}. Check the data or the input of the network."
        )
    return found.reshape(len(found), *size)


def _chosen(
    graph: Graph, samples: float | None, level: str | None, statistics: str, *, drawn: bool
) -> tuple[str, list[str]]:
    """The level, and what is to be said about it."""
    spatial = any(math.prod(shape[1:]) > 1 for shape in graph.shapes.values())
    if samples is None:
        if level not in (None, "homogeneous"):
            raise InputError(
                f"level={level!r} needs a number of samples. Got none: that is the limit of "
                "infinitely many, for level='homogeneous' alone. Give samples or data."
            )
        return "homogeneous", []
    if level is not None:
        return level, []
    wanted = "positions" if spatial else "gram"
    if drawn and not spatial and samples > FEW_ROWS:
        wanted = "homogeneous"  # the spread of the overlaps of random inputs matters little
    for chosen in LEVELS[LEVELS.index(wanted) :: -1]:
        cost = cost_of(graph, samples, chosen, by_layer=False, trains=statistics == "batch")
        if fits(cost):
            break
    if chosen == wanted:
        return chosen, []
    return chosen, [f"level={wanted!r} would take too much memory or time: {chosen!r} was taken."]


def _assembled(
    graph: Graph,
    found: Passed,
    shares: Passed,
    *,
    spread: float,
    samples: int | None,
    statistics: str,
    level: str,
    network: str,
    notes: list[str],
    layer_of: Callable[[str], str],
    parameters: str,
    fields: dict[str, Any],
) -> Prediction:
    t = math.inf if samples is None else float(samples)
    outputs, fan = graph.outputs, found.head_channels
    kernels = _kernels(found)
    made = numbers(kernels, samples=t, outputs=outputs, channels=fan)
    _check_finite(made)
    parts = _contributions(graph, shares, t, outputs, layer_of)
    if shares is not found:
        parts = _rescaled(parts, made)
    layers = tuple(dict.fromkeys(layer_of(name) for name, _ in graph.counts()))
    per_layer = [sum(p.top for p in parts if p.layer == layer) for layer in layers]
    count = max(graph.num_parameters(), 1)
    flags = doubts(made, kernels, samples=t, level=level, spread=spread)
    return Prediction(
        **{
            "spec": None,
            "theory": "graph",
            "samples": samples,
            "parameters": parameters,
            **made,
            "mean_eigenvalue": made["trace"] / count,
            "num_parameters": count,
            "per_layer": np.array(per_layer),
            "per_kind": kinds_of(parts),
            "order_parameters": _powers(found, shares),
            "standard_error": None,
            "assumptions": (*_assumptions(graph, statistics, level), *notes, *found.notes),
            "flags": flags,
            "equations": EQUATIONS,
            "network": network,
            "level": level,
            "statistics": statistics,
            "layers": layers,
            "contributions": parts,
            "outputs": outputs,
            "kernels": kernels,
            "head_channels": fan,
            "spread": spread,
            **fields,
        }
    )


def _small(found: Passed) -> Array:
    """Theta of each source at the outputs: all pairs, or one sample and two."""
    if found.algebra.level == "gram":
        return found.theta
    if found.algebra.level == "positions":
        return found.theta[:, :, 0, 0]
    return found.theta[:, [0, 2]]


def _kernels(found: Passed) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for source, kernel in zip(found.sources, _small(found), strict=True):
        key = ("head" if source.head else "hidden") + (" grows" if source.grows else "")
        made[key] = made[key] + kernel if key in made else kernel
    if not made:
        raise InputError(
            "F is taken over no parameter: every node holds its parameters constant. Name at least "
            "one kind of parameter."
        )
    return made


def _contributions(
    graph: Graph, found: Passed, t: float, outputs: int, layer_of: Callable[[str], str]
) -> tuple[Contribution, ...]:
    stack = _small(found)
    tops = along_top(stack.sum(0), stack, t)
    sizes = graph.counts()
    made = []
    for source, kernel, top in zip(found.sources, stack, tops, strict=True):
        same, other = pair_of(kernel)
        made.append(
            Contribution(
                layer_of(source.layer),
                source.kind,
                same / t + (1 - 1 / t) * other,
                float(top),
                outputs * same,
                sizes[source.layer, source.kind],
                source.head,
                source.grows,
            )
        )
    return tuple(made)


def _rescaled(parts: tuple[Contribution, ...], made: dict[str, Any]) -> tuple[Contribution, ...]:
    """Shares of a coarser level, in the totals of the finer one."""

    def ratio(name: str, total: float | None) -> float:
        known = sum(getattr(p, name) for p in parts)
        return total / known if known and total is not None else 1.0

    mean = ratio("mean_direction", made["mean_direction"])
    top, trace = ratio("top", made["lambda_max"]), ratio("trace", made["trace"])
    return tuple(
        replace(p, mean_direction=p.mean_direction * mean, top=p.top * top, trace=p.trace * trace)
        for p in parts
    )


def _powers(found: Passed, shares: Passed) -> dict[str, Array]:
    """Mean squares of signals and of gradients at each layer with weights."""
    signals = list(found.signals.values())
    return {
        "q": np.array([s.outputs for s in signals]),
        "q_st": np.array([s.outputs_other for s in signals]),
        "qhat": np.array([s.inputs for s in signals]),
        "qhat_st": np.array([s.inputs_other for s in signals]),
        "qtilde": np.array([shares.gradients[name] for name in found.signals]),
    }


def _spread(data: Array) -> float:
    """Largest eigenvalue of the centred samples' Gram matrix over the mean of its eigenvalues."""
    x = data.reshape(len(data), -1)
    x = x - x.mean(0)
    vector = np.random.default_rng(0).standard_normal(x.shape[1])
    for _ in range(20):
        vector = x.T @ (x @ vector)
        vector /= max(float(np.linalg.norm(vector)), 1e-300)
    total = float(np.square(x).sum())
    return float(np.square(x @ vector).sum()) * (len(x) - 1) / total if total > 0 else 1.0


def _assumptions(graph: Graph, statistics: str, level: str) -> tuple[str, ...]:
    notes = [
        "Wide layers: corrections are O(1/sqrt(width)).",
        "Weights are independent, centred and random, as at initialization.",
    ]
    used = {n.statistics or statistics for n in graph.nodes if isinstance(n, BatchNorm)}
    notes += [BATCH_NORM[kind] for kind in STATISTICS if kind in used]
    if level == "homogeneous" and any(len(s) > 1 for s in graph.shapes.values()):
        notes.append("Positions are alike: borders and correlations of near pixels are left out.")
    elif level == "positions":
        notes.append("Samples are alike: each stands for the mean over all of them.")
    if len([node for node in graph.nodes if isinstance(node, Affine)]) == 1:
        notes.append("A linear read-out: the prediction holds for one draw of the data.")
    return tuple(notes)


def _check_finite(made: dict[str, Any]) -> None:
    bad = [k for k, v in made.items() if v is not None and not math.isfinite(v)]
    if bad:
        raise TheoryError(
            f"{bad[0]} leaves the range of float64: signals or gradients explode exponentially "
            "with depth. Use variances nearer to the edge of chaos, a norm, or fewer layers."
        )
