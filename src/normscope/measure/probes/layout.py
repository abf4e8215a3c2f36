"""Where norms stand, and whether they are used."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from normscope.measure.probes.probe import Pass, Probe
from normscope.measure.probes.run import run_probes
from normscope.measure.probes.sites import LAYERS, NORM, Site
from normscope.results.layout import LayerUse, Layout, NormUse
from normscope.subject.graph import Graph, Layer
from normscope.subject.graph.operations import POINTWISE
from normscope.subject.graph.placing import PlacedNorm
from normscope.subject.graph.record import Node
from normscope.subject.norms import NormCard, norm_cards
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import Problem, as_problem, graph_of
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.statistics import frozen_norms


class LayoutProbe(Probe):
    """Reads the graph, and the mean square of what goes into layers with weights."""

    watches = (*LAYERS, NORM)
    graph: Graph

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.ran: set[str] = set()
        self._squares: dict[str, tuple[float, int]] = {}

    def entering(self, site: Site, x: Tensor) -> None:
        if site.kind == NORM:
            self.ran.add(site.name)
        elif x.is_floating_point():
            for name in {site.name, site.weight or site.name}:
                total, count = self._squares.get(name, (0.0, 0))
                squares = float(x.double().square().sum())
                self._squares[name] = total + squares, count + x.numel()

    def finished(self, run: Pass) -> None:
        self.graph = run.graph or graph_of(self._problem, run.batch)

    def power(self, *names: str) -> float:
        """Mean square of what goes into a layer, known by its name or its weight."""
        seen = (self._squares[name] for name in names if name in self._squares)
        return next((total / count for total, count in seen), math.nan)


def norm_layout(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "batch",
    seed: int = 0,
) -> Layout:
    """The norms of a network in forward order, used or not, and what they leave out.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: not needed.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; it hides the outputs.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all.
        statistics: what batch norm does.
        seed: seed for dropout and the order of a data set.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        >>> norm_layout(net, [(torch.randn(8, 3), None)])
        Layout(1 of 1 hidden layers normalized)
    """
    problem = as_problem(model, data, loss, loss_fn, outputs_fn, batch_size, seed, required=False)
    probe = LayoutProbe(problem)
    passes = run_probes(problem, [probe], num_batches, statistics)
    graph, last = probe.graph, probe.graph.last
    hidden = [layer for layer in graph.layers if not layer.side and _behind_others(graph, layer)]
    alone = LayerUse("none", "", 0, "raw")  # the outputs depend on no layer
    layers = tuple(_layer_use(layer, probe) for layer in graph.layers)
    end = next((x for x in layers if last is not None and x.name == last.name), alone)
    return Layout(
        norms=_norms(problem.model, probe),
        hidden_layers=len(hidden),
        normalized=sum(layer.state in ("norm", "act", "sum") for layer in hidden),
        last=end.name,
        last_input_norm=end.norm,
        output_norm=graph.output_norm,
        last_input_power=end.power,
        coverage=passes.coverage[0],
        convention=passes.convention,
        layers=layers,
        side=_side(graph),
        attention=len(graph.attention),
        residuals=len(graph.residuals),
    )


def _behind_others(graph: Graph, layer: Layer) -> bool:
    return any(graph.depth[i] for i in graph.flow.weighted[layer.nodes[0]].inputs)


def _layer_use(layer: Layer, probe: LayoutProbe) -> LayerUse:
    place = layer.kind, layer.depth, layer.state, layer.norm, layer in probe.graph.heads
    return LayerUse(layer.name, *place, probe.power(layer.name, layer.weight))


def _side(graph: Graph) -> tuple[str, ...]:
    """Layers off the way to the outputs, and the activations behind them, use by use."""
    found = [name for layer in graph.layers if layer.side for name in _uses(layer.name, layer.uses)]
    activations: dict[str, list[bool]] = {}
    for node in graph.flow.nodes:
        if node.op in POINTWISE:
            layer = graph.of_node.get(graph.flow.source(node.inputs[0]))
            side = layer is not None and layer.side
            activations.setdefault(_activation_name(graph, node), []).append(side)
    for name, sides in activations.items():
        found += [use for use, side in zip(_uses(name, len(sides)), sides, strict=True) if side]
    return tuple(found)


def _activation_name(graph: Graph, node: Node) -> str:
    """As probes call it: an ``nn.ReLU`` by its own name, a function by that of who calls it."""
    path, module = graph.record.path(node), graph.record.frames[node.frame].module
    own = type(module).__module__.startswith("torch.nn.") and not [*module.children()]
    function = graph.record.function(node).rstrip("_")
    return path if own and path else f"{path}.{function}".lstrip(".")


def _norms(model: nn.Module, probe: LayoutProbe) -> tuple[NormUse, ...]:
    modules, frozen, graph = dict(model.named_modules()), frozen_norms(model), probe.graph
    found = [
        _norm_use(norm, name, graph.depth[node], modules.get(norm.name), frozen)
        for norm in graph.norms
        if norm.name not in graph.dropped
        for name, node in zip(_uses(norm.name, norm.uses), sorted(norm.places), strict=True)
    ]
    ran = {*graph.reached, *probe.ran} - graph.dropped
    for name, card in norm_cards(model).items():
        if name not in ran:
            kind, gamma = type(modules[name]).__name__, _gamma(modules[name], card)
            found.append(NormUse(name, kind, 0, False, gamma, frozen=name in frozen))
    return tuple(found)


def _uses(name: str, count: int) -> list[str]:
    return [name, *(f"{name}#{use}" for use in range(2, count + 1))]


def _norm_use(
    norm: PlacedNorm,
    name: str,
    depth: int,
    layer: nn.Module | None,
    frozen: dict[str, nn.Module],
) -> NormUse:
    card: NormCard | None = norm.card
    if layer is None or card is None:  # written as a function
        return NormUse(name, norm.kind, depth, True, 1.0, over_batch=norm.kind == "batch")
    return NormUse(
        name=name,
        kind=type(layer).__name__,
        number=depth,
        used=True,
        gamma=_gamma(layer, card),
        frozen=norm.name in frozen,
        over_batch=card.over_batch and norm.name not in frozen,
    )


def _gamma(layer: nn.Module, card: NormCard) -> float:
    gamma = card.gamma(layer)
    return 1.0 if gamma is None else float(gamma.detach().double().square().mean().sqrt())
