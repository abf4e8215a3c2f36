"""Weights and signals of one pass: are they of a size from which a network can learn?"""

from __future__ import annotations

import re
from dataclasses import dataclass

from normscope.record import Record

NAN = float("nan")
_POSITIONS = re.compile(r"(^|[._])(pos|positions?|positional|wpe|pos_?emb\w*)([._#]|$)")


def is_position(name: str) -> bool:
    """Whether a layer or parameter is called a position embedding."""
    return _POSITIONS.search(name.lower()) is not None


@dataclass(frozen=True, eq=False)
class SignalScale(Record):
    """What goes through one layer or activation.

    Attributes:
        name: its name, ``#2`` for its second use.
        kind: ``"linear"``, ``"conv"``, ``"embedding"``, ``"norm"``, ``"activation"`` and so on.
        operation: such as ``"conv2d"`` or ``"tanh"``.
        number: how many layers with weights lie on the longest way to it.
        side: whether it only makes gates.
        variation: variance of its outputs over the samples, of their mean square: 0 if it gives
            the same for every sample.
        entering: the same of its inputs; NaN for indices.
        rms: root mean square of its outputs.
        rms_in: root mean square of its inputs.
        saturated: share of sigmoid or tanh units at their ends; NaN for others.
        gain: root mean square of its weights times sqrt(fan-in); NaN without a matrix of weights.
        same: whether all its units have the same weights.
    """

    name: str
    kind: str
    operation: str
    number: int
    side: bool
    variation: float
    entering: float
    rms: float
    rms_in: float
    saturated: float = NAN
    gain: float = NAN
    same: bool = False


@dataclass(frozen=True, eq=False)
class NormScale(Record):
    """What one norm divides by.

    Attributes:
        name: its name.
        kind: its class.
        values: how many numbers one statistic is made of.
        centred: whether it subtracts a mean.
        over_batch: whether it normalizes over the batch.
        eps: what is added to the variance; NaN if unknown.
        variance: median of the variances.
        gamma: largest abs(scale); 1 without one.
        axis: the axis that it normalizes over by mistake; empty if there is none.
    """

    name: str
    kind: str
    values: float
    centred: bool
    over_batch: bool
    eps: float
    variance: float
    gamma: float
    axis: str = ""


@dataclass(frozen=True, eq=False)
class Gates(Record):
    """A recurrent layer.

    Attributes:
        name: its name.
        saturated: share of gates with abs(pre-activation) above 4, from the inputs alone; for a
            plain recurrent layer of states at their ends.
        forget: mean forget gate; NaN without one.
        recurrent: root mean square of a plain recurrent layer's weights from state to state, times
            the root of their number; NaN for others.
    """

    name: str
    saturated: float
    forget: float = NAN
    recurrent: float = NAN


@dataclass(frozen=True, eq=False)
class Entropy(Record):
    """Attention in one place.

    Attributes:
        name: the module.
        entropy: mean entropy of its weights, of the largest that the mask allows.
    """

    name: str
    entropy: float


@dataclass(frozen=True, eq=False, repr=False)
class Start(Record):
    """Weights and signals on the first batch, in train mode.

    Attributes:
        signals: layers, norms and activations in forward order.
        norms: every use of a norm.
        recurrent: recurrent layers.
        attention: where attention is computed.
        positions: position embeddings that are parameters of their own -> root mean square.
        dropout: the largest rate of dropout.
        dropout_at: where.
        samples: samples in the batch.
    """

    signals: tuple[SignalScale, ...]
    norms: tuple[NormScale, ...] = ()
    recurrent: tuple[Gates, ...] = ()
    attention: tuple[Entropy, ...] = ()
    positions: dict[str, float] | None = None
    dropout: float = 0.0
    dropout_at: str = ""
    samples: int = 0

    @property
    def layers(self) -> tuple[SignalScale, ...]:
        """Those with weights."""
        return tuple(s for s in self.signals if s.kind not in ("norm", "activation"))

    def __repr__(self) -> str:
        return f"Start({len(self.signals)} signals, {self.samples} samples)"
