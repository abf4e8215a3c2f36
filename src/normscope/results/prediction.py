"""What the theory says of a network before any training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np

from normscope.checks import Array, checked_positive
from normscope.errors import InputError, TheoryError
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.gradient_kernel import doubts, numbers
from normscope.spec import NetworkSpec

NUMBERS = ("lambda_max", "lambda_max_split", "lower", "upper", "trace", "mean_eigenvalue")
WIDER = ("lambda_max", "lambda_max_split", "mean_direction", "trace")
SHOWN = (  # columns of a summary
    *("norm", "gamma", "last_norm", "theory", "samples"),
    *("lambda_max", "lower", "upper", "trace", "critical_lr"),
)


@dataclass(frozen=True, eq=False)
class Contribution(Record):
    """What the parameters of one kind in one layer add.

    Attributes:
        layer: name of the layer; ``""`` for all layers together.
        kind: weight, bias, gamma or beta.
        mean_direction: their part of the mean direction's eigenvalue.
        top: their part of lambda_max, along its own eigenvector.
        trace: their part of the trace.
        parameters: how many they are.
        head: whether the layer is the read-out.
        grows: whether the part is proportional to the width of the network.
    """

    layer: str
    kind: str
    mean_direction: float
    top: float
    trace: float
    parameters: int
    head: bool
    grows: bool


@dataclass(frozen=True, eq=False)
class Prediction(Drawable):
    """Mean-field prediction of the Fisher matrix F = J^T J / T of one network.

    The chart: each layer's share of lambda_max.

    Attributes:
        spec: the network; None for one that was read off a module.
        theory: ``"graph"``, ``"corrected"``, ``"frozen"``, ``"wei2019"`` or
            ``"wei2019-as-plotted"``.
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
        network: what the network is called where there is no spec.
        level: detail of ``"graph"``: ``"homogeneous"``, ``"positions"`` or ``"gram"``.
        statistics: what batch norm does: ``"batch"``, ``"frozen"`` or ``"running"``.
        mean_direction: eigenvalue of the mean over samples, 1^T Theta 1 / T^2; lambda_max is
            larger where the bulk of the spectrum leads.
        layers: names of the layers of ``per_layer``, for ``"graph"``. Its order parameters are
            those of the layers with weights, in their order: mean squares of inputs (qhat) and
            outputs (q), and qtilde, the squared derivatives of one output summed over the layer.
        contributions: by layer and kind of parameter.
        kernels: Theta of one output, by what it does with the width: ``"head"`` and ``"hidden"``
            stay, ``"head grows"`` and ``"hidden grows"`` are proportional to it. Two numbers,
            diagonal and off-diagonal, or all pairs of samples.
        outputs: C, for ``"graph"``.
        head_channels: channels that enter the read-out.
        spread: largest eigenvalue of the centred samples over the mean of all.
        width: factor on the width of every hidden layer; see ``scaled``.
    """

    spec: NetworkSpec | None
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
    network: str = ""
    level: str | None = None
    statistics: str | None = None
    mean_direction: float | None = None
    layers: tuple[str, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    outputs: int | None = None
    kernels: dict[str, Array] = field(default_factory=dict)
    head_channels: int | None = None
    spread: float = 0.0
    width: float = 1.0

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

        For half the squared error, summed over the outputs (``loss="mse"`` by name), whose Hessian
        is F at a perfect fit. For other losses ``suggest_lr`` scales it, or measures.

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

    def scaled(self, width: float) -> Prediction:
        """The prediction for a network that is ``width`` times as wide in every hidden layer.

        One pass gives all widths: the parts of weights with hidden inputs are proportional to the
        width, all others do not depend on it. For ``theory="graph"`` without a norm on the outputs.

        Example:
            >>> import normscope as ns
            >>> narrow = ns.predict(ns.mlp([20, 50, 50, 1]), samples=100, theory="graph")
            >>> wide = ns.predict(ns.mlp([20, 100, 100, 1]), samples=100, theory="graph")
            >>> round(narrow.scaled(width=2).lambda_max / wide.lambda_max, 6)
            1.0
        """
        factor = checked_positive(width, "width")
        if not self.kernels or self.head_channels is None or self.outputs is None:
            raise TheoryError(
                "Other widths follow from one pass for theory='graph' without a norm on the "
                f"outputs. This prediction is of theory {self.theory!r}: predict the wider network."
            )
        kernels = {k: v * factor if k.endswith("grows") else v for k, v in self.kernels.items()}
        channels = max(1, round(self.head_channels * factor))
        samples = math.inf if self.samples is None else float(self.samples)
        made = numbers(kernels, samples=samples, outputs=self.outputs, channels=channels)
        parts = tuple(_wider(part, factor) for part in self.contributions)
        level = self.level or ""
        narrow = doubts(vars(self), self.kernels, samples=samples, level=level, spread=self.spread)
        count = sum(part.parameters for part in parts)
        return replace(
            self,
            **made,
            spec=None,
            network=self.network or "the network",
            mean_eigenvalue=made["trace"] / count,
            num_parameters=count,
            per_layer=np.array([_of_layer(parts, name) for name in self.layers]),
            per_kind=kinds_of(parts),
            contributions=parts,
            kernels=kernels,
            head_channels=channels,
            flags=(
                *(f for f in self.flags if f not in narrow),
                *doubts(made, kernels, samples=samples, level=level, spread=self.spread),
            ),
            width=self.width * factor,
            alpha=None,
            kappa1=None,
            kappa2=None,
        )

    def to_frame(self) -> DataFrame:
        """One row per layer: sizes, order parameters, share of lambda_max."""
        spec, order = self.spec, self.order_parameters
        if spec is None:
            rows = {n: v for n, v in order.items() if len(v) == len(self.layers)}
            return framed({"layer": self.layers, **rows, "lambda_share": self.per_layer})
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
        norm = None if self.spec is None else self.spec.norm
        last = None if self.spec is None else self.spec.last_norm
        known = self.lambda_max is not None
        return {
            "norm": "none" if norm is None else norm.kind,
            "gamma": None if norm is None else norm.gamma,
            "last_norm": last or "none",
            **{name: getattr(self, name) for name in ("theory", "samples", *NUMBERS)},
            "critical_lr": self.critical_lr(momentum) if known else None,
            "flags": self.reason or "",
        }

    def summary(self, momentum: float = 0.0, widths: Sequence[float] = ()) -> str:
        """A few lines of plain text; with ``widths`` also for networks so many times as wide."""
        if self.spec is not None:
            return PredictionSet((self, *map(self.scaled, widths))).summary(momentum)
        wider = [self.scaled(width) for width in widths]
        rows = [["width", *WIDER, "critical_lr"]]
        for one in (self, *wider):
            known = one.lambda_max is not None
            rate = one.critical_lr(momentum) if known else None
            values = [f"x {one.width:g}", *(getattr(one, name) for name in WIDER), rate]
            rows.append([_cell(value, "") for value in values])
        shares = sorted(zip(self.per_layer, self.layers, strict=True), reverse=True)[:3]
        total = float(self.per_layer.sum())
        lines = [f"{self.network}: {self._setting()}", *_aligned(rows)]
        if total > 0:
            said = ", ".join(f"{name} {100 * value / total:.0f} %" for value, name in shares)
            lines.append(f"largest shares of lambda_max: {said}")
        lines += [f"- {note}" for note in self.assumptions]
        flags = dict.fromkeys(flag for one in (self, *wider) for flag in one.flags)
        return "\n".join(lines + [f"! {flag}" for flag in flags])

    def _setting(self) -> str:
        samples = "infinitely many" if self.samples is None else self.samples
        return (
            f"F = J^T J / T over {self.num_parameters:,} parameters ({self.parameters}), "
            f"{samples} samples, level {self.level}"
        )

    def __repr__(self) -> str:
        value = "None" if self.lambda_max is None else f"{self.lambda_max:.6g}"
        limit = "infinity" if self.samples is None else self.samples
        return f"Prediction(lambda_max={value}, theory={self.theory!r}, samples={limit})"


def kinds_of(parts: Iterable[Contribution]) -> dict[str, float]:
    """Terms of lambda_max by kind of parameter."""
    made: dict[str, float] = {}
    for part in parts:
        made[part.kind] = made.get(part.kind, 0.0) + part.top
    return made


def _of_layer(parts: Iterable[Contribution], layer: str) -> float:
    return sum(part.top for part in parts if part.layer == layer)


def _wider(part: Contribution, factor: float) -> Contribution:
    """The same part of a network whose hidden layers are ``factor`` times as wide."""
    growth = factor if part.grows else 1.0
    power = (part.grows and part.kind == "weight") + (not part.head)
    return replace(
        part,
        mean_direction=part.mean_direction * growth,
        top=part.top * growth,
        trace=part.trace * growth,
        parameters=round(part.parameters * factor**power),
    )


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
        lines = _aligned(text)
        flags = dict.fromkeys(flag for p in self for flag in p.flags)
        return "\n".join(lines + [f"! {flag}" for flag in flags])

    def __repr__(self) -> str:
        return f"PredictionSet({len(self)} predictions)"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def _cell(value: Any, column: str) -> str:
    if value is None:
        return "inf" if column == "samples" else "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
