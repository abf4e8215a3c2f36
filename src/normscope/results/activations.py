"""Signals of a network: moments, signs and histograms of each channel, and growth with depth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable
from normscope.results.histograms import Histograms
from normscope.results.layers import Coverage, not_measured

LARGEST = math.log10(float(np.finfo(np.float32).max))
MIN_LAYERS = 3  # of a fit with an error


@dataclass(frozen=True, eq=False, repr=False)
class ChannelStatistics(Record):
    """The channels of one signal, over all samples and positions."""

    name: str
    number: int  # of the weighted layer, from 1
    kind: str  # "linear", "conv", "norm": what came out; "activation": what went in
    operation: str
    mean: Array  # (channels,)
    variance: Array  # (channels,)
    minimum: Array  # (channels,)
    maximum: Array  # (channels,)
    rectified: bool = False  # goes into a ReLU or one of its kin
    histograms: Histograms | None = None

    @property
    def one_signed(self) -> NDArray[np.bool_]:
        """Channels that never take both signs."""
        return (self.minimum >= 0) | (self.maximum <= 0)

    @property
    def dying(self) -> NDArray[np.bool_]:
        """Units that a rectifier never lets pass: at most 0 on every sample and position."""
        return (self.maximum <= 0) & self.rectified

    @property
    def full(self) -> NDArray[np.bool_]:
        """Units that a rectifier always lets pass, so that it acts linearly: always above 0."""
        return (self.minimum > 0) & self.rectified

    def row(self) -> dict[str, Any]:
        """Averages over the channels, and their standard deviation over the channels."""
        magnitude = np.abs(self.mean)
        return {
            "operation": self.operation,
            "channels": len(self.mean),
            "mean_abs_mean": float(magnitude.mean()),
            "std_abs_mean": float(magnitude.std()),
            "max_abs_mean": float(magnitude.max()),
            "mean_variance": float(self.variance.mean()),
            "std_variance": float(self.variance.std()),
            "one_signed": float(self.one_signed.mean()),
            "dying": int(self.dying.sum()) if self.rectified else math.nan,
            "full": int(self.full.sum()) if self.rectified else math.nan,
        }

    def __repr__(self) -> str:
        return f"ChannelStatistics({self.name!r}, {len(self.mean)} channels)"


@dataclass(frozen=True, eq=False)
class Growth(Record):
    """log10 of the mean channel variance as a straight line over the layers.

    Attributes:
        which: ``"all"`` hidden layers, or the ``"even"`` or ``"odd"`` ones: the two convolutions
            of a residual block play different parts.
        slope: slope of log10 variance, per layer.
        error: standard error of the slope, from the scatter about the line.
        start: log10 variance of the line at layer 0.
        num_layers: points of the fit.
    """

    which: str
    slope: float
    error: float
    start: float
    num_layers: int

    @property
    def factor(self) -> float:
        """By which the variance is multiplied from one layer to the next."""
        return float(10.0**self.slope)

    @property
    def overflow_layer(self) -> float:
        """Where the line takes signals beyond float32; inf unless it rises by 2 errors."""
        if not self.slope > 2 * self.error:
            return math.inf
        return (2 * LARGEST - self.start) / self.slope


@dataclass(frozen=True, eq=False, repr=False)
class Activations(Drawable):
    """Channel statistics of every signal, in forward order; see :func:`normscope.activations`.

    The chart: channel means and variances by depth, or histograms.
    """

    signals: tuple[ChannelStatistics, ...]
    growth: tuple[Growth, ...]  # "all", "even", "odd", as far as there are layers
    coverage: Coverage
    num_samples: int
    num_batches: int
    seed: int
    convention: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, layer: str | int) -> ChannelStatistics:
        """The signal of a name, or the output of the weighted layer of a number."""
        for signal in self.signals:
            numbered = signal.number == layer and signal.kind in ("linear", "conv")
            if signal.name == layer or (numbered and not isinstance(layer, bool)):
                return signal
        raise not_measured("signal", layer, [s.name for s in self.signals])

    @property
    def outputs(self) -> tuple[ChannelStatistics, ...]:
        """What linear and convolutional layers give: what batch norm receives, or would."""
        return tuple(s for s in self.signals if s.kind in ("linear", "conv"))

    @property
    def rectified(self) -> tuple[ChannelStatistics, ...]:
        """What goes into rectifiers."""
        return tuple(s for s in self.signals if s.rectified)

    def to_frame(self) -> DataFrame:
        """One row per layer, those left out among them with their reason."""
        return self.coverage.to_frame({s.name: s.row() for s in self.signals})

    def summary(self) -> str:
        """A few lines for a terminal."""
        first, last = self.outputs[0] if self.outputs else None, self.outputs[-1:]
        lines = [f"Signals of {self.num_samples} samples ({self.convention.get('statistics', '')})"]
        if first is not None:
            end = f", {last[0].variance.mean():.3g} at layer {last[0].number}"
            lines.append(
                f"mean channel variance {first.variance.mean():.3g} at layer {first.number}"
                f"{end if last[0] is not first else ''}; largest channel mean "
                f"{max(np.abs(s.mean).max() for s in self.outputs):.3g}"
            )
        lines += [_growth_line(g) for g in self.growth[:1]]
        if self.rectified:
            units = sum(len(s.mean) for s in self.rectified)
            dying = sum(int(s.dying.sum()) for s in self.rectified)
            full = sum(int(s.full.sum()) for s in self.rectified)
            lines.append(
                f"of {units} ReLU units, {dying} are dead (zero for all data) and {full} are "
                "always active"
            )
        return "\n".join([*lines, self.coverage.summary()])

    def __repr__(self) -> str:
        grows = f", variance x {self.growth[0].factor:.3g} a layer" if self.growth else ""
        return f"Activations({len(self.signals)} signals, {self.num_samples} samples{grows})"


def fitted_growth(signals: tuple[ChannelStatistics, ...]) -> tuple[Growth, ...]:
    """Straight lines through log10 mean variance of hidden layers: all, even, odd."""
    last = max((s.number for s in signals), default=0)
    found: dict[int, float] = {}
    for s in signals:
        if "#" not in s.name:  # a projection has the number of the layer beside it
            found.setdefault(s.number, float(s.variance.mean()))
    points = [(n, math.log10(v)) for n, v in found.items() if 0 < n < last and v > 0]
    groups = {
        "all": points,
        "even": [p for p in points if p[0] % 2 == 0],
        "odd": [p for p in points if p[0] % 2 == 1],
    }
    return tuple(_line(w, np.array(p)) for w, p in groups.items() if len(p) >= MIN_LAYERS)


def _line(which: str, points: Array) -> Growth:
    x, y = points[:, 0], points[:, 1]
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / spread)
    start = float(y.mean() - slope * x.mean())
    rest = float(((y - start - slope * x) ** 2).sum())
    error = math.sqrt(rest / (len(x) - 2) / spread)
    return Growth(which, slope, error, start, len(x))


def _growth_line(growth: Growth) -> str:
    text = f"variance x {growth.factor:.4g} from layer to layer (log10 slope {growth.slope:.4f} "
    text += f"+- {growth.error:.4f})"
    if math.isfinite(growth.overflow_layer):
        text += f"; at this rate float32 overflows near layer {growth.overflow_layer:.0f}"
    return text
