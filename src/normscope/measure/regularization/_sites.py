"""Norm layers whose statistics can be chosen: the population's, the batch's, or disturbed ones.

A site replaces the forward of one layer inside a session. With n the input normalized by the
population's statistics, it gives

    gamma n + beta - (n kappa + mu),

where kappa and mu, one number per sample and channel, stand for the noise of deviation and mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.errors import InputError
from normscope.nn.norm import BatchNorm, PopulationNorm
from normscope.nn.norm.channel import ChannelNorm, inverse_deviation, wide
from normscope.registry import near_match
from normscope.subject.session import patch_forward
from normscope.subject.statistics import batch_norms, frozen_norms


class Stop(BaseException):
    """Ends a forward pass at the layer that is being looked at."""


Visit = Callable[["Site", Tensor], None]


@dataclass(eq=False)
class Site:
    """One norm layer; ``mean``, ``variance`` are the population's, (channels,)."""

    name: str
    layer: nn.Module
    subtracts: bool  # the mean
    divides: bool  # by the deviation
    centered: bool  # the deviation is about the mean
    eps: float
    channel_axis: int
    mean: Tensor | None = None
    variance: Tensor | None = None
    positions: int = 1
    group: int | None = None  # rows per batch where batch statistics are used
    noise: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # kappa, mu (rows, C)
    visit: Visit | None = field(default=None, repr=False)
    calls: int = 0

    @property
    def kind(self) -> str:
        """The layer's class."""
        return type(self.layer).__name__

    @property
    def scaled(self) -> bool:
        """The layer has scales to learn, and so to decay."""
        return getattr(self.layer, "weight", None) is not None

    def attach(self) -> None:
        """Replace the layer's forward until the session ends."""
        patch_forward(self.layer, lambda _: self._forward)

    def unit(self) -> Tensor:
        """What the noise is measured in: the deviation, as it divides; 1 for a constant."""
        assert self.variance is not None
        if self.divides:
            inverse = inverse_deviation(self.variance, self.mean, eps=self.eps)
            return torch.where(inverse > 0, 1 / inverse, 1.0)
        return torch.where(self.variance > 0, self.variance.sqrt(), 1.0)

    def gamma(self) -> Tensor:
        """The scale, or the constant gain, (channels,)."""
        assert self.variance is not None
        weight = getattr(self.layer, "weight", None)
        gain = float(getattr(self.layer, "gain", 1.0))
        return torch.full_like(self.variance, gain) if weight is None else weight.detach()

    def moments(self, x: Tensor, *, group: int | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (or mean square) per channel, (C,), or per group of rows, (G, C)."""
        values = wide(x).movedim(self.channel_axis, -1)
        rows = len(x) if group is None else group
        values = values.reshape(len(x) // rows, -1, values.shape[-1])  # (G, rows x positions, C)
        mean = values.mean(1)
        about = mean.unsqueeze(1) if self.centered else 0.0
        variance = (values - about).square().mean(1)
        return (mean[0], variance[0]) if group is None else (mean, variance)

    def normalized(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """The input with these statistics; (C,) or (rows, C) each."""
        y = wide(x)
        if self.subtracts:
            y = y - self.along(mean, x)
        if self.divides:
            about = mean if self.centered else None
            y = y * self.along(inverse_deviation(variance, about, eps=self.eps), x)
        return y

    def along(self, values: Tensor, x: Tensor) -> Tensor:
        """(C,) or (rows, C), broadcastable to ``x``."""
        rows = values.shape[:-1]
        axes = [1] * (x.ndim - 2)
        if self.channel_axis == -1:
            return values.reshape(*rows, *axes, -1) if rows else values
        return values.reshape(*(rows or (1,)), -1, *axes)

    def _forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise InputError(
                f"{self.kind} {self.name!r} is used twice in one forward pass, with a population "
                "of its own each time. Give each use a layer of its own."
            )
        self.positions = math.prod(x.shape) // (x.shape[0] * x.shape[self.channel_axis])
        if self.visit is not None:
            self.visit(self, x)
        mean, variance = self._statistics(x)
        n = self.normalized(x, mean, variance)
        weight, bias = getattr(self.layer, "weight", None), getattr(self.layer, "bias", None)
        y = (
            n * float(getattr(self.layer, "gain", 1.0))
            if weight is None
            else n * self.along(weight, x)
        )
        if bias is not None:
            y = y + self.along(bias, x)
        if self.noise is not None:
            kappa, mu = self.noise
            y = y - n * self.along(kappa, x) - self.along(mu, x)
        return y.to(x.dtype)

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.group is not None:
            mean, variance = self.moments(x, group=self.group)
            return mean.repeat_interleave(self.group, 0), variance.repeat_interleave(self.group, 0)
        assert self.mean is not None
        assert self.variance is not None
        return self.mean, self.variance


def sites_of(model: nn.Module, *, population: bool = False) -> list[Site]:
    """The sites of all layers that normalize by batch statistics, in the order of definition.

    Layers in evaluation mode are left out if the model itself is in train mode.
    ``population``: layers that normalize by the population's statistics too.
    """
    found, strange, frozen = [], [], frozen_norms(model)
    for name, layer in model.named_modules():
        if name in frozen:
            continue
        wanted = isinstance(layer, BatchNorm) and layer.needs_statistics and layer.every == 1
        if population and isinstance(layer, PopulationNorm):
            wanted = layer.needs_statistics
        if isinstance(layer, _BatchNorm):
            found.append(_torch_site(name, layer))
        elif wanted:
            assert isinstance(layer, ChannelNorm)
            found.append(_own_site(name, layer))
        elif hasattr(layer, "batch_statistics") and not isinstance(layer, BatchNorm):
            strange.append(f"{type(layer).__name__} {name!r}")
    if strange:
        raise InputError(
            f"{strange[0]} normalizes over the batch in a way of its own, whose expansion in the "
            "batch statistics is not known here. Only torch's and normscope's batch norms are."
        )
    if not found:
        raise InputError(_nothing_found(model))
    return found


def chosen(sites: list[Site], layers: Any, frozen: Container[str] = ()) -> list[Site]:
    """Those named by ``layers``; None is all."""
    if layers is None:
        return sites
    names = [layers] if isinstance(layers, str) else list(layers)
    known = {site.name: site for site in sites}
    for name in names:
        if name in frozen:
            raise InputError(
                f"Batch norm {name!r} is in evaluation mode while the model is in train mode: it "
                "uses stored statistics in training too, and adds no batch noise. Call .train() "
                "on it to measure what it would add."
            )
        if name not in known:
            raise InputError(
                f"No batch-norm layer is called {name!r}. {near_match(str(name), list(known))}"
            )
    if not names:
        raise InputError("layers is empty: name at least one batch-norm layer, or pass None.")
    return [known[name] for name in names]


def _torch_site(name: str, layer: _BatchNorm) -> Site:
    return Site(name, layer, True, True, True, float(layer.eps), 1)


def _own_site(name: str, layer: ChannelNorm) -> Site:
    parts = layer.parts
    return Site(
        name, layer, "mean" in parts, "variance" in parts, layer.centred, layer.eps,
        layer.channel_axis,
    )  # fmt: skip


def _nothing_found(model: nn.Module) -> str:
    if frozen := frozen_norms(model):
        names = ", ".join(repr(name) for name in list(frozen)[:3])
        return (
            f"Every batch norm of the model is in evaluation mode ({len(frozen)}: {names}"
            f"{', ...' if len(frozen) > 3 else ''}) while the model is in train mode, so that it "
            "uses stored statistics in training too and adds no batch noise. Call model.train() "
            "to measure what it would add."
        )
    held = [
        f"{type(layer).__name__} {name!r}"
        for name, layer in batch_norms(model).items()
        if isinstance(layer, BatchNorm)
    ]
    if held:
        return (
            f"{held[0]} does not normalize each batch by its own statistics (frozen, reused or "
            "without mean and variance), so that it adds no noise of this kind. Measure it before "
            "it is frozen."
        )
    return (
        f"{type(model).__name__} has no batch-norm layer, so that there is no batch noise to "
        "regularize it. Pass a network with nn.BatchNorm1d, 2d, 3d or normscope's BatchNorm."
    )
