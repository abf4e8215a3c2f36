"""Units of a network: how alike they are, and how much hangs on them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.record import Record
from normscope.registry import check_choice
from normscope.results.base import DataFrame, Drawable, framed, standard_error_of
from normscope.results.layers import Coverage, not_measured


@dataclass(frozen=True, eq=False, repr=False)
class LayerUnits(Record):
    """The units of one signal, over all observations."""

    name: str
    number: int  # of the weighted layer, from 1
    kind: str  # "linear", "conv", "norm", "activation", ...: what came out of it
    operation: str
    mean: Array  # (units,)
    variance: Array  # (units,)
    skewness: Array  # (units,), NaN for a unit that never changes
    kurtosis: Array  # (units,), excess: 0 for a Gaussian; NaN for a unit that never changes
    mean_abs_correlation: float  # over pairs of units that change; NaN without a pair

    @property
    def rms(self) -> Array:
        """Root mean square of each unit."""
        return np.sqrt(self.variance + self.mean**2)

    @property
    def rms_variation(self) -> float:
        """Coefficient of variation over the units of the rms: 0 if all are equally large."""
        rms = self.rms
        return float(rms.std() / rms.mean()) if rms.any() else math.nan

    @property
    def mean_skewness(self) -> float:
        """Mean over the units that change."""
        return _mean(self.skewness)

    @property
    def mean_kurtosis(self) -> float:
        """Mean excess kurtosis over the units that change."""
        return _mean(self.kurtosis)

    @property
    def constant(self) -> int:
        """How many units never change."""
        return int(np.isnan(self.kurtosis).sum())

    def row(self) -> dict[str, Any]:
        """Its numbers, by name."""
        counts = {"operation": self.operation, "units": len(self.mean), "constant": self.constant}
        return counts | {name: getattr(self, name) for name in NUMBERS}

    def __repr__(self) -> str:
        return f"LayerUnits({self.name!r}, {len(self.mean)} units)"


# numbers of a layer and their names in words
NUMBERS = {
    "mean_abs_correlation": "mean |correlation|",
    "mean_skewness": "mean skewness",
    "mean_kurtosis": "mean excess kurtosis",
    "rms_variation": "coefficient of variation of the rms",
}


@dataclass(frozen=True, eq=False, repr=False)
class UnitStatistics(Drawable):
    """Units of every signal, in forward order; see `normscope.measure.unit_statistics`.

    The chart: correlation, kurtosis and variation of the rms by depth.
    """

    signals: tuple[LayerUnits, ...]
    coverage: Coverage
    num_samples: int
    num_batches: int
    seed: int
    positions: bool = True  # whether every position is an observation
    convention: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, layer: str | int) -> LayerUnits:
        """The signal of a name, or the output of the weighted layer of a number."""
        for signal in self.signals:
            numbered = signal.number == layer and signal.kind not in ("norm", "activation")
            if signal.name == layer or (numbered and not isinstance(layer, bool)):
                return signal
        raise not_measured("signal", layer, [s.name for s in self.signals])

    def to_frame(self) -> DataFrame:
        """One row per layer, those left out among them with their reason."""
        return self.coverage.to_frame({s.name: s.row() for s in self.signals})

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"Units of {self.num_samples} samples ({self.convention.get('statistics', '')})"]
        for name, words in NUMBERS.items():
            known = {getattr(s, name): s.name for s in self.signals}
            ends = sorted(value for value in known if math.isfinite(value))
            said = " to ".join(f"{v:.3g} ({known[v]})" for v in dict.fromkeys(ends[:1] + ends[-1:]))
            lines.append(f"{words}: {said or 'not defined'}")
        return "\n".join([*lines, self.coverage.summary()])

    def __repr__(self) -> str:
        return f"UnitStatistics({len(self.signals)} signals, {self.num_samples} samples)"


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(Drawable):
    """What is left of a network without a share of its units; see `normscope.measure.ablation`.

    The chart: accuracy and loss over the share of units that are ablated.
    """

    shares: Array  # (points,), of the units of each layer
    accuracy: Array  # (orders, points), NaN without labels
    loss: Array  # (orders, points)
    layers: tuple[str, ...]  # the places, in forward order
    units: tuple[int, ...]  # how many each has
    replace: str  # "zero" or "mean": what takes their place
    num_samples: int
    seed: int
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def orders(self) -> int:
        """In how many random orders units were ablated."""
        return len(self.accuracy)

    @property
    def mean_accuracy(self) -> Array:
        """Mean over the orders, (points,)."""
        return self.accuracy.mean(axis=0)

    @property
    def accuracy_error(self) -> Array:
        """Standard error of the mean over the orders, (points,); NaN for one order."""
        return standard_error_of(self.accuracy)

    @property
    def mean_loss(self) -> Array:
        """Mean over the orders, (points,)."""
        return self.loss.mean(axis=0)

    @property
    def loss_error(self) -> Array:
        """Standard error of the mean over the orders, (points,); NaN for one order."""
        return standard_error_of(self.loss)

    def area(self, quantity: str = "accuracy", *, relative: bool = False) -> tuple[float, float]:
        """Area under the curve over the range of shares, and its standard error over the orders.

        Args:
            quantity: ``"accuracy"`` or ``"loss"``.
            relative: divide by the value at the smallest share, for the accuracy that is *kept*.

        Returns:
            The mean height of the curve (trapezoidal rule), and its standard error.
        """
        check_choice("quantity", quantity, ("accuracy", "loss"))
        curves = getattr(self, quantity)
        curves = curves / curves[:, :1] if relative else curves
        steps = np.diff(self.shares)
        middles = (curves[:, 1:] + curves[:, :-1]) / 2
        areas = middles @ steps / steps.sum() if len(steps) else curves[:, 0]
        return float(areas.mean()), float(standard_error_of(areas))

    def to_frame(self) -> DataFrame:
        """One row per share: means over the orders and their standard errors."""
        names = ("mean_accuracy", "accuracy_error", "mean_loss", "loss_error")
        return framed({"share": self.shares} | {name: getattr(self, name) for name in names})

    def summary(self) -> str:
        """A few lines for a terminal."""
        places = ", ".join(self.layers[:4]) + (", ..." if self.layers[4:] else "")
        value = "zero" if self.replace == "zero" else "their means"
        lines = [f"{sum(self.units)} units of {places} set to {value} in {self.orders} orders"]
        known = ("accuracy", "loss") if np.isfinite(self.accuracy).all() else ("loss",)
        for name in known:
            first, last = getattr(self, f"mean_{name}")[[0, -1]]
            mean, error = self.area(name)
            lines.append(
                f"{name}: {first:.4g} at share {self.shares[0]:g}, {last:.4g} at share "
                f"{self.shares[-1]:g}; area under the curve {mean:.4g} +- {error:.2g}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Ablation({sum(self.units)} units, {self.orders} orders, {len(self.shares)} shares)"


def _mean(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
