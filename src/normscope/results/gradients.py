"""Gradients of a network: whether their terms agree, how they are spread, whom they favour."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normscope.checks import Array
from normscope.record import Record
from normscope.results.base import DataFrame, Drawable
from normscope.results.histograms import Histograms
from normscope.results.layers import Coverage, not_measured

NAN = float("nan")
DOMINATED = 0.01  # sigma_max(gradient) / sigma_max(weight) below which the weight dominates


@dataclass(frozen=True, eq=False, repr=False)
class LayerGradients(Record):
    """The gradient of one weight; every number is a mean over batches.

    d is one term of the gradient, of one sample at one position; BP is samples times positions.
    NaN stands for what was not asked for or has no meaning here.
    """

    name: str
    number: int
    kind: str
    operation: str
    shape: tuple[int, ...]  # (out, in / groups, *kernel)
    # alignment: means over the weights, divided by BP
    t1: float = NAN  # sum over samples and positions of |d|
    t2: float = NAN  # sum over samples of |sum over positions of d|
    t3: float = NAN  # sum over positions of |sum over samples of d|
    t4: float = NAN  # |sum of d|: mean |gradient| / BP
    aligned: float = NAN  # share of weights whose own T4 / T1 is above 1/2
    median_alignment: float = NAN  # of the weights' own T4 / T1
    term_correlation: float = NAN  # Pearson's r of T1 and T4 over the weights
    # entries of the gradient
    std: float = NAN
    mean_abs: float = NAN
    max_abs: float = NAN
    kurtosis: float = NAN  # excess: 0 for a Gaussian
    # A(out, in): |gradient| summed over the kernel
    max_over_median: float = NAN
    log10_spread: float = NAN  # log10 of max / min
    row_cv: float = NAN  # coefficient of variation of the means of the out-channels
    column_cv: float = NAN  # the same of the in-channels
    rank_one: float = NAN  # sigma_1^2 / sum of sigma^2, of A
    rank_one_signed: float = NAN  # the same of the signed sum
    # against the weight
    weight_ratio: float = NAN  # Frobenius norms: gradient / weight
    domination: float = NAN  # largest singular values: gradient / weight
    # mean of an in-channel against the gradient of its weights
    mean_correlation: float = NAN  # Pearson's r over the in-channels; NaN if the means are equal
    channel_ratio: float = NAN  # largest / smallest mean |gradient| of an in-channel
    mean_of: str = ""  # the signal whose means these are
    channel_gradient_at: str = ""  # where the channel gradients were taken
    in_mean: Array | None = None  # (in,)
    in_contribution: Array | None = None  # (in,) mean |part of the output that comes from it|
    in_gradient: Array | None = None  # (in,) mean |gradient| of its weights
    channel_gradient: Array | None = None  # (out,) sum of dL/dOUT: of a bias
    matrix: Array | None = None  # (out, in) A; None where it is too large to keep
    terms: Array | None = None  # (2, n) T1 and T4 of some weights, first batch
    histogram: Histograms | None = None  # of the entries
    summand: tuple[int, ...] = ()  # a weight, by default that with the largest gradient at first
    summands: Histograms | None = None  # of its terms d
    summand_mean: float = NAN  # of its terms d, over all samples and positions
    summand_std: float = NAN
    summand_positive: float = NAN  # share of its terms above 0
    summand_negative: float = NAN  # and below 0; the rest is exactly 0

    @property
    def alignment(self) -> float:
        """T4 / T1: 1 if all terms have one sign, near 0 if they cancel."""
        return self.t4 / self.t1 if self.t1 else NAN

    @property
    def dominated(self) -> bool:
        """Whether the weight is much larger than its gradient (by ``DOMINATED``)."""
        return self.domination < DOMINATED

    def row(self) -> dict[str, Any]:
        """Every number, by name."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        numbers = {k: v for k, v in named.items() if isinstance(v, float)}
        size = int(np.prod(self.shape))
        return {"operation": self.operation, "weights": size, "alignment": self.alignment} | numbers

    def __repr__(self) -> str:
        return f"LayerGradients({self.name!r}, T4/T1 {self.alignment:.3g}, std {self.std:.3g})"


@dataclass(frozen=True, eq=False, repr=False)
class OutputGradients(Record):
    """G(b, j) = dL_b / dz_bj = softmax(z_b)_j - [j = y_b], of each sample's own loss."""

    probability: Array  # (classes,) mean softmax
    predicted: Array  # (classes,) share of the samples that predict the class
    mean: Array  # (classes,) of G over samples of other classes
    std: Array  # (classes,) of G over samples of other classes
    alignment: float  # sum_j |mean_b G| / sum_j mean_b |G|: 1 if all samples pull one way
    num_samples: int
    examples: Array  # (n, classes) G of the first samples

    @property
    def favoured(self) -> int:
        """The class with the largest mean probability."""
        return int(self.probability.argmax())

    def __repr__(self) -> str:
        j = self.favoured
        return f"OutputGradients(favours class {j}, {self.predicted[j]:.0%} predicted)"


@dataclass(frozen=True, eq=False, repr=False)
class ClassGradients(Record):
    """The gradient of one weight, split by the output through which it comes."""

    name: str
    number: int
    mean_abs: Array  # (classes,) mean |gradient| through that output alone
    max_abs: Array  # (classes,)
    sum_error: float  # |sum over classes - whole gradient| / |whole gradient|, largest of a batch

    @property
    def dominant(self) -> int:
        """The class through which most of the gradient comes."""
        return int(self.mean_abs.argmax())

    @property
    def top_over_second(self) -> float:
        """Largest mean |gradient| of a class over the second largest."""
        second, top = np.sort(self.mean_abs)[-2:]
        return float(top / second) if second > 0 else float("inf")

    @property
    def top_over_median(self) -> float:
        """Largest mean |gradient| of a class over the median."""
        middle = float(np.median(self.mean_abs))
        return float(self.mean_abs.max() / middle) if middle > 0 else float("inf")

    def __repr__(self) -> str:
        return f"ClassGradients({self.name!r}, class {self.dominant} dominates)"


@dataclass(frozen=True, eq=False, repr=False)
class Gradients(Drawable):
    """Gradients of every weighted layer, in forward order; see :func:`normscope.gradients`.

    The chart: alignment and size of gradients by depth, or one layer.
    """

    layers: tuple[LayerGradients, ...]
    coverage: Coverage
    loss: float
    num_samples: int
    num_batches: int
    seed: int
    outputs: OutputGradients | None = None  # None unless the loss is cross-entropy
    classes: ClassGradients | None = None  # None unless asked for; the first of class_layers
    convention: dict[str, str] = field(default_factory=dict)
    class_layers: tuple[ClassGradients, ...] = ()

    def __getitem__(self, layer: str | int) -> LayerGradients:
        """The layer of a name or number."""
        for found in self.layers:
            if layer == found.name or (layer == found.number and not isinstance(layer, bool)):
                return found
        raise not_measured("gradient", layer, [x.name for x in self.layers])

    def to_frame(self) -> DataFrame:
        """One row per layer, those left out among them with their reason."""
        return self.coverage.to_frame({layer.name: layer.row() for layer in self.layers})

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"Gradients of {self.convention.get('loss', 'the loss')}, loss {self.loss:.4g}"]
        ratios = np.array([layer.alignment for layer in self.layers])
        if np.isfinite(ratios).any():
            lines.append(
                f"T4/T1 between {np.nanmin(ratios):.2g} and {np.nanmax(ratios):.2g}, median "
                f"{np.nanmedian(ratios):.2g}: near 1 if all samples and positions give the "
                "same gradient, near 0 if their gradients cancel"
            )
        scale = [layer.mean_abs for layer in self.layers]
        largest = self.layers[int(np.argmax(scale))]
        lines.append(
            f"mean |gradient| between {min(scale):.3g} and {max(scale):.3g} (largest at "
            f"{largest.name}); {sum(x.dominated for x in self.layers)} layers dominated by their "
            "weight"
        )
        lines += self._class_lines()
        return "\n".join([*lines, self.coverage.summary()])

    def _class_lines(self) -> list[str]:
        lines = []
        if self.outputs is not None:
            j = self.outputs.favoured
            lines.append(
                f"class {j} is favoured: predicted for {self.outputs.predicted[j]:.0%} of the "
                f"samples; the output gradients of the samples agree by "
                f"{self.outputs.alignment:.2f} (1: all the same)"
            )
        return lines + [
            f"gradient of {split.name}: class {split.dominant} gives "
            f"{split.top_over_median:.3g} times the median class"
            for split in self.class_layers
        ]

    def __repr__(self) -> str:
        return f"Gradients({len(self.layers)} layers, {self.num_samples} samples)"
