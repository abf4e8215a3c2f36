"""Inputs of layers and slopes of outputs at layers, for per-sample gradients without a Jacobian.

A tap adds a zero to a layer's output; the gradient with respect to that zero is delta, the slope
of the network's outputs at the layer. Parameters need no gradient, so a backward pass costs half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.subject.session import patch_forward

Names = tuple[str, ...]
Factors = dict[Names, tuple[Tensor | None, Tensor]]


class Tap(ABC):
    """One use of one layer: what it saw, and how its parameters' gradients follow from delta."""

    def __init__(self, names: dict[str, str], offset: Tensor) -> None:
        self.names = names  # role -> parameter name, for the parameters that are measured
        self.offset = offset  # the zero that was added, (samples, ...)

    @abstractmethod
    def factors(self, delta: Tensor) -> Factors:
        """(x, d) per group of parameters: the per-sample gradient is sum over positions of d x^T.

        x is (samples, positions, in) or None for 1, d is (samples, positions, out).
        """


class AffineTap(Tap):
    """W x + b at every position; if ``joint``, b is the last column of W, and x ends in a 1."""

    def __init__(self, names: dict[str, str], offset: Tensor, *, joint: bool) -> None:
        super().__init__(names, offset)
        self._joint = joint
        self._inputs: Tensor | None = None

    @abstractmethod
    def _rows(self) -> Tensor:
        """The inputs, (samples, positions, in)."""

    @abstractmethod
    def _slopes(self, delta: Tensor) -> Tensor:
        """The slopes, (samples, positions, out)."""

    def factors(self, delta: Tensor) -> Factors:
        d = self._slopes(delta)
        made: Factors = {}
        if "weight" in self.names:
            if self._inputs is None:
                rows = self._rows()
                self._inputs = functional.pad(rows, (0, 1), value=1.0) if self._joint else rows
            group = tuple(self.names.values()) if self._joint else (self.names["weight"],)
            made[group] = (self._inputs, d)
        if "bias" in self.names and not self._joint:
            made[(self.names["bias"],)] = (None, d)
        return made


class LinearTap(AffineTap):
    """Linear layers; further axes between sample and feature are positions."""

    def __init__(self, names: dict[str, str], offset: Tensor, x: Tensor, *, joint: bool) -> None:
        super().__init__(names, offset, joint=joint)
        self._x = x

    def _rows(self) -> Tensor:
        return self._x.reshape(self._x.shape[0], -1, self._x.shape[-1])

    def _slopes(self, delta: Tensor) -> Tensor:
        return delta.reshape(delta.shape[0], -1, delta.shape[-1])


class ConvTap(AffineTap):
    """Convolutions of one group with zero padding, in one or two dimensions: patches are rows."""

    def __init__(
        self, names: dict[str, str], offset: Tensor, x: Tensor, layer: Any, *, joint: bool
    ) -> None:
        super().__init__(names, offset, joint=joint)
        kernel, stride = layer.kernel_size, layer.stride
        padding, dilation = layer.padding, layer.dilation
        if len(kernel) == 1:  # a line is an image of height one
            x = x.unsqueeze(-2)
            kernel, stride = (1, *kernel), (1, *stride)
            padding, dilation = (0, *padding), (1, *dilation)
        self._x = x
        self._window = {
            "kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation
        }  # fmt: skip

    def _rows(self) -> Tensor:
        return functional.unfold(self._x, **self._window).transpose(1, 2)

    def _slopes(self, delta: Tensor) -> Tensor:
        return delta.flatten(2).transpose(1, 2)


class ScaleTap(Tap):
    """Scale and shift of a norm with channels on axis 1 or on the last axes."""

    def __init__(
        self,
        names: dict[str, str],
        offset: Tensor,
        unit: Tensor,
        *,
        size: int,
        channels_first: bool,
    ) -> None:
        super().__init__(names, offset)
        self._unit = unit
        self._size = size
        self._channels_first = channels_first

    def _rows(self, tensor: Tensor) -> Tensor:
        if self._channels_first:
            return tensor.reshape(*tensor.shape[:2], -1).transpose(1, 2)
        return tensor.reshape(tensor.shape[0], -1, self._size)

    def factors(self, delta: Tensor) -> Factors:
        made: Factors = {}
        if "weight" in self.names:
            made[(self.names["weight"],)] = (None, self._rows(delta * self._unit))
        if "bias" in self.names:
            made[(self.names["bias"],)] = (None, self._rows(delta))
        return made


def attach_taps(model: nn.Module, wanted: set[str], samples: int, taps: list[Tap]) -> None:
    """Tap every layer whose form is known, inside a session and just before a forward pass.

    Args:
        model: the module about to run.
        wanted: names of the measured parameters.
        samples: length of the first axis of the batch.
        taps: filled in forward order, one entry per use.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    owners = Counter(id(p) for module in model.modules() for p in module._parameters.values())
    for module in model.modules():
        # Weight and bias go together where no other layer has one of them.
        alone = all(owners[id(p)] == 1 for p in module._parameters.values() if p is not None)
        make = _maker(module, alone=alone)
        if make is None:
            continue
        own = {role: names[id(p)] for role, p in module._parameters.items() if id(p) in names}
        roles = {role: name for role, name in own.items() if name in wanted}
        if roles:
            patch_forward(module, _tapping(module, roles, samples, make, taps))


def _tapping(
    module: nn.Module,
    roles: dict[str, str],
    samples: int,
    make: Callable[..., Tap | None],
    taps: list[Tap],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(x: Any, *args: Any, **kwargs: Any) -> Any:
            out = forward(x, *args, **kwargs)
            if not isinstance(x, Tensor) or not isinstance(out, Tensor) or x.shape[0] != samples:
                return out
            offset = torch.zeros_like(out, requires_grad=True)
            tap = make(module, roles, offset, x.detach(), out.detach())
            if tap is None:
                return out
            taps.append(tap)
            return out + offset

        return tapped

    return wrap


def _maker(module: nn.Module, *, alone: bool) -> Callable[..., Tap | None] | None:
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return lambda layer, roles, offset, x, out: LinearTap(
            roles, offset, x, joint=alone and len(roles) == 2
        )
    if type(module) in (nn.Conv1d, nn.Conv2d) and _plain_conv(module):
        return lambda layer, roles, offset, x, out: ConvTap(
            roles, offset, x, layer, joint=alone and len(roles) == 2
        )
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm):
        return lambda *a: _scale_tap(*a, channels_first=True)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return lambda *a: _scale_tap(*a, channels_first=False)
    return None


def _plain_conv(layer: Any) -> bool:
    return (
        layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    )


def _scale_tap(
    layer: Any,
    roles: dict[str, str],
    offset: Tensor,
    x: Tensor,
    out: Tensor,
    *,
    channels_first: bool,
) -> Tap | None:
    weight = layer.weight.detach()
    if not bool((weight != 0).all()):  # the normalized input cannot be read off the output
        return None
    bias = getattr(layer, "bias", None)
    shape = (1, -1, *[1] * (out.ndim - 2)) if channels_first else weight.shape
    shifted = out if bias is None else out - bias.detach().reshape(shape)
    unit = shifted / weight.reshape(shape)
    return ScaleTap(roles, offset, unit, size=weight.numel(), channels_first=channels_first)
