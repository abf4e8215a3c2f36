"""The public ``predict``: what the theory says of a spec, or of a module on its data."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError
from normscope.results import Prediction, PredictionSet
from normscope.spec import NetworkSpec
from normscope.theory import predict as predict_specs
from normscope.theory.graph.answer import predict_graph

if TYPE_CHECKING:
    from torch import nn

    from normscope.subject.nodes import LayerWeights

DIRECT = "describe(model, x).spec is the spec of a plain chain"


def predict(
    network: NetworkSpec | Sequence[NetworkSpec] | nn.Module,
    data: Any = None,
    *,
    samples: int | None = None,
    theory: str | tuple[str, ...] = "graph",
    parameters: str | Sequence[str] | None = None,
    statistics: str = "batch",
    level: str | None = None,
    outputs: Any = None,
    seed: int = 0,
) -> Prediction | PredictionSet:
    """Largest eigenvalue, bounds and trace of F = J^T J / T at random initialization.

    The network is a spec, for which torch is not needed, or any module of dense layers,
    convolutions, norms, activations, sums, shortcuts and average pooling. A module is read by one
    run on the first batch of its data and left as it is; the variances are those of its own
    weights. Trained, orthogonal and tied weights are flagged.

    Args:
        network: one spec, several (one answer each), or a module.
        data: for a module whatever a measurement takes, such as a loader or ``(inputs, None)``:
            its first batch is used. For a spec real inputs in place of Gaussian ones, an array
            (samples, ...) or a ``DataSet``; None for Gaussian inputs.
        samples: T. For a spec None is the limit T to infinity; for a module the size of the batch
            where the data has no batches of its own.
        theory: ``"graph"``: kernels passed forward node by node, with every order of 1/T. For specs
            also ``"corrected"``, ``"frozen"``, ``"wei2019"`` and ``"wei2019-as-plotted"``, see
            ``normscope.theory.predict``; a tuple gives all of them.
        parameters: those that F is taken over. For a spec ``"weights"`` (None) or ``"all"``; for a
            module as a measurement takes them, None or ``"all"`` for all.
        statistics: what batch norm does: ``"batch"`` (train mode), ``"frozen"`` (held constant in
            the backward pass) or ``"running"`` (stored statistics).
        level: detail of the kernels: ``"homogeneous"`` (four numbers a node), ``"positions"`` or
            ``"gram"`` (the samples themselves). None takes gram for networks without positions and
            positions for others, and a coarser one if that costs too much.
        outputs: for specs with a norm on the outputs; see ``normscope.theory.predict``.
        seed: for the Gaussian inputs of a spec, and the order of the data of a module.

    Returns:
        A ``Prediction``; a ``PredictionSet`` for several specs or theories. Where lambda_max is
        more than 5 % above ``mean_direction`` it is flagged as a lower estimate.

    Example:
        >>> import normscope as ns
        >>> spec = ns.mlp([784, 1000, 1000, 1000, 10], weight_variance=2.0, bias_variance=0.5)
        >>> round(ns.predict(spec).lambda_max, 2)
        2234.17
        >>> import torch
        >>> found = ns.predict(ns.network("resnet8"), (torch.randn(16, 3, 8, 8), None))
        >>> found.level, found.layers[0]
        ('positions', 'conv1')
    """
    if _is_module(network):
        return _of_module(
            network, data, samples, theory, parameters, statistics, level, outputs, seed
        )
    specs: Any = network  # anything else is refused there, by name
    theories: Any = theory
    counted: Any = "weights" if parameters is None else parameters
    return predict_specs(
        specs,
        data=data,
        samples=samples,
        theory=theories,
        parameters=counted,
        outputs=outputs,
        statistics=statistics,
        level=level,
        seed=seed,
    )


def _is_module(network: Any) -> bool:
    """Whether it is a torch module; whoever has one has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(network, torch.nn.Module)


def _of_module(
    model: Any,
    data: Any,
    samples: int | None,
    theory: Any,
    parameters: Any,
    statistics: str,
    level: str | None,
    outputs: Any,
    seed: int,
) -> Prediction:
    from normscope.subject.nodes import nodes_and_data

    if theory not in ("graph", ("graph",), ["graph"]):
        raise InputError(
            f"A module is predicted with theory='graph'. Got theory={theory!r}, which is for "
            f"specs ({DIRECT}). Leave theory out."
        )
    if outputs is not None:
        raise InputError(
            "outputs are for specs with a norm on the outputs. Got them with a module, which "
            "gives its own. Leave outputs out."
        )
    if data is None:
        raise InputError(
            "A module is read by running it on a batch. Got data=None. Pass its data, or random "
            "inputs of the right size, such as (torch.randn(128, 3, 32, 32), None)."
        )
    parameters = None if parameters == "all" else parameters
    read, inputs = nodes_and_data(
        model, data, samples=samples, parameters=parameters, statistics=statistics, seed=seed
    )
    made = predict_graph(
        read.graph,
        data=inputs,
        statistics=statistics,
        level=level,
        seed=seed,
        network=type(model).__name__,
        parameters=_in_words(parameters),
    )
    return replace(
        made,
        assumptions=(*made.assumptions, _variances(read.weights)),
        flags=(*read.flags, *made.flags),
    )


def _in_words(parameters: Any) -> str:
    if parameters is None:
        return "all"
    return parameters if isinstance(parameters, str) else ", ".join(parameters)


def _variances(weights: Sequence[LayerWeights]) -> str:
    """Where the variances come from, and which initialization they are like."""
    votes = Counter(scheme for read in weights for scheme in read.schemes)
    said = "Variances are the mean squares of the module's own weights"
    if not votes:
        return f"{said}, which no known initialization gives."
    name, count = votes.most_common(1)[0]
    return f"{said}; {count} of {len(weights)} layers agree with initialization {name!r}."
