"""Weight norm: every output unit's weights divided by their length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.errors import InputError


class UnitWeight(nn.Module):
    """The parametrization w = v / |v|, one length per output unit or channel."""

    def forward(self, v: Tensor) -> Tensor:
        """``v`` with every row at length 1."""
        axes = list(range(1, v.ndim))
        return v * torch.rsqrt(v.square().sum(axes, keepdim=True))

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The weight itself is a ``v``."""
        return weight


def row_lengths(layer: nn.Module) -> Tensor:
    """Length of the weights of each output unit: (outputs,)."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.detach().flatten(1).norm(dim=1)


def unit_weights(layer: nn.Module) -> nn.Module:
    """Let a linear or convolutional layer use weights of unit length, in place.

    A scale behind the layer (``BatchNorm`` with ``parts=("scale", "shift")``, say) then is weight
    norm; with mean or variance too it is weight norm with mean-only or variance-only batch norm.
    """
    lengths = row_lengths(layer)
    if not bool((lengths > 0).all()):
        unit = int((lengths <= 0).nonzero()[0])
        raise InputError(
            f"Weight norm needs weights of non-zero length, but those of output unit {unit} of "
            f"{layer} are all zero: they have no direction. Initialize them first."
        )
    parametrize.register_parametrization(layer, "weight", UnitWeight())
    return layer
