"""How model, loss and optimizer are joined: what a training step would use, and what it misses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from normscope.record import Record

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class LossCall(Record):
    """One call of a loss function, seen from inside; the numbers are of what it was given.

    Attributes:
        kind: ``"cross_entropy"``, ``"nll"``, ``"bernoulli"`` (of probabilities), ``"logits"``
            (binary cross-entropy of logits), ``"kl"``, ``"squared"``, ``"absolute"`` or
            ``"difference"`` (the targets subtracted in your own code).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        made_by: the operation that made the outputs, such as ``"Softmax"``; empty if unknown.
        shape: shape of the outputs.
        target_shape: shape of the targets.
        low: smallest output.
        high: largest output.
        rms: root mean square of the outputs.
        variation: variance of the outputs over the samples, of their mean square.
        zeros: share of the outputs that are exactly 0.
        simplex: whether they are probabilities: at least 0, with sum 1 over the classes.
        log_sum: largest abs(logsumexp) over the classes: 0 for log-probabilities.
        target_low: smallest target.
        target_high: largest target.
        target_rms: root mean square of the targets.
        target_sum: largest sum of the targets of a sample, where they are probabilities.
        ignored: share of the labels that the loss ignores.
        ignored_label: the label that it ignores.
        padding: whether ignored labels stand side by side, as padding does.
        uneven: how much more unequal its weights make the classes; 1 without weights.
        weights: weights of the classes, where it has some.
        smoothing: label smoothing.
        bound: largest size that logits made of unit vectors can have.
        value: the loss that it gave.
    """

    kind: str
    reduction: str
    made_by: str
    shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    low: float
    high: float
    rms: float
    variation: float
    zeros: float
    simplex: bool = False
    log_sum: float = NAN
    target_low: float = NAN
    target_high: float = NAN
    target_rms: float = NAN
    target_sum: float = NAN
    ignored: float = 0.0
    ignored_label: int = -100
    padding: bool = False
    uneven: float = 1.0
    weights: tuple[float, ...] = ()
    smoothing: float = 0.0
    bound: float = math.inf
    value: float = NAN

    @property
    def classes(self) -> int:
        """Number of classes; 0 if the outputs are no scores of classes."""
        labelled = self.kind in ("cross_entropy", "nll") and len(self.shape) > 1
        return self.shape[1] if labelled else 0

    @property
    def broadcast(self) -> bool:
        """Whether outputs and targets are stretched to a larger shape than either has."""
        if self.kind in ("cross_entropy", "nll") or self.shape == self.target_shape:
            return False
        if not self.target_shape or not self.shape:
            return False
        size = max(len(self.shape), len(self.target_shape))
        both = [(1,) * (size - len(s)) + s for s in (self.shape, self.target_shape)]
        together = tuple(max(pair) for pair in zip(*both, strict=True))
        return all(together != one for one in both)


@dataclass(frozen=True, eq=False)
class ParameterUse(Record):
    """One parameter of the model, and what a training step does with it.

    Attributes:
        name: its name.
        size: number of entries.
        trainable: whether it asks for a gradient.
        held: whether the optimizer holds it; None if no optimizer was given.
        weight: its norm.
        gradient: norm of its gradient; NaN if the loss does not reach it.
        decay: its weight decay.
        cut: whether its gradient is exactly 0, and would be without weights that are 0.
        used: whether the loss depends on its value, with a gradient or without.
        finite: whether all its entries are.
        initial: whether it is frozen and distributed as torch's initial weights are.
        table: whether it is a frozen embedding of normal numbers of deviation 1, as torch's are.
    """

    name: str
    size: int
    trainable: bool
    held: bool | None
    weight: float
    gradient: float
    decay: float = 0.0
    cut: bool = False
    used: bool = True
    finite: bool = True
    initial: bool = False
    table: bool = False

    @property
    def reached(self) -> bool:
        """Whether the loss depends on it, as far as gradients tell."""
        return self.gradient == self.gradient  # not NaN


@dataclass(frozen=True, eq=False)
class Held(Record):
    """What the user's optimizer holds and does.

    Attributes:
        kind: its class, or the name that was given.
        names: parameters of the model that it holds; None if it is made from all of them.
        foreign: how many parameters it holds that are not the model's.
        lr: learning rate of the first group.
        momentum: momentum of the first group, Adam's beta_1 not counted.
        decays: weight decay by parameter.
        coupled: whether the decay is added to the gradient (L2), not to the weights alone (AdamW).
        betas: those of Adam and its kin; empty for others.
        maximizes: whether it goes uphill.
        still: share of its entries that are in groups of rate 0, without a schedule.
        eps: what Adam and its kin add to the root of the squared gradients; 0 for others.
    """

    kind: str = "sgd"
    names: tuple[str, ...] | None = None
    foreign: int = 0
    lr: float | None = None
    momentum: float = 0.0
    decays: dict[str, float] = field(default_factory=dict)
    coupled: bool = True
    betas: tuple[float, ...] = ()
    maximizes: bool = False
    still: float = 0.0
    eps: float = 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Wiring(Record):
    """One training step taken apart, without the step.

    Attributes:
        loss: loss of the batch, in train mode.
        calls: calls of loss functions, in order.
        parameters: every parameter of the model.
        optimizer: what the user's optimizer holds.
        unregistered: entries of parameters that the loss depends on, and that neither the model nor
            the optimizer has.
        origin: the first layer with a non-finite output; empty if there is none.
        mixing: how much the output of a sample changes, in evaluation mode, when others of its
            batch are exchanged: largest change over largest output. NaN if it was not tested.
        mixing_by: a norm over the batch that has no stored statistics, and so mixes on purpose.
        across: the same along the second axis, where that may be the one of the samples.
        leak: how much the outputs at early tokens change with later tokens; NaN where the targets
            are not the inputs shifted by one token.
        shift: by how many tokens the targets are ahead of the inputs; None where they are others.
        linear: how far the outputs are from a linear function of the inputs, relative; NaN where
            the inputs are no numbers.
        ordered: how much the outputs change with the order of the tokens, relative.
        dropping: largest rate of dropout in evaluation mode.
        beside: share of the loss that does not come from the one torch loss in it, evaluation mode.
        doubling: loss of some samples over the mean loss of their two halves, in evaluation mode: 1
            for a mean, 2 for a sum.
        falling: largest ratio of losses at outputs 20 and 10 (200 and 100) times as large
            that are below zero, in evaluation mode; NaN where there are none.
        padded: share of the targets that stand at padding tokens and are a label all the same.
        samples: samples in the batch.
        skipped: what was not tested -> why.
    """

    loss: float
    calls: tuple[LossCall, ...]
    parameters: tuple[ParameterUse, ...]
    optimizer: Held
    unregistered: int = 0
    origin: str = ""
    mixing: float = NAN
    mixing_by: str = ""
    across: float = NAN
    leak: float = NAN
    shift: int | None = None
    linear: float = NAN
    ordered: float = NAN
    dropping: float = 0.0
    beside: float = NAN
    doubling: float = NAN
    falling: float = NAN
    padded: float = 0.0
    samples: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Entries of all parameters."""
        return sum(p.size for p in self.parameters)

    def share(self, chosen: tuple[ParameterUse, ...]) -> float:
        """Their share of all parameters."""
        return sum(p.size for p in chosen) / max(self.size, 1)

    @property
    def missing(self) -> tuple[ParameterUse, ...]:
        """Trainable, and not in the optimizer."""
        return tuple(p for p in self.parameters if p.trainable and p.held is False)

    @property
    def unreached(self) -> tuple[ParameterUse, ...]:
        """Trained and used, and without a gradient."""
        free = (p for p in self.parameters if p.trainable and p.held is not False)
        return tuple(p for p in free if p.used and not p.reached)

    @property
    def unused(self) -> tuple[ParameterUse, ...]:
        """Trained, and of no effect on the loss."""
        free = (p for p in self.parameters if p.trainable and p.held is not False)
        return tuple(p for p in free if not p.used and not p.reached)

    @property
    def cut(self) -> tuple[ParameterUse, ...]:
        """Trained, and with a gradient that is cut on its way."""
        free = (p for p in self.parameters if p.trainable and p.held is not False)
        return tuple(p for p in free if p.cut)

    @property
    def frozen(self) -> tuple[ParameterUse, ...]:
        """Those that ask for no gradient."""
        return tuple(p for p in self.parameters if not p.trainable)

    @property
    def call(self) -> LossCall | None:
        """The only call of a loss; None if there is none, or several."""
        return self.calls[0] if len(self.calls) == 1 else None

    def summary(self) -> str:
        """A few lines for a terminal."""
        kinds = ", ".join(call.kind for call in self.calls) or "not seen"
        lines = [f"loss {self.loss:.4g} ({kinds}), {len(self.parameters)} parameter tensors"]
        lines += [f"  not tested: {what}: {why}" for what, why in self.skipped.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Wiring(loss {self.loss:.4g}, {len(self.parameters)} parameters)"
