"""Residual networks for 32 x 32 images, and the same without their additions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from normscope.errors import InputError
from normscope.nn.zoo.maker import Design, Maker
from normscope.nn.zoo.plain import Parts, head
from normscope.registry import check_choice

DEEPEST = 5_000  # layers; the deepest in use has 1202
SHORTCUTS = ("pad", "projection")


class PadShortcut(nn.Module):
    """He's option A: every ``stride``-th position, zeros for the new channels; no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.new_channels = outputs - inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """``x`` at the block's output size."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(kept, (0, 0, 0, 0, 0, self.new_channels))

    def extra_repr(self) -> str:
        """Stride and new channels."""
        return f"stride={self.stride}, new_channels={self.new_channels}"


class Block(nn.Module):
    """Two convolutions, each with norm; the shortcut is added before the last activation.

    Without ``shortcut`` it is a VGG-style block.
    """

    def __init__(
        self, maker: Maker, inputs: int, outputs: int, *, stride: int, shortcut: nn.Module | None
    ) -> None:
        super().__init__()
        self.conv1 = maker.conv(inputs, outputs, stride=stride)
        self.norm1 = maker.norm(self.conv1)
        self.act1 = maker.activation()
        inner = maker.drop(block=False)
        self.drop1 = inner[0][1] if inner else nn.Identity()
        self.conv2 = maker.conv(outputs, outputs)
        self.norm2 = maker.norm(self.conv2)
        self.shortcut = shortcut
        self.act2 = maker.activation()
        outer = maker.drop(block=True)
        self.drop = outer[0][1] if outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = self.norm2(self.conv2(self.drop1(self.act1(self.norm1(self.conv1(x))))))
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        out: Tensor = self.drop(self.act2(y))
        return out


class PreBlock(nn.Module):
    """Full pre-activation: norm, activation, convolution, twice, added to the input."""

    def __init__(
        self, maker: Maker, inputs: int, outputs: int, *, stride: int, shortcut: nn.Module
    ) -> None:
        super().__init__()
        self.norm1 = maker.norm_before_next(inputs)
        self.act1 = maker.activation()
        self.conv1 = maker.conv(inputs, outputs, stride=stride)
        self.norm2 = maker.norm_before_next(outputs)
        self.act2 = maker.activation()
        inner = maker.drop(block=False)
        self.drop1 = inner[0][1] if inner else nn.Identity()
        self.conv2 = maker.conv(outputs, outputs)
        self.shortcut = shortcut
        outer = maker.drop(block=True)
        self.drop = outer[0][1] if outer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        y = self.conv1(self.act1(self.norm1(x)))
        y = self.conv2(self.drop1(self.act2(self.norm2(y))))
        out: Tensor = self.drop(y + self.shortcut(x))
        return out


def cifar_resnet(
    depth: int, *, classes: int = 10, channels: int = 3, width: int = 16, shortcut: str = "pad",
    **design: Any,
) -> nn.Module:  # fmt: skip
    """He's ResNet of depth 6n + 2 for CIFAR; convolutions have no bias.

    Layer 1 is the stem, block t owns layers 2t and 2t + 1, the linear layer is 6n + 2.

    Args:
        depth: 20, 32, 44, 56, 110, 1202, or any other 6n + 2.
        classes: number of outputs.
        channels: number of image channels.
        width: channels of the first of three stages.
        shortcut: where the shape changes: ``"pad"`` (He's option A: zeros for the new channels, no
            parameters) or ``"projection"`` (option B: a 1 x 1 convolution, with norm if all layers
            have it; projections have no number).
        **design: the fields of ``Design``.
    """
    check_choice("shortcut", shortcut, SHORTCUTS)
    return _cifar(depth, classes, channels, width, design, shortcut=shortcut)


def cifar_vgg(
    depth: int, *, classes: int = 10, channels: int = 3, width: int = 16, **design: Any
) -> nn.Module:
    """The VGG-style network of depth 6n + 2: ``cifar_resnet`` without the additions."""
    return _cifar(depth, classes, channels, width, design, shortcut=None)


def cifar_preresnet(
    depth: int,
    *,
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    shortcut: str = "pad",
    final_norm: bool = True,
    **design: Any,
) -> nn.Module:
    """The full pre-activation ResNet of depth 6n + 2.

    ``norm_layers`` counts a norm with the layer whose input it is.

    Args:
        depth: any 6n + 2.
        classes: number of outputs.
        channels: number of image channels.
        width: channels of the first of three stages.
        shortcut: as in ``cifar_resnet``; a projection reads the block's input.
        final_norm: norm and activation between the last block and pooling; without it this is
            Huang's PreResNet_v.
        **design: the fields of ``Design``.
    """
    check_choice("shortcut", shortcut, SHORTCUTS)
    blocks = _blocks_per_stage(depth)
    maker = Maker(Design(**design))

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        way = _option_a(inputs, outputs, stride)
        return PreBlock(maker, inputs, outputs, stride=stride, shortcut=way)

    made = projecting(maker, PreBlock) if shortcut == "projection" else block
    parts: Parts = [("conv1", maker.conv(channels, width))]
    parts += stages(width, [width, 2 * width, 4 * width], blocks, made)
    if final_norm:
        parts += [("final_norm", maker.norm_before_next(4 * width)), ("act", maker.activation())]
    return maker.network([*parts, *top(maker, 4 * width, classes)])


def resnet18(*, classes: int = 10, channels: int = 3, width: int = 64, **design: Any) -> nn.Module:
    """ResNet-18 with the stem for 32 x 32 images: one 3 x 3 convolution, no pooling.

    Stages of two blocks with ``width`` x (1, 2, 4, 8) channels and 1 x 1 projections. Layer 1 is
    the stem, block t owns layers 2t and 2t + 1, the linear layer is 18; projections have no number.

    Args:
        classes: number of outputs.
        channels: number of image channels.
        width: channels of the first stage.
        **design: the fields of ``Design``.
    """
    maker = Maker(Design(**design))
    parts = stem(maker, channels, width)
    parts += stages(width, [width, 2 * width, 4 * width, 8 * width], 2, projecting(maker, Block))
    return maker.network([*parts, *top(maker, 8 * width, classes)])


def projecting(
    maker: Maker, kind: Callable[..., nn.Module]
) -> Callable[[int, int, int], nn.Module]:
    """Blocks with a 1 x 1 projection as shortcut wherever the shape of the signal changes."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            shortcut = maker.projection(inputs, outputs, stride=stride)
        return kind(maker, inputs, outputs, stride=stride, shortcut=shortcut)

    return block


def _cifar(
    depth: int, classes: int, channels: int, width: int, design: dict[str, Any], *,
    shortcut: str | None,
) -> nn.Module:  # fmt: skip
    blocks = _blocks_per_stage(depth)
    maker = Maker(Design(**design))

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        way = _option_a(inputs, outputs, stride) if shortcut else None
        return Block(maker, inputs, outputs, stride=stride, shortcut=way)

    made = projecting(maker, Block) if shortcut == "projection" else block
    parts = stem(maker, channels, width)
    parts += stages(width, [width, 2 * width, 4 * width], blocks, made)
    return maker.network([*parts, *top(maker, 4 * width, classes)])


def stages(
    inputs: int,
    widths: list[int],
    blocks: int | Sequence[int],
    block: Callable[[int, int, int], nn.Module],
) -> Parts:
    """Stages of so many blocks each; all but the first begin with stride 2."""
    parts: Parts = []
    counts = [blocks] * len(widths) if isinstance(blocks, int) else blocks
    for stage, (outputs, count) in enumerate(zip(widths, counts, strict=True), start=1):
        made = []
        for index in range(count):
            made.append(block(inputs, outputs, 2 if stage > 1 and index == 0 else 1))
            inputs = outputs
        parts.append((f"stage{stage}", nn.Sequential(*made)))
    return parts


def stem(maker: Maker, channels: int, width: int, *, kernel: int = 3, stride: int = 1) -> Parts:
    """The first convolution with its norm and activation."""
    conv = maker.conv(channels, width, kernel=kernel, stride=stride)
    return [("conv1", conv), ("norm1", maker.norm(conv)), ("act1", maker.activation())]


def top(maker: Maker, inputs: int, classes: int) -> Parts:
    """Pooling over the last feature map and the linear layer."""
    return [
        *maker.extra("top", inputs, dims=2),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        *head(maker, inputs, classes, "fc", bias=True),
    ]


def _option_a(inputs: int, outputs: int, stride: int) -> nn.Module:
    same = stride == 1 and inputs == outputs
    return nn.Identity() if same else PadShortcut(inputs, outputs, stride)


def _blocks_per_stage(depth: int) -> int:
    whole = isinstance(depth, int) and not isinstance(depth, bool)
    if not whole or not 8 <= depth <= DEEPEST or (depth - 2) % 6:
        raise InputError(
            "These networks have depth 6n + 2: 8, 14, 20, 32, 44, 56, 110, ..., up to "
            f"{DEEPEST}. Got {depth!r}."
        )
    return (depth - 2) // 6
