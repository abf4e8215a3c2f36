"""Where norms stand, whether they are used, and whether their stored statistics still hold."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from normscope.measure.probes._operations import is_norm
from normscope.measure.probes.moments import ChannelMoments
from normscope.measure.probes.probe import Probe
from normscope.measure.probes.run import Layers, run_probes
from normscope.measure.probes.sites import NORM, WEIGHTED, Site
from normscope.results.layout import Layout, NormUse
from normscope.subject.objective import LossFn, LossLike, OutputsFn
from normscope.subject.problem import as_problem
from normscope.subject.reading import NUM_BATCHES
from normscope.subject.session import original_module
from normscope.subject.statistics import frozen_norms


class LayoutProbe(Probe):
    """Notes the order of weighted layers and norms, and the moments of what goes into norms."""

    watches = (*WEIGHTED, NORM)

    def __init__(self) -> None:
        self.order: dict[str, Site] = {}
        self.moments: dict[str, ChannelMoments] = {}
        self.power: dict[str, tuple[float, int]] = {}

    def entering(self, site: Site, x: Tensor) -> None:
        self.order.setdefault(site.name, site)
        if site.kind == NORM:
            self.moments.setdefault(site.name, ChannelMoments()).add(site.rows(x))
        else:
            total, count = self.power.get(site.name, (0.0, 0))
            squares = float(x.double().square().sum())
            self.power[site.name] = total + squares, count + x.numel()


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
    layers: Layers = None,
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
        batch_size: samples in a batch, 128 by default; a loader brings its own.
        num_batches: how many of the first batches are looked at; None for all.
        statistics: what batch norm does.
        layers: which layers; None for all.
        seed: of dropout, and of the order of a data set.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        >>> norm_layout(net, [(torch.randn(8, 3), None)])
        Layout(1 of 1 hidden layers normalized)
    """
    probe = LayoutProbe()
    problem = as_problem(
        model,
        data,
        loss,
        loss_fn=loss_fn,
        outputs_fn=outputs_fn,
        batch_size=batch_size,
        seed=seed,
        required=False,
    )
    passes = run_probes(
        problem, [probe], num_batches=num_batches, statistics=statistics, layers=layers
    )
    order = list(probe.order.values())
    weighted = [i for i, site in enumerate(order) if site.kind != NORM]
    ends = [*weighted[1:], len(order)]
    after = [order[i + 1 : end] for i, end in zip(weighted, ends, strict=True)]
    last = order[weighted[-1]]
    total, count = probe.power[last.name]
    return Layout(
        norms=_norms(original_module(model), probe),
        hidden_layers=len(weighted) - 1,
        normalized=sum(bool(norms) for norms in after[:-1]),
        last=last.name,
        last_input_norm=after[-2][-1].name if len(after) > 1 and after[-2] else None,
        output_norm=after[-1][-1].name if after[-1] else None,
        last_input_power=total / count,
        coverage=passes.coverage[0],
        convention=passes.convention,
    )


def _norms(model: nn.Module, probe: LayoutProbe) -> tuple[NormUse, ...]:
    modules, frozen = dict(model.named_modules()), frozen_norms(model)
    used = [site for site in probe.order.values() if site.kind == NORM]
    found = []
    for site in used:
        layer = modules.get(site.name.partition("#")[0])
        gap, ratio, apart = _disagreement(layer, probe.moments[site.name])
        tracked = getattr(layer, "num_batches_tracked", None)
        found.append(
            NormUse(
                name=site.name,
                kind=site.operation,
                number=site.layer,
                used=True,
                gamma=_gamma(layer),
                mean_gap=gap,
                variance_ratio=ratio,
                variance_gap=apart,
                updates=-1 if tracked is None else int(tracked),
                frozen=site.name.partition("#")[0] in frozen,
            )
        )
    seen = {site.name for site in used}
    for name, module in modules.items():
        if is_norm(module) and name not in seen:
            kind, gamma = type(module).__name__, _gamma(module)
            found.append(NormUse(name, kind, 0, False, gamma, frozen=name in frozen))
    return tuple(found)


def _gamma(layer: nn.Module | None) -> float:
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return 1.0
    return float(weight.detach().double().square().mean().sqrt())


def _disagreement(layer: nn.Module | None, moments: ChannelMoments) -> tuple[float, float, float]:
    """How far running statistics are from those of the batches, as `NormUse` has them."""
    mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
    if not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
        return math.nan, math.nan, math.nan
    mean, variance = mean.detach().double().cpu(), variance.detach().double().cpu()
    # A constant channel has no variance, and none of it matters beside the layer's eps.
    eps = max(float(getattr(layer, "eps", 0.0) or 0.0), torch.finfo(torch.float32).tiny)
    scaled = (moments.mean - mean) / (variance + eps).sqrt()
    logs = torch.log((moments.variance + eps) / (variance + eps))
    apart = logs.square().mean().sqrt()
    return float(scaled.square().mean().sqrt()), float(logs.mean().exp()), float(apart.exp())
