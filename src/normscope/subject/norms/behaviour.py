"""Does a module normalize? Decided by what a copy of it does, in float64.

A norm leaves its output as it is when all of the input is doubled, and not when single numbers
are. What has statistics of its own (samples, channels, positions) can be multiplied each by a
factor of its own. The input is large, so that no eps shows; parameters are random, because a scale
of zero hides everything.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as dispatch

from normscope.subject.norms.card import NormCard
from normscope.subject.norms.known import BATCH, KINDS
from normscope.subject.process import kept_random, reseed

SAMPLES, POSITIONS, FREE = 8, 5, 6  # FREE: channels where no vector says how many
DEVIATION, SMALLER = 100.0, 0.05
SAME, CLOSE = 1e-3, 1e-5  # of the deviation


def tried(layer: nn.Module, example: Tensor | None) -> tuple[bool, NormCard | None]:
    """Whether a copy of ``layer`` could be run, and its card if it normalizes."""
    device = _device(layer)
    ran = False
    with (
        kept_random(device),
        torch.no_grad(),
        torch._C.DisableTorchFunction(),  # modes and hooks around are not asked
        dispatch._disable_current_modes(),
    ):
        try:
            trial = _Trial(layer, device)
        except Exception:  # what cannot be copied is not recognized
            return False, None
        for x, axis in _inputs(layer, example):
            try:
                card = trial.card(x.to(device), axis)
            except Exception:  # the layer's own, for an input it was not made for
                continue
            ran = True
            if card is not None:
                return True, card
    return ran, None


def tensors(layer: nn.Module) -> list[Tensor]:
    """All parameters, then all buffers of the module."""
    return [*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())]


def _device(layer: nn.Module) -> torch.device:
    found = next((t.device for t in tensors(layer)), torch.device("cpu"))
    return torch.device("cpu") if found.type in ("meta", "mps") else found


def _width(layer: nn.Module) -> int:
    """Length of the layer's vectors; 1 if it has none."""
    sizes = [t.numel() for t in layer.parameters()] or [t.numel() for t in tensors(layer)]
    return max(sizes, default=1)


def _inputs(layer: nn.Module, example: Tensor | None) -> Iterator[tuple[Tensor, int | None]]:
    """Inputs to try, and where the channels are if that is known."""
    width = _width(layer)
    c, p = (width if width > 1 else FREE), (POSITIONS if width != POSITIONS else POSITIONS + 2)
    if example is None:
        for shape, axis in (((c, p, p), 1), ((c, p), 1), ((p, c), -1), ((c,), None)):
            yield _random((SAMPLES, *shape)), axis if width > 1 else None
        return
    fits = [axis for axis in (-1, 1) if width > 1 and example.shape[axis] == width]
    axis = fits[0] if len(fits) == 1 else None
    piece = small_piece(layer, example.detach()).double()
    if len(piece) > 1 and bool(piece.std() > 0):
        yield piece * (DEVIATION / piece.std()) + _random(piece.shape).to(piece) / DEVIATION, axis
    yield _random((SAMPLES, *example.shape[1:])), axis


def small_piece(layer: nn.Module, x: Tensor) -> Tensor:
    """Some samples of an input, and some entries of each axis whose length no parameter has."""
    lengths = {n for t in tensors(layer) for n in t.shape}
    for axis, length in enumerate(x.shape):
        if axis == 0 or length not in lengths:
            x = x.narrow(axis, 0, min(length, SAMPLES))
    return x


def _random(shape: Sequence[int]) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return DEVIATION * torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _factors(x: Tensor, *axes: int) -> Tensor:
    """A factor of its own for every index of these axes."""
    shape = [length if axis in axes else 1 for axis, length in enumerate(x.shape)]
    return torch.exp(_random(shape) / DEVIATION).to(x.device)


def _same(a: Tensor, b: Tensor, share: float = SAME) -> bool:
    return bool((a - b).abs().max() <= share * b.std())


class _Trial:
    """A copy of a layer with random parameters, and what it does to an input."""

    def __init__(self, layer: nn.Module, device: torch.device) -> None:
        # hooks may hold anything, the whole model too: they are left out, not copied
        memo: dict[int, Any] = {
            id(held): OrderedDict()
            for module in layer.modules()
            for name, held in vars(module).items()
            if "_hooks" in name
        }
        self._layer = copy.deepcopy(layer, memo).train()
        for module in self._layer.modules():
            vars(module).pop("forward", None)  # of a measurement around
        if any(t.is_meta for t in tensors(layer)):
            self._layer.to_empty(device=device)
        self._layer.to(device, torch.float64)
        self._device = device
        self._width = _width(layer)
        self._parameters = dict(self._layer.named_parameters())
        self._buffers = dict(self._layer.named_buffers())

    def _run(self, x: Tensor) -> Tensor:
        reseed(0, self._device)
        out = self._layer(x.clone())
        if not isinstance(out, Tensor) or out.shape != x.shape or not out.isfinite().all():
            raise ValueError("a norm gives finite numbers in the shape of its input")
        return out

    def _invariant(self, x: Tensor) -> Tensor | None:
        """The output, if it does not see the size of its input, and is not its sign."""
        y = self._run(x)
        if not bool(y.std() > 1e-12) or not _same(self._run(2 * x), y):
            return None
        single = self._run(x * _factors(x, *range(x.ndim)))
        return None if _same(single, y) or not _same(self._run(SMALLER * x), y) else y

    def card(self, x: Tensor, axis: int | None) -> NormCard | None:
        """What the layer does to ``x``, whose channels are on ``axis`` if that is known."""
        self._layer.train()
        generator = torch.Generator().manual_seed(0)
        for p in self._parameters.values():
            p.copy_(torch.rand(p.shape, generator=generator, device="cpu") + 0.5)
        y = self._invariant(x)
        if y is None:
            return None
        axes = [i for i in range(x.ndim) if not _same(self._run(x * _factors(x, i)), y)]
        if axis is None:
            last = axes == [x.ndim - 1] or (0 in axes and 1 in axes)
            axis = -1 if last else 1
        channel = axis % x.ndim
        places = {"sample": {0}, "channel": {channel}}
        places["position"] = set(range(x.ndim)) - {0, channel}
        kept = tuple(name for name, own in places.items() if own and not own & set(axes))
        groups = self._groups(x, y, channel) if channel in axes else 1
        centred = _same(self._run(x + DEVIATION / 3), y)
        card = NormCard(
            "group" if groups > 1 else KINDS.get(kept, ("other", "other"))[not centred],
            channels=self._width if self._width > 1 else 0,
            channel_axis=axis,
            kept=kept,
            parts=("mean", "variance") if centred else ("variance",),
            centred=centred,
            groups=groups,
            eps=_eps(self._layer),
            over_batch="sample" not in kept,
        )
        return self._with_stored(x, self._with_learned(x, card, axes))

    def _groups(self, x: Tensor, y: Tensor, channel: int) -> int:
        length = x.shape[channel]
        for groups in range(length // 2, 1, -1):
            if length % groups == 0:
                factors = _factors(x.narrow(channel, 0, groups), channel)
                if _same(self._run(x * factors.repeat_interleave(length // groups, channel)), y):
                    return groups
        return 1

    def _at(self, x: Tensor, name: str, value: float) -> Tensor:
        """The output with one parameter set; the parameter stays so."""
        self._parameters[name].fill_(value)
        return self._run(x)

    def _with_learned(self, x: Tensor, card: NormCard, axes: list[int]) -> NormCard:
        """With the names of scale and shift, and whether all of it is the usual formula."""
        names: dict[str, Any] = {}
        for name in self._parameters:
            two, one, zero = (self._at(x, name, value) for value in (2.0, 1.0, 0.0))
            if bool((one - zero - 1).abs().max() < SAME):
                names["shift"] = name  # stays at zero
                continue
            if bool((one - zero).std() > SAME) and _same(two - one, one - zero):
                names.setdefault("scale", name)
            self._at(x, name, 1.0)
        slope, offset = self._run(x), 0.0
        if "scale" in names:
            zero = self._at(x, names["scale"], 0.0)
            slope = slope - zero
            offset = round(float((zero * slope).sum() / slope.square().sum()), 5)
        channel = card.channel_axis % x.ndim
        parts = x.reshape(*x.shape[:channel], card.groups, -1, *x.shape[channel + 1 :])
        inside = [i + (i >= channel) for i in axes]
        about = parts - parts.mean(inside, keepdim=True) if card.centred else parts
        square = about.square().mean(inside, keepdim=True)
        unit = (about * torch.rsqrt(square + (card.eps or 0.0))).flatten(channel, channel + 1)
        gain = float((slope * unit).sum() / unit.square().sum())
        usual = _same(slope, gain * unit, CLOSE) and self._explained(x, slope, offset, **names)
        unity = abs(gain - 1) < CLOSE
        # over samples or positions it is not the layer's, but that of the input tried
        own = usual and not unity and axes == [channel] and card.channels
        return replace(
            card,
            parts=(*card.parts, *sorted(names)),
            offset=offset,
            gain=gain if own else 1.0,
            plain=usual,
            formula=usual and unity and card.kept == BATCH,
            **names,
        )

    def _explained(
        self, x: Tensor, slope: Tensor, offset: float, scale: str = "", shift: str = ""
    ) -> bool:
        """Whether scale and shift are all that it has learned, and act in this order."""
        expected = (2 + offset) * slope if scale else slope
        for name, value in ((scale, 2.0), (shift, 3.0)):
            if name:
                self._at(x, name, value)
        alone = not self._parameters.keys() - {scale, shift}
        return alone and _same(self._run(x), expected + 3.0 * bool(shift), CLOSE)

    def _with_stored(self, x: Tensor, card: NormCard) -> NormCard:
        """With what evaluation mode uses; its formula is put to the test too."""
        if not self._buffers and not card.over_batch:
            return card
        for p in self._parameters.values():
            p.fill_(1.0)
        self._layer.eval()
        if card.over_batch and self._invariant(x) is not None:
            return replace(card, always=True)
        names = [
            next(
                (n for n, b in self._buffers.items() if word in n and b.numel() == card.channels),
                "",
            )
            for word in ("mean", "var")
        ]
        if not all(names):
            return card
        card = replace(card, stored=(names[0], names[1]))
        for name, value in zip(names, (DEVIATION, 2.0), strict=True):
            self._buffers[name].fill_(value)
        expected = (1 + card.offset) * card.gain * (x - DEVIATION) / math.sqrt(2 + (card.eps or 0))
        right = _same(self._run(x), expected + (card.shift is not None), CLOSE)
        return card if right else replace(card, stored=None)


def _eps(layer: nn.Module) -> float | None:
    return next((v for n, v in vars(layer).items() if "eps" in n and isinstance(v, float)), None)
