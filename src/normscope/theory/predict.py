"""From a spec to a prediction: which formulas apply, and which assumptions they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from normscope.checks import LARGEST, Array
from normscope.errors import InputError, TheoryError
from normscope.registry import check_choice
from normscope.results.prediction import Prediction, PredictionSet
from normscope.seeds import checked_seed
from normscope.spec import NetworkSpec
from normscope.theory.assemble import assembled, assembled_from_data
from normscope.theory.grams import PRINTED, gram_of
from normscope.theory.graph.answer import predict_spec
from normscope.theory.kernel import input_gram
from normscope.theory.meanfield.networks import shape_of, stack

GRAPH = "graph"
THEORIES = ("corrected", "frozen", *PRINTED, GRAPH)
PARAMETER_SETS = ("weights", "all")


@runtime_checkable
class Images(Protocol):
    """A ``DataSet``, seen without torch: what has images, one sample per row."""

    @property
    def images(self) -> Any:
        """The samples, (n, ...)."""


@overload
def predict(
    spec: NetworkSpec,
    *,
    samples: int | None = ...,
    theory: str = ...,
    parameters: str = ...,
    data: ArrayLike | Images | None = ...,
    outputs: ArrayLike | None = ...,
    statistics: str = ...,
    level: str | None = ...,
    seed: int = ...,
) -> Prediction: ...
@overload
def predict(
    spec: Sequence[NetworkSpec] | NetworkSpec,
    *,
    samples: int | None = ...,
    theory: str | tuple[str, ...] = ...,
    parameters: str = ...,
    data: ArrayLike | Images | None = ...,
    outputs: ArrayLike | None = ...,
    statistics: str = ...,
    level: str | None = ...,
    seed: int = ...,
) -> Prediction | PredictionSet: ...
def predict(
    spec: NetworkSpec | Sequence[NetworkSpec],
    *,
    samples: int | None = None,
    theory: str | tuple[str, ...] = GRAPH,
    parameters: str = "weights",
    data: ArrayLike | Images | None = None,
    outputs: ArrayLike | None = None,
    statistics: str = "batch",
    level: str | None = None,
    seed: int = 0,
) -> Prediction | PredictionSet:
    """Largest eigenvalue, bounds and trace of F = J^T J / T of a random wide network.

    Args:
        spec: one network, or several (then all are computed in one vectorised call).
        samples: T; None is the limit T to infinity.
        theory: ``"graph"`` (kernels passed forward node by node: every order of 1/T, real inputs
            with every norm, convolutions with their borders), or recursions of the papers:
            ``"corrected"`` (batch norm in train mode, full Jacobian, terms of order 1/T left out),
            ``"frozen"`` (statistics held constant), ``"wei2019"`` (as printed) or
            ``"wei2019-as-plotted"`` (as in the paper's figures: the positions of convolutions are
            counted right, dense networks are as printed); a tuple gives all of them. Without batch
            norm only ``"wei2019"`` differs from ``"corrected"``.
        parameters: ``"weights"``, as in the papers, or ``"all"``: biases, gamma and beta too
            (Wei's theories have weights only).
        data: real inputs in place of iid Gaussian inputs, an array (samples, features) or a
            ``DataSet``; dense networks, for ``"graph"`` all.
        outputs: outputs (samples, classes) of one network before a norm on the outputs; layer,
            batch and variance norm there divide by their spread, which differs from network to
            network. None: layer norm draws random ones, the others take the theory's spread.
        statistics: for ``"graph"``: batch norm in train mode (``"batch"``), with constant
            statistics (``"frozen"``) or with stored ones (``"running"``).
        level: for ``"graph"``: ``"homogeneous"``, ``"positions"`` or ``"gram"``; None takes gram
            for dense networks and positions for convolutions, and a coarser one if that costs
            too much.
        seed: for the random outputs of layer norm on the outputs, and for the Gaussian inputs
            that ``level="gram"`` draws where there are no real ones.

    Returns:
        A ``Prediction``; a ``PredictionSet`` (spec by spec, theory by theory) if several specs
        or a tuple of theories were given.

    Example:
        >>> import normscope as ns
        >>> net = ns.mlp([784, 1000, 1000, 1000, 10], weight_variance=2.0, bias_variance=0.5)
        >>> round(ns.predict(net).lambda_max, 2)
        2234.17
        >>> round(ns.predict(net).critical_lr(momentum=0.9), 6)
        0.001701
    """
    several = not isinstance(spec, NetworkSpec) or not isinstance(theory, str)
    specs = [spec] if isinstance(spec, str) or not isinstance(spec, Iterable) else list(spec)
    theories = tuple(theory) if isinstance(theory, list | tuple) else (theory,)
    _check(specs, theories, parameters)
    others = tuple(theory for theory in theories if theory != GRAPH)
    if others and (statistics != "batch" or level is not None):
        raise InputError(
            f"statistics and level belong to theory='graph'. Got {theories}. Leave them out, or "
            "ask for theory='graph' alone; theory='frozen' holds the statistics constant."
        )
    checked_seed(seed)
    count = _checked_samples(samples)
    realised = None if outputs is None else _realised(outputs, specs, count)
    if data is not None:
        if realised is not None:
            raise InputError(
                "data and outputs were both given. outputs serve layer, batch and variance norm "
                "on the outputs, which the theory does not cover for real inputs: leave one out."
            )
        known = _from_data(specs, others, samples, parameters, data) if others else []
    else:
        count = count if realised is None else len(realised)
        known = _from_theory(specs, others, count, parameters, seed, realised)
    rows = data.images if isinstance(data, Images) else data

    def graph(of: NetworkSpec) -> Prediction:
        return predict_spec(
            of, rows, count, parameters, realised, statistics=statistics, level=level, seed=seed
        )

    rest = iter(known)
    made = [graph(of) if name == GRAPH else next(rest) for of in specs for name in theories]
    return PredictionSet(tuple(made)) if several else made[0]


def _from_theory(
    specs: list[NetworkSpec],
    theories: tuple[str, ...],
    samples: int | None,
    parameters: str,
    seed: int,
    realised: Array | None,
) -> list[Prediction]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, spec in enumerate(specs):
        _check_samples_for(spec, samples)
        groups.setdefault(shape_of(spec), []).append(index)
    made: dict[tuple[int, str], Prediction] = {}
    for indices in groups.values():
        members = [specs[i] for i in indices]
        nets = stack(members, math.inf if samples is None else samples)
        for theory in theories:
            counted = "weights" if theory in PRINTED else parameters  # as the paper counts
            with np.errstate(over="ignore", invalid="ignore"):
                gram = gram_of(nets, theory, counted)
            for column, index in enumerate(indices):
                made[index, theory] = assembled(
                    specs[index],
                    nets,
                    gram,
                    column,
                    theory=theory,
                    samples=samples,
                    parameters=counted,
                    seed=seed,
                    realised=realised,
                )
    return [made[i, theory] for i in range(len(specs)) for theory in theories]


def _from_data(
    specs: list[NetworkSpec],
    theories: tuple[str, ...],
    samples: int | None,
    parameters: str,
    data: ArrayLike | Images,
) -> list[Prediction]:
    rows = data.images if isinstance(data, Images) else data
    gram = input_gram(rows)
    if samples not in (None, len(gram)):
        raise InputError(
            f"samples = {samples} contradicts the {len(gram)} rows of data. Leave samples out: "
            "with real data T is the number of rows."
        )
    made = []
    for spec in specs:
        features = np.asarray(rows)[0].size
        if features != math.prod(spec.input_shape):
            raise InputError(
                f"The data has {features} features a sample, but the network takes "
                f"{math.prod(spec.input_shape)}. Check the input width of the spec."
            )
        for theory in theories:
            if theory != "frozen" and spec.norm is not None and spec.norm.kind == "batch":
                raise TheoryError(
                    f"Real inputs with batch norm are covered by theory='frozen' only. Got "
                    f"{theory!r}: the train-mode theory assumes uncorrelated inputs. Pass "
                    "theory='frozen', leave data out, or measure the network on the data."
                )
            made.append(assembled_from_data(spec, gram, theory=theory, parameters=parameters))
    return made


def _realised(outputs: ArrayLike, specs: list[NetworkSpec], samples: int | None) -> Array:
    """The outputs of a network, checked against the specs."""
    try:
        found = np.asarray(outputs, dtype=float)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"outputs must be an array (samples, classes): {error}") from None
    for spec in specs:
        if spec.last_norm not in ("layer", "batch", "variance"):
            raise InputError(
                f"outputs are used by layer, batch and variance norm on the outputs. Got "
                f"last_norm={spec.last_norm!r}, which does not need them. Leave them out."
            )
        if found.ndim != 2 or len(found) < 2 or found.shape[1] != spec.outputs:
            raise InputError(
                f"outputs must be of shape (samples, {spec.outputs}), at least two samples, as the "
                f"network gives them before the norm. Got {found.shape}."
            )
        if not np.isfinite(found).all():
            raise InputError("outputs contain NaN or infinity, and the norm would spread it.")
        if spec.last_norm == "layer" and spec.outputs > 2 and (np.ptp(found, axis=1) == 0).any():
            row = int(np.flatnonzero(np.ptp(found, axis=1) == 0)[0])
            raise InputError(
                f"Sample {row} has equal outputs: layer norm would divide by zero. Leave it out."
            )
    if samples not in (None, len(found)):
        raise InputError(
            f"samples = {samples} contradicts the {len(found)} rows of outputs. Leave samples out."
        )
    return found


def _check(specs: list[NetworkSpec], theories: tuple[str, ...], parameters: str) -> None:
    if not specs or not theories:
        raise InputError("predict needs at least one spec and one theory. Got an empty sequence.")
    for spec in specs:
        if not isinstance(spec, NetworkSpec):
            raise InputError(
                "predict takes NetworkSpecs, made by mlp, cnn or residual_mlp, or one torch module "
                f"(an object, not its class). Got {spec!r}."
            )
    for theory in theories:
        check_choice("theory", theory, THEORIES)
    check_choice("parameters", parameters, PARAMETER_SETS)


def _checked_samples(samples: int | None) -> int | None:
    if samples is None:
        return None
    whole = hasattr(samples, "__index__") and not isinstance(samples, bool)
    if not whole or not 1 <= int(samples) <= LARGEST:
        raise InputError(
            f"samples must be a positive integer, or None for infinity. Got {samples!r:.40}."
        )
    return int(samples)


def _check_samples_for(spec: NetworkSpec, samples: int | None) -> None:
    batch = spec.norm is not None and spec.norm.kind == "batch"
    last = spec.last_norm not in (None, "layer")
    if samples is not None and samples < 2 and (batch or last):
        raise InputError(
            f"Batch statistics need at least two samples. Got samples = {samples}: the variance "
            "of one value is zero, and the norm would divide by it. Use samples >= 2 or None."
        )
