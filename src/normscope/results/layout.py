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
class LayerUse(Record):
    """One layer with weights.

    Attributes:
        name: name of the layer.
        kind: ``"linear"``, ``"conv"``, ``"embedding"``, ``"experts"`` or ``"recurrent"``.
        depth: layers on the longest path from the inputs of the network to its output.
        state: what its input is: ``"norm"`` (output of a norm), ``"act"`` (an activation, a pooling
            or a gate between), ``"sum"`` (a sum of such), ``"raw"`` or, for indices, ``"none"``.
        norm: the norm behind that.
        head: whether no other layer stands behind it.
        power: mean square of its inputs; NaN if that was not measured.
    """

    name: str
    kind: str
    depth: int
    state: str
    norm: str | None = None
    head: bool = False
    power: float = float("nan")

    @property
    def normalized(self) -> bool:
        """Whether its input is."""
        return self.state in ("norm", "act", "sum")


@dataclass(frozen=True, eq=False)
class NormUse(Record):
    """One normalization layer.

    Attributes:
        name: name of the layer; ``#2`` for its second use.
        kind: its class; ``"layer"``, ``"rms"`` and so on if it is written as a function.
        number: depth of the layers before it, 0 if there is none.
        used: whether a forward pass reaches it, in training or in evaluation mode.
        gamma: root mean square of its scale; 1 without one.
        frozen: whether it is a batch norm in evaluation mode in a network in train mode, which
            normalizes by its stored statistics in training too.
        over_batch: whether it normalizes over the batch in training, and is used.
    """

    name: str
    kind: str
    number: int
    used: bool
    gamma: float
    frozen: bool = False
    over_batch: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Drawable):
    """The norms of a network in forward order, and what they leave out.

    The chart: layers and norms in forward order.

    Attributes:
        norms: every normalization layer, used or not; also those written as functions.
        hidden_layers: layers whose input comes from other layers, on the way to the outputs.
        normalized: how many of them have a normalized input.
        last: name of the last layer, of several heads that of the deepest.
        last_input_norm: the norm that its input comes from; None if there is none.
        output_norm: the norm behind it; None if there is none.
        last_input_power: mean square of what goes into it, per feature.
        coverage: the layers seen.
        convention: what was measured and how.
        layers: every layer with weights.
        side: names of the uses of layers and activations that make only gates or indices: they are
            no part of the depth.
        attention: places where attention is computed.
        residuals: sums of a signal with what was made from it.
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
    layers: tuple[LayerUse, ...] = ()
    side: tuple[str, ...] = ()
    attention: int = 0
    residuals: int = 0

    @property
    def within_reach(self) -> frozenset[str]:
        """Hidden layers one layer behind those with a normalized input, as in transformers."""
        path = [x for x in self.layers if x.name not in self.side]
        behind = {x.depth + 1 for x in path if x.normalized}
        return frozenset(x.name for x in path if x.depth in behind and not x.normalized)

    @property
    def everywhere(self) -> bool:
        """Whether no hidden layer is further from a norm than that."""
        near = self.normalized + len(self.within_reach)
        return 0 < self.hidden_layers <= near

    @property
    def before_last(self) -> tuple[str, ...]:
        """The transform that puts a norm before the last layer, of the kind that the network has.

        Empty where the last layer stands behind a norm already.
        """
        if any(x.name == self.last and x.state == "norm" for x in self.layers):
            return ()
        used = [norm for norm in self.norms if norm.used]
        if not used or any(norm.over_batch or norm.frozen for norm in used):
            return ("norm-before-last",)
        rms = all("rms" in norm.kind.lower() for norm in used)
        return ("norm-before-last=rms" if rms else "norm-before-last=layer",)

    @property
    def unused(self) -> tuple[NormUse, ...]:
        """Norms that no forward pass reaches."""
        return tuple(norm for norm in self.norms if not norm.used)

    def to_frame(self) -> pd.DataFrame:
        """One row per normalization layer."""
        return listed(self.norms, "name", "kind", "number", "used", "gamma", "frozen", "over_batch")

    def summary(self) -> str:
        """A few lines for a terminal."""
        norms = len({norm.name.partition("#")[0] for norm in self.norms})
        frozen = sum(norm.frozen for norm in self.norms)
        fixed = f", {frozen} of them in evaluation mode" if frozen else ""
        lines = [
            f"{self.normalized} of {self.hidden_layers} hidden layers are normalized, by "
            f"{norms} norms ({len(self.unused)} of them never used{fixed})",
            f"last layer {self.last!r}: norm before it {self.last_input_norm or 'none'}, norm on "
            f"the outputs {self.output_norm or 'none'}, mean square of its inputs "
            f"{self.last_input_power:.3g}",
        ]
        return "\n".join([*lines, self.coverage.summary()])

    def __repr__(self) -> str:
        return f"Layout({self.normalized} of {self.hidden_layers} hidden layers normalized)"
