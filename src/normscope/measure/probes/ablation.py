"""What is left of a network when a growing share of its units is silenced (Morcos et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.checks import Array, checked_count, checked_numbers
from normscope.errors import InputError
from normscope.measure.probes.capture import Capture, Watcher
from normscope.measure.probes.moments import ChannelMoments
from normscope.measure.probes.run import (
    Layers,
    function_of,
    measured_with,
    readable_graph,
)
from normscope.measure.probes.sites import ACTIVATION, LAYERS, Selection, Site
from normscope.measure.progress import progress
from normscope.registry import check_choice
from normscope.results.units import Ablation
from normscope.seeds import numpy_generator
from normscope.subject.batch import Batch, readable_failures
from normscope.subject.functional import ModelFunction
from normscope.subject.interrupts import safe_point
from normscope.subject.losses import right_answers
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.parameters import every_parameter
from normscope.subject.problem import as_problem
from normscope.subject.process import measurement
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.statistics import check_statistics

SHARES = tuple(np.linspace(0, 1, 11).round(1).tolist())


@measurement
def ablation(
    model: nn.Module,
    data: Any,
    loss: LossLike | None = None,
    *,
    loss_fn: LossFn | None = None,
    outputs_fn: OutputsFn | None = None,
    batch_size: int | None = None,
    num_batches: int | None = NUM_BATCHES,
    statistics: str = "running",
    layers: Layers = None,
    seed: int = 0,
    shares: Sequence[float] = SHARES,
    orders: int = 10,
    replace: str = "zero",
) -> Ablation:
    """Accuracy and loss when a growing random share of the units of chosen layers is ablated.

    A unit is a channel, and all its positions go with it. The units of each layer are put in
    random order, and the first ``share`` of them, rounded to whole units, are ablated in all
    chosen layers at once. A network that relies on single units loses its accuracy early.

    Args:
        model: any module.
        data: the name of a data set, a ``DataSet``, a pair (inputs, targets), a torch ``Dataset``,
            a loader or a list of batches.
        loss: ``"cross_entropy"`` by default.
        loss_fn: ``loss_fn(model, batch)`` in place of ``loss``; then there is no accuracy.
        outputs_fn: ``outputs_fn(model, batch) -> (outputs, targets)``, for batches that are not
            (inputs, targets).
        batch_size: samples in a batch, 128 by default; a loader keeps its own.
        num_batches: use only the first ``num_batches`` batches; None for all. They are kept in
            memory.
        statistics: what batch norm does: ``"running"`` (evaluation mode), ``"batch"``,
            ``"frozen"``.
        layers: None for the outputs of all activations between the first and the last layer with
            weights; globs, and numbers of layers, for those of some activations; full names for the
            outputs of these modules, activations or not.
        seed: seed for the orders, dropout and the order of a data set.
        shares: increasing, from 0 to 1.
        orders: random orders, whose spread gives the standard errors.
        replace: ``"zero"``, or ``"mean"``: its mean in the intact network over these samples.

    Returns:
        Curves of accuracy and loss, one per order, with means, standard errors and areas.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> found = ablation(net, (torch.eye(2), torch.arange(2)), shares=[0, 0.5, 1], orders=3)
        >>> found.accuracy.shape, found.layers, found.units
        ((3, 3), ('1',), (4,))
    """
    check_choice("replace", replace, ("zero", "mean"))
    fractions, orders = _checked_shares(shares), checked_count(orders, "orders")
    problem = as_problem(
        model, data, loss, loss_fn, outputs_fn, batch_size, seed, default="cross_entropy"
    )
    check_statistics(problem.model, statistics)
    surgeon = _Surgeon(layers)
    capture = Capture(problem.model, surgeon)

    def call(module: nn.Module, inputs: Any) -> Any:
        capture.begin_pass()
        return problem.objective.run(module, inputs)

    function = function_of(problem, every_parameter(problem.model), statistics, call)
    stream = problem.source.stream(num_batches)
    batches: list[Batch] = []
    for batch in stream:
        with readable_failures(problem.model, batch, f"on its inputs in batch {len(batches)}"):
            batches.append(function.prepared(batch))
    capture.follow(readable_graph(problem, batches[0]))
    intact = _performance(function, capture, batches)
    units = surgeon.begin(replace)
    none, every = (0,) * len(units), tuple(units.values())  # the same in all orders
    known = {(0, none): intact}
    found = np.zeros((orders, len(fractions), 2))
    with progress("ablations", orders * len(fractions)) as tick:
        for order, point in np.ndindex(orders, len(fractions)):
            counts = tuple(math.floor(fractions[point] * n + 0.5) for n in every)
            key = (0 if counts in (none, every) else order, counts)
            if key not in known:
                surgeon.cut = {
                    name: unit_order(seed, order, name, units[name])[:count]
                    for name, count in zip(units, counts, strict=True)
                }
                known[key] = _performance(function, capture, batches)
            found[order, point] = known[key]
            tick()
    return Ablation(
        shares=fractions,
        accuracy=found[..., 0],
        loss=found[..., 1],
        layers=tuple(units),
        units=tuple(units.values()),
        replace=replace,
        num_samples=sum(stream.sizes),
        seed=problem.seed,
        convention=measured_with(function, statistics, stream),
    )


def unit_order(seed: int, order: int, layer: str, units: int) -> NDArray[np.int64]:
    """The units of a layer in the random order of number ``order``: the first go first."""
    return numpy_generator(seed, "ablation", order, layer).permutation(units)


class _Surgeon(Watcher):
    """First looks at what comes out of the chosen places, then exchanges the units in ``cut``."""

    def __init__(self, layers: Layers) -> None:
        self._selection = Selection(layers)
        several = isinstance(layers, Sequence) and not isinstance(layers, str)
        self._given: list[Any] = list(layers) if several else [layers]  # type: ignore[arg-type]
        self._seen: dict[str, Site] = {}
        self._moments: dict[str, ChannelMoments] = {}
        self._version = 0
        self.cut: dict[str, NDArray[np.int64]] | None = None

    def begin(self, replace: str) -> dict[str, int]:
        """The number of units at each place, after a pass of the intact network."""
        self._selection.require_found(list(self._seen))
        if self._given == [
            None
        ]:  # those before the first layer are inputs, behind the last outputs
            last = max((s.layer for s in self._seen.values() if s.kind in LAYERS), default=0)
            hidden = {n: m for n, m in self._moments.items() if 0 < self._seen[n].layer < last}
            self._moments = hidden
        chosen = [self._seen[name] for name in self._moments]
        for item in self._given:
            if not any(site in Selection(item) for site in chosen):
                raise InputError(
                    f"layers={item!r} reaches no hidden activation: there are no units to ablate. "
                    "Choose places by their names, and what comes out of them is ablated: "
                    f"{', '.join(list(self._seen)[:4])}, ..."
                )
        means = {name: moments.mean for name, moments in self._moments.items()}
        zero = replace == "zero"
        self._values = {name: mean * 0 if zero else mean for name, mean in means.items()}
        return {name: len(mean) for name, mean in means.items()}

    def entering(self, site: Site, x: Tensor) -> None:
        self._version = x._version

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> Tensor | None:
        if self.cut is not None:
            return self._exchanged(site, x, out) if len(self.cut.get(site.name, ())) else None
        self._seen[site.name] = site
        named = {site.name, site.name.partition("#")[0]} & {*self._given}
        if site in self._selection and (site.kind == ACTIVATION or named):
            self._moments.setdefault(site.name, ChannelMoments()).add(site.rows(out.detach()))
        return None

    def _exchanged(self, site: Site, x: Tensor, out: Tensor) -> Tensor:
        assert self.cut is not None
        units = torch.as_tensor(self.cut[site.name], device=out.device)
        axis = 1 if site.axis == 1 and out.ndim > 1 else -1
        values = self._values[site.name].to(out)[units]
        # the network goes on with an input that was overwritten, whatever is returned here
        changed = out if x._version != self._version else out.clone()
        changed.movedim(axis, -1)[..., units] = values
        return changed


def _performance(
    function: ModelFunction, capture: Capture, batches: list[Batch]
) -> tuple[float, float]:
    """Accuracy (NaN without labels) and loss, as `evaluate` counts them."""
    total, hits, labels, samples = 0.0, 0, 0, 0
    objective = function.objective
    with function.open(), capture, torch.no_grad():
        for batch in batches:
            with readable_failures(function.model, batch, "on its inputs"):
                outputs = function(function.values, batch)
            known = objective.has_outputs
            size = objective.loss.num_samples(outputs) if known else max(batch.size, 1)
            value = float(function.loss(outputs, batch))
            total += value * (1 if objective.loss.summed else size)
            right, answers = right_answers(outputs, function.targets(batch)) if known else (0, 0)
            hits, labels, samples = hits + right, labels + answers, samples + size
            safe_point()
    return hits / labels if labels else math.nan, total / samples


def _checked_shares(shares: Any) -> Array:
    found = checked_numbers(shares, "shares")
    ordered = found.ndim == 1 and len(found) and bool((np.diff(found) > 0).all())
    if not ordered or found[0] < 0 or found[-1] > 1:
        raise InputError(
            "shares must be a list of numbers from 0 (all units are there) to 1 (none), each above "
            f"the one before. Got {shares!r:.80}."
        )
    return found
