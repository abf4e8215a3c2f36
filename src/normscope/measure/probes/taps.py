"""Inputs of layers and slopes of outputs at layers, for per-sample gradients without a Jacobian.

A tap adds a zero to a layer's output; the gradient with respect to that zero is delta, the slope
of the network's outputs at the layer. Parameters need no gradient, so a backward pass costs half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.measure.probes._conditioning_factors import patches
from normscope.measure.probes.capture import Watcher
from normscope.measure.probes.sites import NORM, WEIGHTED, Site
from normscope.subject.norms import norm_cards

Names = tuple[str, ...]
Factors = dict[Names, tuple[Tensor | None, Tensor]]


class Tap(ABC):
    """One use of one layer: what it saw, and how its parameters' gradients follow from delta."""

    transposed = False  # whether the weight is stored as (in, out)

    def __init__(self, names: dict[str, str], offset: Tensor) -> None:
        self.names = names  # role -> parameter name, for the parameters that are measured
        self.offset = offset  # the zero that was added, (samples, ...)

    @abstractmethod
    def factors(self, delta: Tensor) -> Factors:
        """(x, d) per group of parameters: the per-sample gradient is sum over positions of d x^T.

        x is (samples, positions, in) or None for 1, d is (samples, positions, out).
        """

    def stored(self, x: Tensor | None, d: Tensor) -> tuple[Tensor | None, Tensor]:
        """The pair (x, d) whose d x^T is laid out as the weight is."""
        return (d, x) if self.transposed and x is not None else (x, d)


class AffineTap(Tap):
    """W x + b at every position; if ``joint``, b is the last column of W, and x ends in a 1."""

    def __init__(
        self, names: dict[str, str], offset: Tensor, site: Site, x: Tensor, *, joint: bool
    ) -> None:
        super().__init__(names, offset)
        self.transposed = site.transposed
        self._site, self._x, self._joint = site, x, joint
        self._inputs: Tensor | None = None

    def _rows(self) -> Tensor:
        """The inputs, (samples, positions, in); of a convolution what its window sees."""
        geometry = self._site.geometry
        rows = self._site.rows(self._x) if geometry is None else patches(self._x, geometry)
        return functional.pad(rows, (0, 1), value=1.0) if self._joint else rows

    def factors(self, delta: Tensor) -> Factors:
        """Of weight and bias, together or apart."""
        d = self._site.rows(delta)
        made: Factors = {}
        if "weight" in self.names:
            self._inputs = self._rows() if self._inputs is None else self._inputs
            group = tuple(self.names.values()) if self._joint else (self.names["weight"],)
            made[group] = (self._inputs, d)
        if "bias" in self.names and not self._joint:
            made[(self.names["bias"],)] = (None, d)
        return made


class ScaleTap(Tap):
    """Scale and shift of a norm with channels on axis 1 or on the last axes."""

    def __init__(
        self, names: dict[str, str], offset: Tensor, unit: Tensor, *, size: int, first: bool
    ) -> None:
        super().__init__(names, offset)
        self._unit, self._size, self._first = unit, size, first

    def _rows(self, tensor: Tensor) -> Tensor:
        if self._first:
            return tensor.reshape(*tensor.shape[:2], -1).transpose(1, 2)
        return tensor.reshape(tensor.shape[0], -1, self._size)

    def factors(self, delta: Tensor) -> Factors:
        """Of scale and shift."""
        slopes = {"weight": delta * self._unit, "bias": delta}
        return {(name,): (None, self._rows(slopes[role])) for role, name in self.names.items()}


class Taps(Watcher):
    """Taps every layer whose form is known.

    Args:
        model: the module that will run.
        wanted: names of the measured parameters.

    Attributes:
        found: one entry per use, in forward order, since ``begin``.
    """

    def __init__(self, model: nn.Module, wanted: set[str]) -> None:
        self._wanted = wanted
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        modules = dict(model.named_modules())
        self._norms = {name: (modules[name], card) for name, card in norm_cards(model).items()}
        names = {id(p): name for name, p in model.named_parameters()}
        self._owners = Counter(
            names[id(p)] for m in modules.values() for p in m._parameters.values() if id(p) in names
        )
        self.begin(0)

    def begin(self, samples: int) -> None:
        """A pass over so many samples is about to begin."""
        self._samples = samples
        self.found: list[Tap] = []

    def entering(self, site: Site, x: Tensor) -> None:
        """Nothing to do before it has run."""

    def leaving(self, site: Site, x: Tensor, out: Tensor) -> Tensor | None:
        """What came out plus a zero, if the form of the layer is known."""
        make = self._scale if site.kind == NORM else self._affine
        tap = make(site, torch.zeros_like(out, requires_grad=True), x.detach(), out.detach())
        if tap is None:
            return None
        self.found.append(tap)
        return out + tap.offset

    def _roles(self, weight: str | None, bias: str | None) -> dict[str, str]:
        named = {"weight": weight, "bias": bias}
        return {role: name for role, name in named.items() if name and name in self._wanted}

    def _affine(self, site: Site, offset: Tensor, x: Tensor, out: Tensor) -> Tap | None:
        roles = self._roles(site.weight, site.bias)
        if not roles or site.kind not in WEIGHTED or not site.matrix or x.ndim < 2:
            return None
        shape: tuple[int, ...] = (out.shape[site.axis], x.shape[site.axis])
        if site.geometry is not None:
            if site.geometry.transposed or site.geometry.groups > 1:
                return None
            shape = (*shape, *site.geometry.kernel)
        whole = self._shapes.get(site.weight or "") == (shape[::-1] if site.transposed else shape)
        if not whole or len(site.rows(x)) != self._samples:
            return None
        # Weight and bias go together where no other layer has one of them.
        alone = all(self._owners[name] == 1 for name in roles.values())
        joint = alone and len(roles) == 2 and not site.transposed
        return AffineTap(roles, offset, site, x, joint=joint)

    def _scale(self, site: Site, offset: Tensor, x: Tensor, out: Tensor) -> Tap | None:
        name = site.name.partition("#")[0]
        if name not in self._norms or len(out) != self._samples:
            return None
        layer, card = self._norms[name]
        at = [f"{name}.{own}".lstrip(".") if own else None for own in (card.scale, card.shift)]
        roles, gamma, beta = self._roles(*at), card.gamma(layer), card.beta(layer)
        # behind a scale of zero the normalized input cannot be read off the output
        if not roles or gamma is None or not bool((gamma != 0).all()):
            return None
        first = card.channel_axis == 1
        shape = (1, -1, *[1] * (out.ndim - 2)) if first else gamma.shape
        shifted = out if beta is None else out - beta.detach().reshape(shape)
        unit = shifted / gamma.detach().reshape(shape)
        return ScaleTap(roles, offset, unit, size=gamma.numel(), first=first)
