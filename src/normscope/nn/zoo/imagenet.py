"""Residual networks for ImageNet: 7 x 7 stem, max-pooling, basic blocks or bottlenecks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError
from normscope.nn.zoo.maker import Design, Maker
from normscope.nn.zoo.plain import Parts
from normscope.nn.zoo.residual import Block, projecting, stages, stem, top

EXPANSION = 4  # outputs of a bottleneck over the channels of its 3 x 3 convolution
_STAGES: dict[int, tuple[tuple[int, ...], bool]] = {  # blocks per stage, bottlenecks or not
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


class Bottleneck(nn.Module):
    """Convolutions 1 x 1, 3 x 3 and 1 x 1, each with norm, added to the shortcut.

    The stride stands in the 3 x 3 convolution, as in torchvision.
    """

    def __init__(
        self, maker: Maker, inputs: int, outputs: int, *, stride: int, shortcut: nn.Module
    ) -> None:
        super().__init__()
        width = outputs // EXPANSION
        shapes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1))
        inner: Parts = []
        for number, (a, b, kernel, step) in enumerate(shapes, 1):
            conv = maker.conv(a, b, kernel=kernel, stride=step)
            inner += [(f"conv{number}", conv), (f"norm{number}", maker.norm(conv))]
            if number < len(shapes):
                inner += [(f"act{number}", maker.activation()), *maker.drop(block=False)]
        self.inner = nn.Sequential(OrderedDict(inner))
        self.shortcut = shortcut
        self.act = maker.activation()
        outer = maker.drop(block=True)
        self.drop = outer[0][1] if outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        out: Tensor = self.drop(self.act(self.inner(x) + self.shortcut(x)))
        return out


def imagenet_resnet(
    depth: int,
    *,
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    dropout_at: str | Sequence[int] = "last",
    **design: Any,
) -> nn.Module:
    """He's ResNet for ImageNet, with the layers and the number of parameters of torchvision's.

    Images of any size from 32 x 32 on. Layer 1 is the stem, then come the convolutions of the
    blocks (two in a block of depth 18 and 34, else three); projections have no number. Huang's
    networks with a batch norm before the last layer are ``extra_norms="before-last"``.

    Args:
        depth: 18, 34, 50, 101 or 152.
        classes: number of outputs.
        channels: number of image channels.
        width: channels of the stem and of the first stage.
        dropout_at: where ``dropout`` stands; here before the last layer, if nothing is given.
        **design: the other fields of ``Design``.
    """
    if depth not in _STAGES:
        raise InputError(
            f"ResNets for ImageNet have depth {', '.join(map(str, _STAGES))}. Got {depth!r}; "
            "cifar_resnet makes those of depth 6n + 2 for CIFAR."
        )
    blocks, bottlenecks = _STAGES[depth]
    maker = Maker(Design(dropout_at=dropout_at, **design))
    widths = [width * factor * (EXPANSION if bottlenecks else 1) for factor in (1, 2, 4, 8)]
    parts = stem(maker, channels, width, kernel=7, stride=2)
    parts.append(("maxpool", nn.MaxPool2d(3, stride=2, padding=1)))
    kind = Bottleneck if bottlenecks else Block
    parts += stages(width, widths, blocks, projecting(maker, kind))
    return maker.network([*parts, *top(maker, widths[-1], classes)])
