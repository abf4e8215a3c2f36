"""The layers whose gradients are looked at: the modules that own trainable parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.measure.probes.probe import Probe
from normscope.measure.probes.run import Layers, run_probes
from normscope.measure.probes.sites import LAYERS, NORM, Selection, Site, module_of
from normscope.results import Coverage, LayerStatus
from normscope.subject.batch import Batch
from normscope.subject.parameters import ParameterSet, select_parameters
from normscope.subject.problem import Problem
from normscope.subject.reading import Kept


@dataclass(frozen=True)
class ParameterLayers:
    """Some layers of a model, in forward order.

    Attributes:
        parameters: those of all these layers.
        slices: where each layer stands in the flat vector of them.
        coverage: these layers, and those left out.
        convention: what is measured and how, in words.
    """

    parameters: ParameterSet
    slices: list[list[slice]]
    coverage: Coverage
    convention: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.coverage.ok)


class _Places(Probe):
    """Notes where each parameter is used first."""

    watches = (*LAYERS, NORM)

    def __init__(self) -> None:
        self.first: dict[str, Site] = {}

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        for name in site.parameters:
            self.first.setdefault(module_of(name), site)


def parameter_layers(
    problem: Problem, batch: Batch, statistics: str, layers: Layers
) -> ParameterLayers:
    """The layers that ``layers`` means, numbered as they are met in a pass over ``batch``."""
    places, model = _Places(), problem.model
    alone = replace(problem, source=Kept([batch], problem.source.reading))
    passes = run_probes(alone, [places], statistics=statistics)
    trainable = select_parameters(model, None)
    owned: dict[str, list[str]] = {}
    for name in trainable.names:
        owned.setdefault(module_of(name), []).append(name)
    reached = [owner for owner in places.first if owner in owned]
    order = reached + [owner for owner in owned if owner not in places.first]
    sites = {owner: _site(model, owner, places.first.get(owner)) for owner in order}
    selection = Selection(layers)
    chosen = [owner for owner in order if sites[owner] in selection]
    selection.require_found(list(owned))
    if not chosen:
        raise InputError("No layer of this network has a trainable parameter.")
    parameters = trainable.subset([n for o in chosen for n in owned[o]], "the layers chosen")
    slices = [[parameters.slices[name] for name in owned[owner]] for owner in chosen]
    status = [LayerStatus(o or "(model)", sites[o].layer, sites[o].kind) for o in chosen]
    total = sum(p.numel() for p in model.parameters())
    frozen = _frozen(model, set(owned)) if layers is None else []
    coverage = Coverage((*status, *frozen), parameters.total / total, total)
    return ParameterLayers(parameters, slices, coverage, passes.convention)


def _site(model: nn.Module, owner: str, first: Site | None) -> Site:
    if first is None:
        return Site(owner, "other", type(model.get_submodule(owner)).__name__, 0)
    return Site(owner, first.kind, first.operation, first.layer)


def _frozen(model: nn.Module, trainable: set[str]) -> list[LayerStatus]:
    owners = dict.fromkeys(module_of(name) for name, _ in model.named_parameters())
    why = 0, "other", "skipped", "its parameters are frozen (requires_grad=False)"
    return [LayerStatus(owner, *why) for owner in owners if owner not in trainable]
