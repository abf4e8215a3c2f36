"""Networks without shortcuts: MLPs, Luo's CNN6, VGG-16."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import nn

from normscope.errors import InputError
from normscope.nn.zoo.maker import Design, Maker

Parts = list[tuple[str, nn.Module]]


def mlp_network(widths: Sequence[int], *, bias: bool = True, **design: Any) -> nn.Module:
    """A fully connected network; inputs of any shape are flattened.

    Args:
        widths: input, hidden and output sizes.
        bias: whether the layers have biases; Huang's theorems need none.
        **design: the fields of ``Design``.
    """
    sizes = list(widths)
    if len(sizes) < 2 or any(not isinstance(w, int) or w < 1 for w in sizes):
        raise InputError(
            f"An MLP needs input and output widths, positive integers. Got {widths}. For example "
            "'mlp:784-256-10'."
        )
    maker = Maker(Design(**design))
    parts: Parts = [("flatten", nn.Flatten())]
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes[:-1]), 1):
        layer = maker.linear(inputs, outputs, bias=bias)
        parts += [(f"layer{number}", layer), (f"norm{number}", maker.norm(layer))]
        parts += [(f"act{number}", maker.activation()), *maker.drop(block=True)]
    parts += head(maker, sizes[-2], sizes[-1], f"layer{len(sizes) - 1}", bias=bias)
    return maker.network(parts)


def cnn6(
    *, classes: int = 10, channels: int = 3, side: int = 32, width: int = 32, padding: int = 1,
    **design: Any,
) -> nn.Module:  # fmt: skip
    """Luo's CNN6: four 3 x 3 convolutions (32, 32, 64, 64), max-pooling, fc 512, fc 10.

    The paper does not state the padding; the network it follows keeps the size of its maps.
    Without norm the layers have biases (vanilla: t + b).

    Args:
        classes: number of outputs.
        channels: number of image channels.
        side: width and height of the images.
        width: channels of the first convolution; the others, and fc 512, grow with it.
        padding: padding of the convolutions.
        **design: the fields of ``Design``; layers 1-5 can have a norm, layer 6 is the read-out.
    """
    maker = Maker(Design(**design))
    parts: Parts = []
    inputs = channels
    for number, outputs in enumerate((width, width, 2 * width, 2 * width), start=1):
        bare = not maker.has_norm(number)
        layer: nn.Module = maker.conv(inputs, outputs, padding=padding, bias=bare)
        parts += [(f"layer{number}", layer), (f"norm{number}", maker.norm(layer))]
        parts += [(f"act{number}", maker.activation()), *maker.drop(block=True)]
        inputs, side = outputs, side + 2 * padding - 2
    if side < 2:
        raise InputError(f"CNN6 leaves no feature map: its side is {side} before pooling.")
    parts += [("pool", nn.MaxPool2d(2, 2)), ("flatten", nn.Flatten())]
    layer = maker.linear(2 * width * (side // 2) ** 2, 16 * width, bias=not maker.has_norm(5))
    parts += [("layer5", layer), ("norm5", maker.norm(layer)), ("act5", maker.activation())]
    parts += maker.drop(block=True)
    parts += head(maker, 16 * width, classes, "layer6", bias=True)
    return maker.network(parts)


def vgg16(
    *, classes: int = 10, channels: int = 3, width: int = 64, bias: bool = False, **design: Any
) -> nn.Module:
    """Huang's 16-layer VGG: five groups of three 3 x 3 convolutions, then one linear layer.

    Groups have ``width`` x (1, 2, 4, 8, 8) channels, each followed by 2 x 2 max-pooling, for
    32 x 32 images. The groups are named ``group1`` to ``group5``, so that
    ``freeze:group1.layer*`` freezes the first (a digit 0 in Huang's code).

    Args:
        classes: number of outputs.
        channels: number of image channels.
        width: channels of the first group.
        bias: whether the convolutions have biases.
        **design: the fields of ``Design``.
    """
    maker = Maker(Design(**design))
    parts: Parts = []
    inputs = channels
    for group, factor in enumerate((1, 2, 4, 8, 8), start=1):
        inside: Parts = []
        for _ in range(3):
            layer = maker.conv(inputs, width * factor, bias=bias)
            inside += [(f"layer{maker.number}", layer), (f"norm{maker.number}", maker.norm(layer))]
            inside += [(f"act{maker.number}", maker.activation()), *maker.drop(block=True)]
            inputs = width * factor
        inside.append(("pool", nn.MaxPool2d(2, 2)))
        parts.append((f"group{group}", nn.Sequential(OrderedDict(inside))))
    parts += [*maker.extra("top", inputs, dims=2), ("flatten", nn.Flatten())]
    parts += head(maker, inputs, classes, "fc", bias=True)
    return maker.network(parts)


def head(maker: Maker, inputs: int, outputs: int, name: str, *, bias: bool) -> Parts:
    """The last linear layer, called ``name``, with the norms and the dropout around it."""
    return [
        *maker.extra("before-last", inputs, dims=1),
        *maker.drop_last(),
        (name, maker.linear(inputs, outputs, bias=bias)),
        *maker.extra("output", outputs, dims=1),
    ]
