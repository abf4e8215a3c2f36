"""Scales of weights and signals, norms, gates and position embeddings, watched in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normscope.measure.probes.capture import Watcher
from normscope.measure.probes.sites import ACTIVATION, CONV, LINEAR, NORM, RECURRENT, Site
from normscope.measure.setup.inner_calls import spread
from normscope.results.start import Entropy, Gates, NormScale, SignalScale, Start, is_position
from normscope.subject.norms import NormCard

ENDS = 0.98  # of a tanh, from where on hardly any gradient passes
WIDE = 4.0  # the same of a gate's input
EQUAL = 1e-7  # relative difference of weights that are the same but for rounding
_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sigmoid": lambda x: 2 * torch.sigmoid(x) - 1,
}


class ScaleWatcher(Watcher):
    """Takes the numbers of every signal as it passes.

    Attributes:
        origin: the first layer with a non-finite output.
        signals: in forward order.
    """

    def __init__(self, weights: dict[str, Tensor], cards: dict[str, NormCard]) -> None:
        self._weights, self._cards = weights, cards
        self._made: tuple[Site, Tensor] | None = None  # by the last layer with weights
        self._last: tuple[Tensor, int, tuple[float, float]] | None = None  # with its spread
        self._before: dict[str, tuple[float, float, float]] = {}
        self.origin = ""
        self.signals: list[SignalScale] = []
        self.norms: list[NormScale] = []
        self.recurrent: list[Gates] = []

    @torch.no_grad()
    def entering(self, site: Site, x: Tensor) -> None:
        """What goes in, before it may be overwritten."""
        x = x.detach()
        real = x.is_floating_point()
        ends = math.nan
        if site.kind == ACTIVATION and site.operation in _SHAPES:
            ends = float((_SHAPES[site.operation](x).abs() > ENDS).float().mean())
        scale = self._spread(site, x) if real else (math.nan, math.nan)
        self._before[site.name] = (*scale, ends)
        if site.kind == NORM and real and (card := self._card(site)) is not None:
            self.norms.append(self._norm(site, card, x))
        if site.kind == RECURRENT and real:
            self._gates(site, x)

    @torch.no_grad()
    def leaving(self, site: Site, x: Tensor, out: Tensor) -> None:
        """What comes out."""
        if not out.is_floating_point():
            return
        held, out = out, out.detach()
        found, rms = spread(_by_sample(site, out))
        if not self.origin and not (math.isfinite(rms) or bool(out.isfinite().all())):
            self.origin = site.name
        self._last = out, out._version, (found, rms)
        entering, rms_in, ends = self._before.get(site.name, (math.nan,) * 3)
        if site.kind == RECURRENT and site.operation.startswith("rnn"):
            beyond = float((out.abs() > ENDS).float().mean()) if "tanh" in site.operation else 0.0
            back = [self._weights[n] for n in site.parameters if "weight_hh" in n]
            sizes = [_rms(w.detach()) * math.sqrt(w.shape[1]) for w in back]
            self.recurrent.append(Gates(site.name, beyond, recurrent=min(sizes, default=math.nan)))
        gain, same = self._gain(site)
        self.signals.append(
            SignalScale(
                site.name, site.kind, site.operation, site.layer, site.side, found,
                entering, rms, rms_in, ends, gain, same,
            )
        )  # fmt: skip
        if site.kind in (LINEAR, CONV):
            self._made = site, held

    def _spread(self, site: Site, x: Tensor) -> tuple[float, float]:
        """What goes in is most often what came out last."""
        if self._last is not None:
            out, version, known = self._last
            same = out.data_ptr() == x.data_ptr() and out.shape == x.shape
            if same and out.stride() == x.stride() and x._version == version:
                return known
        return spread(_by_sample(site, x))

    def _card(self, site: Site) -> NormCard | None:
        return self._cards.get(site.name.partition("#")[0])

    def _gain(self, site: Site) -> tuple[float, bool]:
        weight = self._weights.get(site.weight or "")
        if weight is None or weight.ndim < 2 or site.kind not in (LINEAR, CONV, RECURRENT):
            return math.nan, False
        if site.kind == RECURRENT:
            first = next((n for n in site.parameters if n.endswith("weight_ih_l0")), site.weight)
            weight = self._weights[first or ""]
        weight = weight.detach().float()
        if site.transposed or (site.geometry is not None and site.geometry.transposed):
            weight = weight.transpose(0, 1)
        weight = weight.flatten(1)
        same = len(weight) > 1 and weight.shape[1] > 1
        peak = float(weight.abs().max())
        same = same and float((weight - weight[:1]).abs().max()) <= EQUAL * peak
        return _rms(weight) * math.sqrt(weight.shape[1]), same

    def _norm(self, site: Site, card: NormCard, x: Tensor) -> NormScale:
        values, variance = _statistics(card, x)
        gamma = self._weights.get(f"{site.name.partition('#')[0]}.{card.scale}")
        largest = (
            1.0
            if gamma is None or card.scale is None
            else float((gamma.detach() + card.offset).abs().max())
        )
        return NormScale(
            name=site.name,
            kind=site.operation,
            values=values,
            centred=card.centred,
            over_batch=card.over_batch,
            eps=math.nan if card.eps is None else card.eps,
            variance=variance,
            gamma=largest,
            axis=self._wrong_axis(card, x),
        )

    def _wrong_axis(self, card: NormCard, x: Tensor) -> str:
        """A norm straight behind a layer, over an axis that is not the layer's channels."""
        if self._made is None or x.ndim < 3:
            return ""
        site, out = self._made
        as_made = out.data_ptr() == x.data_ptr() and out.shape == x.shape
        if not as_made or out.stride() != x.stride():
            return ""
        over_last = card.kind in ("layer", "rms") and card.channel_axis == -1 and card.channels > 0
        if site.kind == CONV and over_last:
            return "width"
        tokens = site.kind == LINEAR and site.axis == -1 and x.shape[1] != x.shape[2]
        return "tokens" if tokens and card.kind == "batch" and card.channel_axis == 1 else ""

    def _gates(self, site: Site, x: Tensor) -> None:
        named = {n.rpartition(".")[2]: self._weights[n].detach() for n in site.parameters}
        if site.operation not in ("lstm", "gru") or "weight_ih_l0" not in named:
            return
        weight = named["weight_ih_l0"]
        before = x.reshape(-1, x.shape[-1]) @ weight.T
        for bias in ("bias_ih_l0", "bias_hh_l0"):
            before = before + named.get(bias, 0.0)
        quarter = len(weight) // 4
        forget = math.nan
        if site.operation == "lstm":
            forget = float(before[:, quarter : 2 * quarter].sigmoid().mean())
        self.recurrent.append(Gates(site.name, float((before.abs() > WIDE).float().mean()), forget))

    def result(self, model: nn.Module, attention: list[tuple[str, float]], samples: int) -> Start:
        """What was seen, and what stands in the model itself."""
        rate, place = _dropout(model)
        positions = {n: _rms(w.detach()) for n, w in self._weights.items() if _is_position(n, w)}
        return Start(
            signals=tuple(self.signals),
            norms=tuple(self.norms),
            recurrent=tuple(self.recurrent),
            attention=tuple(Entropy(*one) for one in attention),
            positions=positions or None,
            dropout=rate,
            dropout_at=place,
            samples=samples,
        )


def _by_sample(site: Site, signal: Tensor) -> Tensor:
    if site.samples is None and signal.ndim > 1:  # the order of the other axes does not matter
        return signal
    rows = site.rows(signal)
    return rows if rows.ndim > 1 else rows[:, None]


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt()) if x.numel() else 0.0


def _statistics(card: NormCard, x: Tensor) -> tuple[float, float]:
    """How many numbers a statistic is made of, and the median of the variances."""
    if card.channel_axis == -1 and card.channels:
        x = x.movedim(-1, 1) if x.ndim > 2 else x
    channels = x.shape[1] if x.ndim > 1 else 1
    rows = x.reshape(len(x), channels, -1).float()  # samples, channels, positions
    if card.groups > 1:
        rows = rows.reshape(len(x), card.groups, -1)
        axes = [2]
    else:
        names = ("sample", "channel", "position")
        axes = [i for i, name in enumerate(names) if name not in card.kept]
    values = math.prod(rows.shape[i] for i in axes)
    if not axes:
        return 1.0, 0.0
    spread = rows.var(axes, correction=0) if card.centred else rows.square().mean(axes)
    return float(values), float(spread.median())


def _is_position(name: str, weight: Tensor) -> bool:
    """A table of positions that is added as it is, not looked up by a layer."""
    return weight.ndim >= 2 and is_position(name.rpartition(".")[2])


def _dropout(model: nn.Module) -> tuple[float, str]:
    """The largest rate of dropout, and where it is."""
    rates = {"": 0.0}
    for name, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd):
            rates[name] = float(module.p)
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            rates[name] = float(module.dropout)
    place = max(rates, key=rates.__getitem__)
    return rates[place], place
