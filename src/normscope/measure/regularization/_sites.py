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

from normscope.checks import checked_list
from normscope.errors import InputError
from normscope.nn.norm import BatchNorm
from normscope.nn.norm.channel import inverse_deviation, wide
from normscope.registry import near_match
from normscope.subject.norms import NormCard, norm_cards
from normscope.subject.session import patch_forward
from normscope.subject.statistics import frozen_norms


class Stop(BaseException):
    """Ends a forward pass at the layer that is being looked at."""


Visit = Callable[["Site", Tensor], None]


@dataclass(eq=False)
class Site:
    """One norm layer; ``mean``, ``variance`` are the population's, (channels,)."""

    name: str
    layer: nn.Module
    card: NormCard
    mean: Tensor | None = None
    variance: Tensor | None = None
    positions: int = 1
    group: int | None = None  # rows per batch where batch statistics are used
    noise: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # kappa, mu (rows, C)
    visit: Visit | None = field(default=None, repr=False)
    calls: int = 0

    @property
    def kind(self) -> str:
        """Name of the layer's class."""
        return type(self.layer).__name__

    @property
    def scaled(self) -> bool:
        """The layer has scales to learn, and so to decay."""
        return self.card.scale is not None

    @property
    def divides(self) -> bool:
        """Whether the layer divides by the standard deviation."""
        return "variance" in self.card.parts

    @property
    def subtracts(self) -> bool:
        """Whether the layer subtracts the mean."""
        return "mean" in self.card.parts

    @property
    def eps(self) -> float:
        """Added to the variance."""
        return self.card.eps or 0.0

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
        gamma = self.card.gamma(self.layer)
        return torch.full_like(self.variance, self.card.gain) if gamma is None else gamma.detach()

    def moments(self, x: Tensor, *, group: int | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (or mean square) per channel, (C,), or per group of rows, (G, C)."""
        values = wide(x).movedim(self.card.channel_axis, -1)
        rows = len(x) if group is None else group
        values = values.reshape(len(x) // rows, -1, values.shape[-1])  # (G, rows x positions, C)
        mean = values.mean(1)
        about = mean.unsqueeze(1) if self.card.centred else 0.0
        variance = (values - about).square().mean(1)
        return (mean[0], variance[0]) if group is None else (mean, variance)

    def normalized(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """The input with these statistics; (C,) or (rows, C) each."""
        y = wide(x)
        if self.subtracts:
            y = y - self.along(mean, x)
        if self.divides:
            about = mean if self.card.centred else None
            y = y * self.along(inverse_deviation(variance, about, eps=self.eps), x)
        return y

    def along(self, values: Tensor, x: Tensor) -> Tensor:
        """(C,) or (rows, C), broadcastable to ``x``."""
        rows = values.shape[:-1]
        axes = [1] * (x.ndim - 2)
        if self.card.channel_axis == -1:
            return values.reshape(*rows, *axes, -1) if rows else values
        return values.reshape(*(rows or (1,)), -1, *axes)

    def _forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise InputError(
                f"{self.kind} {self.name!r} is used twice in one forward pass, with a population "
                "of its own each time. Give each use a layer of its own."
            )
        self.positions = math.prod(x.shape) // (x.shape[0] * x.shape[self.card.channel_axis])
        if self.visit is not None:
            self.visit(self, x)
        mean, variance = self._statistics(x)
        n = self.normalized(x, mean, variance)
        gamma, beta = self.card.gamma(self.layer), self.card.beta(self.layer)
        y = n * (self.card.gain if gamma is None else self.along(gamma, x))
        if beta is not None:
            y = y + self.along(beta, x)
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
    found, frozen = [], frozen_norms(model)
    for name, card in norm_cards(model).items():
        layer = model.get_submodule(name)
        whole = population and card.kind == "population" and {"mean", "variance"} & {*card.parts}
        if whole or (card.over_batch and card.formula and name not in frozen):
            found.append(Site(name, layer, card))
        elif card.statistics_batch is not None and name not in frozen:
            raise InputError(
                f"{type(layer).__name__} {name!r} takes its statistics over {card.statistics_batch}"
                " samples, whatever the batch size, so that its noise does not depend on the batch "
                "size. Measure the same network with statistics_batch=None at batch size "
                f"{card.statistics_batch}."
            )
        elif card.over_batch and name not in frozen and not isinstance(layer, BatchNorm):
            raise InputError(
                f"{type(layer).__name__} {name!r} normalizes over the batch in a way of its own, "
                "whose expansion in the batch statistics is not known here. Torch's and "
                "normscope's batch norms are, and layers that compute what those do."
            )
    if not found:
        raise InputError(_nothing_found(model))
    return found


def chosen(sites: list[Site], layers: Any, frozen: Container[str] = ()) -> list[Site]:
    """Those named by ``layers``; None is all."""
    if layers is None:
        return sites
    names = [layers] if isinstance(layers, str) else checked_list(layers, "layers")
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
        for name, layer in model.named_modules()
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
