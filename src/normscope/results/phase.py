"""Order and chaos over a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, framed


@dataclass(frozen=True, eq=False)
class PhaseDiagram(Drawable):
    """Fixed points and depth scales, one row per bias variance, one column per weight variance.

    The chart: chi_1 over the grid with the edge of chaos.

    Attributes:
        activation: its name.
        weight_variances: sigma_w^2, (n,).
        bias_variances: sigma_b^2, (m,).
        length: q*, (m, n); infinite where lengths diverge.
        correlation: c*, (m, n); NaN where lengths diverge.
        chi1: squared gain of a small perturbation; above 1 is chaos, (m, n).
        correlation_depth: xi_c in layers, (m, n).
        length_depth: xi_q in layers, (m, n).
        status: ``ordered``, ``edge``, ``chaotic`` or ``diverges``, (m, n).
    """

    activation: str
    weight_variances: Array
    bias_variances: Array
    length: Array
    correlation: Array
    chi1: Array
    correlation_depth: Array
    length_depth: Array
    status: NDArray[np.str_]

    def to_frame(self) -> DataFrame:
        """One row per grid point."""
        weight, bias = np.meshgrid(self.weight_variances, self.bias_variances)
        columns = ("length", "correlation", "chi1", "correlation_depth", "length_depth", "status")
        frame = {"weight_variance": weight.ravel(), "bias_variance": bias.ravel()}
        return framed(frame | {name: getattr(self, name).ravel() for name in columns})

    def summary(self) -> str:
        """How much of the grid is ordered, chaotic or diverging."""
        names, counts = np.unique(self.status, return_counts=True)
        parts = ", ".join(f"{c} {n}" for n, c in zip(names, counts, strict=True))
        return f"{self.activation}: {self.status.size} points, {parts}"

    def __repr__(self) -> str:
        return f"PhaseDiagram({self.summary()})"
