"""The theory's order parameters for a real network and its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from normscope.checks import Array
from normscope.errors import InputError, NormscopeError, TheoryError
from normscope.spec import NetworkSpec
from normscope.subject.describe import Description, describe
from normscope.subject.nodes import nodes_and_data
from normscope.theory.grams import gram_of
from normscope.theory.graph.answer import affordable_level, predict_graph
from normscope.theory.graph.nodes import Affine
from normscope.theory.kernel import pairwise_gram
from normscope.theory.meanfield.networks import stack

Order = dict[str, Array]
SECONDS = 5.0  # on one core, by estimate, that a pass may take; then a coarser level


@dataclass(frozen=True)
class OrderTheory:
    """What the theory says, layer by layer, or why it says nothing.

    Attributes:
        rows: name of the layer -> row of the arrays.
        order: q, qhat, qtilde and their ``_st``, (layers,) each; empty if it does not apply.
        reason: why not.
        notes: what the numbers rest on.
    """

    rows: dict[str, int] = field(default_factory=dict)
    order: Order = field(default_factory=dict)
    reason: str = ""
    notes: tuple[str, ...] = ()

    def at(self, name: str, layers: Sequence[str]) -> Array:
        """One order parameter at the layers named, NaN where the theory has none."""
        values = self.order[name]
        rows = [self.rows.get(layer) for layer in layers]
        return np.array([math.nan if row is None else values[row] for row in rows])


def order_theory(
    model: nn.Module, example: Any, grams: Sequence[Array], *, statistics: str
) -> OrderTheory:
    """The order parameters of the network that ``describe`` reads off ``model``.

    Args:
        model: as measured.
        example: a batch of inputs.
        grams: X X^T / N_0 of the inputs of each batch, (samples, samples).
        statistics: what batch norm does.
    """
    described = describe(model, example)
    if described.spec is None:
        why = f"the network cannot be described: {described.reason}"
        return _of_nodes(model, example, statistics, why)
    try:
        order, notes = _order(described.spec, grams, statistics)
    except (TheoryError, InputError) as error:
        return _of_nodes(model, example, statistics, str(error))
    rows = {layer.name: layer.number - 1 for layer in described.layers if layer.number}
    return OrderTheory(rows, order, notes=(*notes, *_reading_notes(described)))


def _of_nodes(model: nn.Module, example: Any, statistics: str, reason: str) -> OrderTheory:
    """Kernels passed forward node by node, where the recursions do not apply for this reason."""
    try:
        read, x = nodes_and_data(model, (example, None), statistics=statistics)
        level = affordable_level(read.graph, len(x), SECONDS, statistics=statistics)
        made = predict_graph(read.graph, data=x, statistics=statistics, level=level)
    except NormscopeError as error:
        return OrderTheory(reason=f"{reason} {error}")
    names = [node.name for node in read.graph.nodes if isinstance(node, Affine)]
    order = dict(made.order_parameters)
    order.setdefault("qtilde_st", np.full(len(names), math.nan))
    rows = {name: row for row, name in enumerate(names)}
    return OrderTheory(rows, order, notes=(*made.assumptions, *read.flags))


def _order(
    spec: NetworkSpec, grams: Sequence[Array], statistics: str
) -> tuple[Order, tuple[str, ...]]:
    batch_norm = spec.norm is not None and spec.norm.kind == "batch"
    if batch_norm and statistics == "running":
        raise TheoryError(
            "The theory of batch norm has the statistics of the batch, not stored ones. Use "
            "statistics='batch' or 'frozen'."
        )
    dense = spec.branch_scale is None and not any(layer.is_conv for layer in spec.layers)
    notes = ["Wide layers with Gaussian weights of the variances found: O(1/width) is left out."]
    order: Order = {}
    if (batch_norm and statistics == "batch") or not dense:
        order = _alike(spec, grams, "frozen" if statistics == "frozen" else "corrected")
        what = "q-tilde: " if dense else ""
        notes.append(f"{what}Every two inputs overlap as much as they do on average.")
        if not dense and spec.branch_scale is None:
            notes.append("Positions of a feature map are alike, and different ones uncorrelated.")
    if dense:
        kernels = _from_kernels(spec, grams)
        order |= {k: v for k, v in kernels.items() if "tilde" not in k or k not in order}
    if spec.last_norm is not None:
        notes.append("No q-tilde: the norm on the outputs is not part of it.")
        order |= {k: np.full(spec.depth, math.nan) for k in ("qtilde", "qtilde_st")}
    return order, tuple(notes)


def _from_kernels(spec: NetworkSpec, grams: Sequence[Array]) -> Order:
    """Means over samples and pairs of the kernels that start at the data's own Gram matrices."""
    found = [pairwise_gram(spec, gram) for gram in grams]
    weights = [len(gram) for gram in grams]

    def mean(kernels: list[Array], of: Any) -> Array:
        rows = np.array([[of(kernel) for kernel in layers] for layers in kernels])
        return np.asarray(np.average(rows, axis=0, weights=weights))

    hats, tildes = [k.hats for k in found], [k.tildes for k in found]
    return {
        **_lengths(spec, mean(hats, _own), mean(hats, _pair)),
        "qtilde": mean(tildes, _own),
        "qtilde_st": mean(tildes, _pair),
    }


def _alike(spec: NetworkSpec, grams: Sequence[Array], theory: str) -> Order:
    """The recursion of numbers, from the mean square and the mean overlap of the inputs."""
    weights = [len(gram) for gram in grams]
    own = float(np.average([_own(gram) for gram in grams], weights=weights))
    pair = float(np.average([_pair(gram) for gram in grams], weights=weights))
    if not own > pair:
        raise TheoryError("All inputs are the same: no order parameter of two samples is left.")
    nets = stack([spec], float(np.mean(weights)))
    first = np.zeros((spec.depth, 1), dtype=bool)
    first[0] = True
    # Inputs (own, pair) act on the first layer like (1, 0) with these variances.
    variance, bias = nets.weight_variance, nets.bias_variance
    nets = replace(
        nets,
        weight_variance=np.where(first, variance * (own - pair), variance),
        bias_variance=np.where(first, bias + variance * pair, bias),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        order = {name: rows[:, 0] for name, rows in gram_of(nets, theory, "weights").order.items()}
    hat, hat_st = order["qhat"].copy(), order["qhat_st"].copy()
    hat[0], hat_st[0] = own, pair
    # q-tilde of a residual network is of the stream, and its layers write beta u into it.
    branch2 = np.ones(spec.depth)
    branch2[1:-1] = 1.0 if spec.branch_scale is None else spec.branch_scale**2
    tildes = {name: branch2 * order[name] for name in ("qtilde", "qtilde_st")}
    return _lengths(spec, hat, hat_st) | tildes


def _lengths(spec: NetworkSpec, hat: Array, hat_st: Array) -> Order:
    weight = np.array([layer.weight_variance for layer in spec.layers])
    bias = np.array([layer.bias_variance for layer in spec.layers])
    return {
        "qhat": hat,
        "qhat_st": hat_st,
        "q": weight * hat + bias,
        "q_st": weight * hat_st + bias,
    }


def _own(kernel: Array) -> float:
    return float(np.mean(np.diag(kernel)))


def _pair(kernel: Array) -> float:
    size = len(kernel)
    return float((kernel.sum() - np.trace(kernel)) / (size * (size - 1)))


def _reading_notes(described: Description) -> tuple[str, ...]:
    found = [f"{x.name}: {note}" for x in described.layers for note in x.notes if note != "no bias"]
    return tuple(found[:3]) + ((f"and {len(found) - 3} more notes",) if found[3:] else ())
