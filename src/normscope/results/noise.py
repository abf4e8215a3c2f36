"""The noise of stochastic gradients, measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Array
from normscope.results.base import DataFrame, Drawable, framed
from normscope.results.layers import Coverage, LayerStatus


@dataclass(frozen=True, eq=False, repr=False)
class GradientNoise(Drawable):
    """How far the gradient of a batch lies from the mean, for the whole and for each layer.

    Arrays begin with the whole, then one row per layer; columns are batch sizes.

    The chart: noise by batch size, and the noise scale of each layer.

    Attributes:
        layers: names, in forward order.
        noise: M, mean |grad f_i - grad f|^2 over the samples given, exact; NaN if coupled.
        gradient2: |grad f|^2 of their mean; NaN if coupled.
        batch_sizes: B.
        with_replacement: E|g_B - E g_B|^2 = M/B; NaN if coupled.
        without_replacement: the same for batches of different samples: M/B (N - B)/(N - 1), NaN
            for B above N; if coupled, measured.
        without_replacement_error: standard error; 0 by formula.
        signal: unbiased |E g|^2; if coupled of batches of that size, else the same in all columns.
        signal_error: its standard error.
        noise_scale: B times noise (of independent samples) over signal: the batch size at which
            both are equal; infinite where the signal is not told from zero, NaN for B = N.
        noise_scale_error: its standard error.
        coupling: why single samples have no gradient of their own; empty if they have.
        num_samples: N.
        draws: batches drawn of each size; 0 if exact.
        seed: seed for the draws.
        coverage: the layers, and those left out.
        convention: what was measured and how.
    """

    layers: tuple[str, ...]
    noise: Array  # (1 + layers,)
    gradient2: Array  # (1 + layers,)
    batch_sizes: NDArray[np.int64]  # (sizes,)
    with_replacement: Array  # (1 + layers, sizes)
    without_replacement: Array  # (1 + layers, sizes)
    without_replacement_error: Array  # (1 + layers, sizes)
    signal: Array  # (1 + layers, sizes)
    signal_error: Array  # (1 + layers, sizes)
    noise_scale: Array  # (1 + layers, sizes)
    noise_scale_error: Array  # (1 + layers, sizes)
    coupling: str
    num_samples: int
    draws: int
    seed: int
    coverage: Coverage
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def coupled(self) -> bool:
        """Whether single samples have no gradient of their own, so that batches were drawn."""
        return bool(self.coupling)

    @property
    def total(self) -> float:
        """M of the whole model; NaN if coupled."""
        return float(self.noise[0])

    @property
    def by_layer(self) -> dict[str, float]:
        """M of each layer; they add up to the total."""
        return dict(zip(self.layers, self.noise[1:].tolist(), strict=True))

    def to_frame(self) -> DataFrame:
        """One row per layer and batch size; ``"(all)"`` is the whole, left-out layers come last."""
        rows: list[dict[str, Any]] = []
        for part, state in enumerate((LayerStatus("(all)", 0, "all"), *self.coverage.ok)):
            known = {"noise": self.noise[part], "gradient2": self.gradient2[part]}
            for column, size in enumerate(self.batch_sizes.tolist()):
                found = {name: getattr(self, name)[part, column] for name in _COLUMNS}
                rows.append(state.row(batch_size=size, **known, **found))
        return framed(rows + [left.row() for left in self.coverage.left_out])

    def summary(self) -> str:
        """A few lines for a terminal."""
        lines = [f"Gradient noise of {self.num_samples} samples, seed {self.seed}"]
        if self.coupled:
            lines.append(
                f"  batch by batch, because {self.coupling}: single samples have no gradient of "
                f"their own; {self.draws} batches drawn of each size"
            )
        else:
            lines.append(
                f"  M = E|grad f_i - grad f|^2 = {self.total:.6g}, |grad f|^2 = "
                f"{self.gradient2[0]:.6g} (exact for these samples)"
            )
        for column, size in enumerate(self.batch_sizes.tolist()):
            lines.append("  " + self._line(column, size))
        return "\n".join([*lines, self.coverage.summary()])

    def _line(self, column: int, size: int) -> str:
        found = self.without_replacement[0, column]
        error = self.without_replacement_error[0, column]
        scale, spread = self.noise_scale[0, column], self.noise_scale_error[0, column]
        known = f"{scale:.4g} +- {spread:.1g}" if np.isfinite(spread) else "not told from infinite"
        noise = f"{found:.4g}" + (f" +- {error:.1g}" if self.coupled else "")
        replaced = (
            "" if self.coupled else f", with replacement {self.with_replacement[0, column]:.4g}"
        )
        return f"B = {size:5d}: noise {noise}{replaced}; noise scale {known}"

    def __repr__(self) -> str:
        if self.coupled:
            sizes = ", ".join(map(str, self.batch_sizes.tolist()))
            return f"GradientNoise(batches of {sizes} drawn from {self.num_samples} samples)"
        return f"GradientNoise(M={self.total:.6g}, {self.num_samples} samples)"


_COLUMNS = (
    *("with_replacement", "without_replacement", "without_replacement_error"),
    *("signal", "signal_error", "noise_scale", "noise_scale_error"),
)
