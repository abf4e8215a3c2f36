"""Where a network is normalized, and whether its norms do what they seem to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from normscope.record import Record
from normscope.results.base import Drawable, listed
from normscope.results.layers import Coverage

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class NormUse(Record):
    """One normalization layer.

    Attributes:
        name: of the layer; ``#2`` for its second use.
        kind: its class, or the function called.
        number: of the weighted layer before it, 0 if there is none.
        used: whether the forward pass reaches it.
        gamma: root mean square of its scale; 1 without one.
        mean_gap: root mean square over channels of (batch mean - running mean) / running
            deviation; NaN without running statistics.
        variance_ratio: geometric mean over channels of batch variance / running variance, each
            with the layer's eps; NaN without running statistics.
        variance_gap: how far the two are apart, as a factor from 1 on: root mean square of the
            logarithm over channels, where opposite deviations do not cancel.
        updates: batches behind its running statistics; -1 if that is not known.
        frozen: whether it is a batch norm in evaluation mode in a network in train mode, which
            normalizes by its stored statistics in training too.
    """

    name: str
    kind: str
    number: int
    used: bool
    gamma: float
    mean_gap: float = float("nan")
    variance_ratio: float = float("nan")
    variance_gap: float = float("nan")
    updates: int = -1
    frozen: bool = False

    @property
    def over_batch(self) -> bool:
        """Whether it normalizes over the batch in training, and is used."""
        return self.used and "batch" in self.kind.lower() and not self.frozen


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Drawable):
    """The norms of a network in forward order, and what they leave out.

    The chart: layers and norms in forward order.

    Attributes:
        norms: every normalization layer, used or not.
        hidden_layers: weighted layers but the last.
        normalized: how many of them have a norm behind them, before the next weighted layer.
        last: name of the last weighted layer.
        last_input_norm: the norm between it and the weighted layer before; None if there is none.
        output_norm: the norm behind it; None if there is none.
        last_input_power: mean square of what goes into it, per feature.
        coverage: the layers seen.
        convention: what was measured and how.
    """

    norms: tuple[NormUse, ...]
    hidden_layers: int
    normalized: int
    last: str
    last_input_norm: str | None
    output_norm: str | None
    last_input_power: float
    coverage: Coverage
    convention: dict[str, str] = field(default_factory=dict)

    @property
    def unused(self) -> tuple[NormUse, ...]:
        """Norms that the forward pass never reaches."""
        return tuple(norm for norm in self.norms if not norm.used)

    def to_frame(self) -> pd.DataFrame:
        """One row per normalization layer."""
        columns = ["name", "kind", "number", "used", "gamma", "mean_gap", "variance_ratio"]
        columns += ["variance_gap", "updates", "frozen"]
        return listed(self.norms, *columns)

    def summary(self) -> str:
        """A few lines for a terminal."""
        frozen = sum(norm.frozen for norm in self.norms)
        fixed = f", {frozen} of them in evaluation mode" if frozen else ""
        lines = [
            f"{self.normalized} of {self.hidden_layers} hidden layers are normalized, by "
            f"{len(self.norms)} norms ({len(self.unused)} of them never used{fixed})",
            f"last layer {self.last!r}: norm before it {self.last_input_norm or 'none'}, norm on "
            f"the outputs {self.output_norm or 'none'}, mean square of its inputs "
            f"{self.last_input_power:.3g}",
        ]
        return "\n".join([*lines, self.coverage.summary()])

    def __repr__(self) -> str:
        return f"Layout({self.normalized} of {self.hidden_layers} hidden layers normalized)"
