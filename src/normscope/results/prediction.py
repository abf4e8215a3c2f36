"""What the theory says of a network before any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from normscope.checks import Array
from normscope.errors import InputError, TheoryError
from normscope.results.base import DataFrame, Drawable, framed
from normscope.spec import NetworkSpec

NUMBERS = ("lambda_max", "lambda_max_split", "lower", "upper", "trace", "mean_eigenvalue")
SHOWN = (  # columns of a summary
    *("norm", "gamma", "last_norm", "theory", "samples"),
    *("lambda_max", "lower", "upper", "trace", "critical_lr"),
)


@dataclass(frozen=True, eq=False)
class Prediction(Drawable):
    """Mean-field prediction of the Fisher matrix F = J^T J / T of one network.

    The chart: each layer's share of lambda_max.

    Attributes:
        spec: the network.
        theory: ``"corrected"``, ``"frozen"``, ``"wei2019"`` or ``"wei2019-as-plotted"``.
        samples: T, or None for the limit T to infinity.
        parameters: ``"weights"`` or ``"all"``.
        lambda_max: largest eigenvalue to leading order, or None; ``reason`` says why.
        lambda_max_split: with the C > 1 splitting by the read-out's overlaps.
        lower: lower bound of lambda_max at leading order.
        upper: upper bound of lambda_max at leading order.
        trace: trace of F.
        mean_eigenvalue: trace / number of parameters.
        num_parameters: P, counting what ``parameters`` names.
        per_layer: each layer's term in the mean direction, its share of lambda_max, (layers,);
            with a norm on the outputs, of the network before that norm.
        per_kind: the same by kind of parameter: weight, bias, gamma, beta; like ``per_layer``
            it describes the network before a norm on the outputs.
        order_parameters: q, qhat, qtilde and their ``_st`` (two samples) per layer; q and qtilde
            of layers 1..L, qhat of layers 0..L-1. qtilde is summed over positions.
        standard_error: that of lambda_max where outputs were drawn at random: layer norm on the
            outputs. With five outputs or fewer the numbers are medians over the draws.
        assumptions: what the numbers rest on.
        flags: which assumptions do not hold here, and what follows.
        equations: where the formulas stand.
        quantiles: lambda_max over these draws by level, ``"0.05"`` to ``"0.95"``; else empty.
        A1: diagonal entry of T F* for one output, summed over layers and kinds of parameters;
            with a norm on the outputs, of the network before that norm. With real inputs the mean
            over samples. None for convolutions under ``"wei2019"``, which counts positions twice.
        A2: the same off the diagonal, for two samples.
        alpha: sum of M_l M_(l-1) / M^2 over l = 1..L-1, with M the width of the first hidden
            layer; None for convolutions and without hidden layers.
        kappa1: A1 / (alpha M), Karakida's kappa_1; None where alpha or A1 is.
        kappa2: A2 / (alpha M).
    """

    spec: NetworkSpec
    theory: str
    samples: int | None
    parameters: str
    lambda_max: float | None
    lambda_max_split: float | None
    lower: float | None
    upper: float | None
    trace: float
    mean_eigenvalue: float
    num_parameters: int
    per_layer: Array  # (layers,)
    per_kind: dict[str, float]
    order_parameters: dict[str, Array]
    standard_error: float | None
    assumptions: tuple[str, ...]
    flags: tuple[str, ...]
    equations: tuple[str, ...]
    quantiles: dict[str, float] = field(default_factory=dict)
    A1: float | None = None
    A2: float | None = None
    alpha: float | None = None
    kappa1: float | None = None
    kappa2: float | None = None

    @property
    def ok(self) -> bool:
        """True if there is a value of lambda_max and no assumption is known to fail."""
        return self.lambda_max is not None and not self.flags

    @property
    def reason(self) -> str | None:
        """Why there is no lambda_max, or what limits it; None if nothing does."""
        return " ".join(self.flags) or None

    def critical_lr(self, momentum: float = 0.0) -> float:
        """2 (1 + momentum) / lambda_max: the sharpest direction is stable below it.

        Infinite for lambda_max = 0. Raises TheoryError where there is no lambda_max.
        """
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1. Got {momentum!r}.")
        if self.lambda_max is None:
            raise TheoryError(
                f"No critical learning rate, because there is no lambda_max: {self.reason} "
                f"With the upper bound {self.upper} in its place you get a safe rate, "
                f"with the lower bound {self.lower} a rate that is too large."
            )
        return 2 * (1 + momentum) / self.lambda_max if self.lambda_max > 0 else float("inf")

    def to_frame(self) -> DataFrame:
        """One row per layer: sizes, order parameters, share of lambda_max."""
        spec, order = self.spec, self.order_parameters
        frame = {
            "layer": np.arange(1, spec.depth + 1),
            "fan_in": spec.fan_ins,
            "outputs": [layer.outputs for layer in spec.layers],
            **{name: order[name] for name in order if len(order[name]) == spec.depth},
            "lambda_share": self.per_layer,
        }
        return framed(frame)

    def row(self, momentum: float = 0.0) -> dict[str, Any]:
        """The headline numbers as one row of a table."""
        norm = self.spec.norm
        known = self.lambda_max is not None
        return {
            "norm": "none" if norm is None else norm.kind,
            "gamma": None if norm is None else norm.gamma,
            "last_norm": self.spec.last_norm or "none",
            **{name: getattr(self, name) for name in ("theory", "samples", *NUMBERS)},
            "critical_lr": self.critical_lr(momentum) if known else None,
            "flags": self.reason or "",
        }

    def summary(self, momentum: float = 0.0) -> str:
        """A few lines of plain text."""
        return PredictionSet((self,)).summary(momentum)

    def __repr__(self) -> str:
        value = "None" if self.lambda_max is None else f"{self.lambda_max:.6g}"
        limit = "infinity" if self.samples is None else self.samples
        return f"Prediction(lambda_max={value}, theory={self.theory!r}, samples={limit})"


@dataclass(frozen=True, eq=False)
class PredictionSet(Drawable, Sequence[Prediction]):
    """Predictions of several networks and theories, network by network.

    The chart: lambda_max and critical learning rate against gamma.
    """

    predictions: tuple[Prediction, ...]

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> PredictionSet: ...
    def __getitem__(self, index: int | slice) -> Prediction | PredictionSet:
        if isinstance(index, slice):
            return PredictionSet(self.predictions[index])
        return self.predictions[index]

    def __len__(self) -> int:
        return len(self.predictions)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.predictions)

    def select(self, theory: str) -> PredictionSet:
        """Those of one theory."""
        return PredictionSet(tuple(p for p in self if p.theory == theory))

    def to_frame(self, momentum: float = 0.0) -> DataFrame:
        """One row per prediction."""
        return framed([p.row(momentum) for p in self])

    def summary(self, momentum: float = 0.0) -> str:
        """A table in plain text, and below it every flag once."""
        rows = [p.row(momentum) for p in self]
        text = [list(SHOWN)]
        text += [[_cell(row[column], column) for column in SHOWN] for row in rows]
        widths = [max(len(line[i]) for line in text) for i in range(len(SHOWN))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(x, widths, strict=True)) for x in text]
        flags = dict.fromkeys(flag for p in self for flag in p.flags)
        return "\n".join(lines + [f"! {flag}" for flag in flags])

    def __repr__(self) -> str:
        return f"PredictionSet({len(self)} predictions)"


def _cell(value: Any, column: str) -> str:
    if value is None:
        return "inf" if column == "samples" else "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
