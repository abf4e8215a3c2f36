"""Rules about weights and signals at the start: sizes from which a network can learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from normscope.diagnose.rules.base import Case, ok, rule, warning
from normscope.messages import counted
from normscope.results import Evidence, Finding
from normscope.results.start import SignalScale, Start, is_position
from normscope.results.wiring import Wiring

DEFAULT = "Use the default (Kaiming or Xavier) initialization."
WEIGHTED = ("linear", "conv")


@dataclass(frozen=True)
class WeakLimits:
    """Thresholds of ``weak-norms``.

    Attributes:
        ratio: eps over the variance that the norm divides by.
        eps: from which on it is no default.
        share: share of the norms.
    """

    ratio: float = 0.5
    eps: float = 1e-3
    share: float = 0.3


@rule("weak-norms", "start", order=5, kind="guess", limits=WeakLimits(),
      suppressed_by=("norm-axis", "constant-inputs"))  # fmt: skip
def weak_norms(case: Case, limits: WeakLimits) -> Finding | None:
    """An epsilon that outweighs the variance."""
    norms = [n for n in case["start"].norms if not math.isnan(n.eps)]
    if not norms:
        return None
    weak = [n for n in norms if n.eps > limits.eps and n.eps > limits.ratio * n.variance]
    share = len(weak) / len(norms)
    worst = max(weak or norms, key=lambda n: n.eps / max(n.variance, 1e-300))
    shown = (
        Evidence("share of the norms with an eps above half of the variance", share, limits.share),
        Evidence("largest eps", max(n.eps for n in norms), limits.eps),
    )
    if share < limits.share:
        return ok(
            title="Norms divide by the variance, not by their epsilon",
            evidence=shown,
            meaning="They normalize.",
        )
    return warning(
        title=f"The epsilon of {len(weak)} of {len(norms)} norms ({worst.eps:g}) is larger than "
        "the variance that they divide by",
        evidence=shown,
        meaning="These norms do not normalize: they make small signals smaller.",
        advice="Use eps=1e-5.",
        layer=worst.name,
    )


@dataclass(frozen=True)
class GammaLimits:
    """Thresholds of ``zero-gamma``: largest abs(gamma)."""

    gamma: float = 1e-6


@rule("zero-gamma", "start", "wiring", order=5.05, kind="guess", limits=GammaLimits())
def zero_gamma(case: Case, limits: GammaLimits) -> Finding | None:
    """A norm that gives a constant, and nothing leads past it."""
    found: Start = case["start"]
    zero = [n for n in found.norms if n.gamma < limits.gamma]
    if not zero or not _lost(case, found):
        return None
    return warning(
        title=f"The scale (gamma) of {counted(len(zero), 'norm')} is zero, and no way leads past "
        f"(first {zero[0].name!r})",
        evidence=(Evidence("largest abs(gamma) of the norm", zero[0].gamma, limits.gamma),),
        meaning="No signal passes the norm, and no gradient.",
        advice="Initialize gamma at 1. Zero is meant for the last norm of a residual branch only.",
        layer=zero[0].name,
    )


@dataclass(frozen=True)
class LostLimits:
    """Thresholds of ``signal-lost``: variance over the samples, of the mean square.

    Attributes:
        inside: what a layer gives.
        failing: the same where the trial fails.
        near: factor on ``inside`` for all layers behind it.
        outputs: what the network gives.
    """

    inside: float = 1e-4
    failing: float = 2e-3
    near: float = 10.0
    outputs: float = 1e-6


LOST = LostLimits()


def _lost(case: Case, found: Start, limits: LostLimits = LOST) -> SignalScale | None:
    """The first layer behind which all samples look alike; None if there is none."""
    if case.fails:
        limits = replace(limits, inside=max(limits.inside, limits.failing))
    signals = [s for s in found.signals if not s.side and not math.isnan(s.variation)]
    if case["wiring"].samples < 2 or not signals:
        return None
    for place, signal in enumerate(signals[:-1]):
        known = math.isnan(signal.entering) or signal.entering >= limits.inside or place == 0
        if signal.variation < limits.inside and known:
            rest = [s for s in signals[place:-1] if s.kind != "norm"]
            alike = all(s.variation < limits.near * limits.inside for s in rest)
            if alike and not _reaches(case, limits):
                return signal
    calls = case["wiring"].calls
    end = calls[0].variation if len(calls) == 1 else math.nan
    head = next((s for s in reversed(signals) if not math.isnan(s.gain)), None)
    if len(calls) == 1 and calls[0].rms < limits.outputs and head is not None and head.gain > 0:
        return next((s for s in signals if s.rms < limits.outputs), signals[-1])
    if end < limits.outputs and head is not None and head.gain > 0 and not _simplex(case):
        return next((s for s in signals if s.variation < limits.inside), signals[-1])
    return None


def _reaches(case: Case, limits: LostLimits) -> bool:
    """Whether the outputs depend on the sample all the same, by another way."""
    calls = case["wiring"].calls
    return len(calls) == 1 and calls[0].variation > limits.near * limits.inside


def _simplex(case: Case) -> bool:
    calls = case["wiring"].calls
    return any(c.simplex or c.kind in ("nll", "bernoulli") or c.made_by == "Softmax" for c in calls)


CAUSES = (
    "constant-inputs", "input-scale", "zero-weights", "constant-weights", "zero-gamma",
    "dead-units", "norm-axis", "weak-norms", "small-weights", "positions", "output-range",
    "forget-gates", "saturated-units", "not-finite", "samples-mix",
)  # fmt: skip


@rule("signal-lost", "start", "wiring", order=5.4, kind="symptom", limits=LOST,
      suppressed_by=CAUSES)  # fmt: skip
def signal_lost(case: Case, limits: LostLimits) -> Finding | None:
    """All samples look alike from some layer on."""
    found: Start = case["start"]
    if case["wiring"].samples < 2:
        return None
    lost = _lost(case, found, limits)
    if lost is None:
        values = [s.variation for s in found.signals if s.kind in WEIGHTED]
        least = min((v for v in values if not math.isnan(v)), default=math.nan)
        return ok(
            title="Samples can be told apart in all layers",
            evidence=(Evidence("variance over the samples, of the mean square, at least", least,
                               limits.inside),),
            meaning="The signal reaches the outputs.",
        )  # fmt: skip
    if case.learns:
        return None
    norms = "no norm stands between the layers" if not found.norms else "the norms do not help"
    return warning(
        title=f"The signal vanishes with depth: at {lost.name!r} all samples look alike",
        evidence=(
            Evidence("variance over the samples, of the mean square", lost.variation,
                     limits.inside),
        ),
        meaning=f"The layers behind it see the same for every sample; {norms}. Training starts on "
        "a plateau.",
        advice="Add norms or skip connections, or use an initialization that keeps the signal: "
        "Kaiming for ReLU, Xavier for tanh."
        + (" Check batch_first: attention over the samples makes them alike too."
           if found.attention else ""),
        layer=lost.name,
    )  # fmt: skip


@rule("zero-weights", "start", "wiring", order=5.1, kind="guess")
def zero_weights(case: Case) -> Finding | None:
    """A layer of zeros through which no signal passes."""
    found: Start = case["start"]
    layers = [s for s in case.hidden(found.signals) if s.kind in (*WEIGHTED, "recurrent")]
    zero = [s for s in layers if s.gain == 0]
    if not zero or case.learns or _lost(case, found) is None:
        return None
    return warning(
        title=f"The weights of {counted(len(zero), 'layer')} are zero (first {zero[0].name!r})",
        evidence=(Evidence("layers whose weights are all zero", len(zero), 0.0),),
        meaning="All units are the same, no signal passes and no gradient comes back.",
        advice=DEFAULT,
        layer=zero[0].name,
    )


@dataclass(frozen=True)
class SameLimits:
    """Thresholds of ``constant-weights``: share of the hidden layers."""

    share: float = 0.5


@rule("constant-weights", "start", order=5.1, kind="fact", limits=SameLimits())
def constant_weights(case: Case, limits: SameLimits) -> Finding | None:
    """Units that are copies of one another."""
    found: Start = case["start"]
    kinds = (*WEIGHTED, "recurrent")
    layers = [s for s in found.signals if s.kind in kinds and not math.isnan(s.gain)]
    hidden = [s for s in case.hidden(layers) if s.gain > 0]
    same = [s for s in hidden if s.same]
    if not hidden or len(same) < limits.share * len(hidden):
        return None
    return warning(
        title=f"All units of {same[0].name!r} have the same weights (constant initialization)",
        evidence=(Evidence("share of hidden layers whose units are all the same",
                           len(same) / len(hidden), limits.share),),
        meaning="They get the same gradients, and stay copies of one another for ever.",
        advice=DEFAULT,
        layer=same[0].name,
    )  # fmt: skip


@dataclass(frozen=True)
class GainLimits:
    """Thresholds of ``large-weights`` and ``small-weights``.

    Attributes:
        high: root mean square of the weights times sqrt(fan-in).
        low: the same.
        share: share of the hidden layers that are small.
        embedding: root mean square of an embedding that no norm follows.
    """

    high: float = 4.0
    low: float = 0.1
    share: float = 0.5
    embedding: float = 10.0


def _gains(case: Case) -> list[SignalScale]:
    """Hidden layers with a matrix of weights that are not zero."""
    found = [s for s in case["start"].signals if s.gain > 0]
    return [s for s in case.hidden(found) if not s.side] or found[:1]


@rule("large-weights", "start", order=5.28, kind="guess", limits=GainLimits(),
      suppressed_by=("input-scale", "feature-scale"))  # fmt: skip
def large_weights(case: Case, limits: GainLimits) -> Finding | None:
    """Weights far above 1 / sqrt(fan-in)."""
    layers = _gains(case)
    if not layers or not case.untrained:
        return None
    worst = max(layers, key=lambda s: s.gain)
    shown: tuple[Evidence, ...] = (
        Evidence("root mean square of the weights x sqrt(fan-in), largest", worst.gain,
                 limits.high),
    )  # fmt: skip
    tables = [s for s in case["start"].signals if s.kind == "embedding"]
    table = max(tables, key=lambda s: s.rms, default=None)
    if worst.gain > limits.high:
        return warning(
            title=f"Weights are initialized too large: those of {worst.name!r} are "
            f"{worst.gain:.1f} times 1 / sqrt(inputs)",
            evidence=(*shown, *_start(case)),
            meaning="Signals grow from layer to layer, or a norm divides every update by the size "
            "of its weights.",
            advice=DEFAULT,
            layer=worst.name,
        )
    followed = any(s.kind == "norm" for s in case["start"].signals[:3])
    if table is not None and table.rms > limits.embedding and not followed:
        return warning(
            title=f"The embedding {table.name!r} is initialized too large (root mean square "
            f"{table.rms:.0f})",
            evidence=(Evidence("root mean square of the embedding", table.rms, limits.embedding),
                      *_start(case)),
            meaning="The layers behind it get inputs of this size.",
            advice="Initialize embeddings with a deviation of 0.02 to 1.",
            layer=table.name,
        )  # fmt: skip
    return ok(
        title="No weights are initialized too large",
        evidence=shown,
        meaning="Layers keep the size of their inputs, within a small factor.",
    )


@rule("small-weights", "start", order=5.27, kind="guess", limits=GainLimits(),
      suppressed_by=("zero-weights",))  # fmt: skip
def small_weights(case: Case, limits: GainLimits) -> Finding | None:
    """Weights far below 1 / sqrt(fan-in) in most layers."""
    layers = _gains(case)
    if not layers or not case.untrained or case.learns:
        return None
    if case["start"].norms and not _lost(case, case["start"]):
        return None  # norms make up for it, as in transformers
    small = [s for s in layers if s.gain < limits.low]
    if len(small) < limits.share * len(layers):
        return None
    least = min(small, key=lambda s: s.gain)
    return warning(
        title=f"Weights are initialized too small: those of {least.name!r} are {least.gain:.2g} "
        "times 1 / sqrt(inputs)",
        evidence=(
            Evidence("root mean square of the weights x sqrt(fan-in), smallest", least.gain,
                     limits.low),
            Evidence("share of the layers", len(small) / len(layers), limits.share),
        ),
        meaning="The signal shrinks from layer to layer, and the gradients with it.",
        advice=DEFAULT,
        layer=least.name,
    )  # fmt: skip


def _start(case: Case) -> tuple[Evidence, ...]:
    """Loss at the start, beside that of a constant."""
    trial = case.trial
    if trial is None or not trial.constant > 0:
        return ()
    return (Evidence("loss at the start, over that of a constant prediction",
                     trial.before / trial.constant),)  # fmt: skip


@dataclass(frozen=True)
class StartLimits:
    """Thresholds of ``start-loss``: loss over that of a constant, or of equal probabilities."""

    ratio: float = 3.0


@rule("start-loss", "start", order=5.5, kind="symptom", limits=StartLimits(),
      suppressed_by=("feature-scale", "input-scale", "target-scale", "summed-loss",
                     "large-weights", "positions", "log-softmax-missing", "broadcast-loss",
                     "attention-saturated", "running-statistics"))  # fmt: skip
def start_loss(case: Case, limits: StartLimits) -> Finding | None:
    """A loss far above that of a constant prediction."""
    trial = case.trial
    if trial is None or not trial.constant > 0 or trial.trained or not math.isfinite(trial.before):
        return None
    reference = max(trial.constant, trial.uniform if trial.uniform > 0 else 0.0)
    ratio = trial.before / reference
    shown = (Evidence("loss at the start, over that of a constant prediction", ratio,
                      limits.ratio),)  # fmt: skip
    if ratio <= limits.ratio:
        return ok(
            title="The loss starts near that of a constant prediction",
            evidence=shown,
            meaning="The network begins without strong opinions.",
        )
    if case.learns:
        return None
    sizes = [s.rms for s in case["start"].signals if s.rms > 0]
    growth = max(sizes) / sizes[0] if sizes else math.nan
    return warning(
        title=f"The loss starts at {trial.before:.3g}, far above the {reference:.3g} of a constant "
        "prediction: the signal grows with depth, or the last layer is initialized too large",
        evidence=(*shown, Evidence("largest signal over the first one", growth)),
        meaning="The first updates only undo the initial outputs.",
        advice="Add norms, scale the residual branches down, or use a smaller initialization.",
    )


@dataclass(frozen=True)
class AttentionLimits:
    """Thresholds of ``attention-saturated``: mean entropy of attention, of the largest possible."""

    entropy: float = 0.25


@rule("attention-saturated", "start", order=5.2, kind="guess", limits=AttentionLimits(),
      suppressed_by=("input-scale", "feature-scale"))  # fmt: skip
def attention(case: Case, limits: AttentionLimits) -> Finding | None:
    """Attention that looks at one token from the start."""
    found = case["start"].attention
    if not found or not case.untrained:
        return None
    mean = sum(a.entropy for a in found) / len(found)
    shown = (Evidence("entropy of attention, of the largest possible", mean, limits.entropy),)
    if mean >= limits.entropy:
        return ok(
            title="Attention is spread over the tokens",
            evidence=shown,
            meaning="Gradients reach all of them.",
        )
    worst = min(found, key=lambda a: a.entropy)
    return warning(
        title=f"Attention is saturated (one-hot): its entropy is {100 * mean:.0f} % of the largest "
        "possible at the start",
        evidence=shown,
        meaning="The scores are too large, or the scale 1/sqrt(d) is missing: hardly any gradient "
        "passes the softmax.",
        advice="Scale the scores by 1/sqrt(d), and use smaller weights for queries and keys.",
        layer=worst.name,
    )


@dataclass(frozen=True)
class PositionLimits:
    """Thresholds of ``positions``: size of position embeddings over that of the tokens."""

    ratio: float = 20.0


@rule("positions", "start", order=5.2, kind="guess", limits=PositionLimits())
def positions(case: Case, limits: PositionLimits) -> Finding | None:
    """Position embeddings that drown the tokens."""
    found: Start = case["start"]
    if not case.untrained:
        return None
    tables = {s.name: s.rms for s in found.signals if s.kind == "embedding"}
    tables |= found.positions or {}
    named = [n for n in tables if is_position(n)]
    tokens = [s.rms for s in found.layers if s.name not in named and s.rms > 0][:1]
    if not named or not tokens:
        return None
    name = max(named, key=tables.__getitem__)
    ratio = tables[name] / tokens[0]
    shown = (Evidence("size of position embeddings over that of what they are added to", ratio,
                      limits.ratio),)  # fmt: skip
    if ratio <= limits.ratio:
        return ok(
            title="Position embeddings have the size of the tokens",
            evidence=shown,
            meaning="Neither drowns the other.",
        )
    return warning(
        title=f"The position embeddings {name!r} are {ratio:.0f} times larger than what they are "
        "added to: positions drown the tokens",
        evidence=shown,
        meaning="All samples look alike to the layers behind them.",
        advice="Initialize them at the scale of the tokens (0.02).",
        layer=name,
    )


@dataclass(frozen=True)
class GateLimits:
    """Thresholds of ``forget-gates`` and ``saturated-gates``.

    Attributes:
        forget: mean forget gate.
        recurrent: size of a plain recurrent layer's weights from state to state.
        saturated: share of the gates at their ends.
    """

    forget: float = 0.15
    recurrent: float = 0.2
    saturated: float = 0.5


@rule("forget-gates", "start", order=5.2, kind="guess", limits=GateLimits())
def forget_gates(case: Case, limits: GateLimits) -> Finding | None:
    """A memory that lasts one step."""
    gates = [g for g in case["start"].recurrent if not math.isnan(g.forget)]
    if not gates or not case.untrained:
        return None
    worst = min(gates, key=lambda g: g.forget)
    shown = (Evidence("mean forget gate", worst.forget, limits.forget),)
    if worst.forget >= limits.forget:
        return ok(title="Forget gates are open", evidence=shown, meaning="Memory lasts.")
    return warning(
        title=f"The forget gates of {worst.name!r} are closed (mean {worst.forget:.2g}): its "
        "memory lasts about one step",
        evidence=shown,
        meaning="What was seen earlier is lost, and no gradient reaches it.",
        advice="Initialize the forget bias at +1.",
        layer=worst.name,
    )


@rule("recurrent-weights", "start", order=5.2, kind="fact", limits=GateLimits())
def recurrent_weights(case: Case, limits: GateLimits) -> Finding | None:
    """A state that is forgotten at once."""
    gates = [g for g in case["start"].recurrent if 0 < g.recurrent < limits.recurrent]
    if not gates or not case.untrained:
        return None
    least = min(gates, key=lambda g: g.recurrent)
    return warning(
        title=f"The recurrent weights of {least.name!r} are initialized too small "
        f"({least.recurrent:.2g} times 1 / sqrt(units)): its state is forgotten at the next step",
        evidence=(Evidence("root mean square of the recurrent weights x sqrt(units)",
                           least.recurrent, limits.recurrent),),
        meaning="The signal of earlier steps vanishes, and the gradient towards them.",
        advice="Initialize them orthogonally (nn.init.orthogonal_).",
        layer=least.name,
    )  # fmt: skip


@rule("saturated-gates", "start", order=5.2, kind="guess", limits=GateLimits(),
      suppressed_by=("forget-gates", "input-scale", "feature-scale"))  # fmt: skip
def saturated_gates(case: Case, limits: GateLimits) -> Finding | None:
    """Recurrent gates, or states, at their ends."""
    gates = case["start"].recurrent
    if not gates or not case.untrained:
        return None
    worst = max(gates, key=lambda g: g.saturated)
    shown = (Evidence("share of saturated gates", worst.saturated, limits.saturated),)
    if worst.saturated <= limits.saturated:
        title = "Recurrent gates are not saturated"
        return ok(title=title, evidence=shown, meaning="Gradients pass them.")
    return warning(
        title=f"{100 * worst.saturated:.0f} % of the gates of {worst.name!r} are saturated",
        evidence=shown,
        meaning="Hardly any gradient passes them: the weights are initialized too large.",
        advice="Use the default initialization (orthogonal, or 1/sqrt(units)).",
        layer=worst.name,
    )


@dataclass(frozen=True)
class SaturationLimits:
    """Thresholds of ``saturated-units``: share of the units of a layer."""

    share: float = 0.5


@rule("saturated-units", "start", "wiring", order=5.25, kind="guess", limits=SaturationLimits(),
      suppressed_by=("input-scale", "feature-scale"))  # fmt: skip
def saturated_units(case: Case, limits: SaturationLimits) -> Finding | None:
    """Sigmoid or tanh units at their ends."""
    found: Start = case["start"]
    units = [s for s in found.signals if not math.isnan(s.saturated) and not s.side]
    if case["wiring"].calls and case["wiring"].calls[0].made_by in ("Sigmoid", "Tanh"):
        units = units[:-1]  # the outputs
    if not units or not case.untrained or found.recurrent:
        return None
    worst = max(units, key=lambda s: s.saturated)
    shown = (Evidence("share of saturated units in a layer", worst.saturated, limits.share),)
    if worst.saturated <= limits.share:
        title = "Sigmoid and tanh units are not saturated"
        return ok(title=title, evidence=shown, meaning="Gradients pass them.")
    return warning(
        title=f"{100 * worst.saturated:.0f} % of the {worst.operation} units of {worst.name!r} are "
        "saturated",
        evidence=shown,
        meaning="Hardly any gradient passes them.",
        advice="Use smaller initial weights (Xavier), or normalized inputs.",
        layer=worst.name,
    )


@dataclass(frozen=True)
class OutputLimits:
    """Thresholds of ``tiny-outputs``.

    Attributes:
        rms: root mean square of the logits.
        gain: size of the last layer's weights, below which its weights are the reason.
    """

    rms: float = 0.01
    gain: float = 0.1


@rule("tiny-outputs", "wiring", "start", order=5.46, kind="symptom", limits=OutputLimits(),
      suppressed_by=("signal-lost", "small-weights", "zero-weights", "zero-gamma", "weak-norms",
                     "dead-units", "input-scale"))  # fmt: skip
def tiny_outputs(case: Case, limits: OutputLimits) -> Finding | None:
    """Logits that are scaled down before the loss."""
    found: Wiring = case["wiring"]
    call = found.call
    gains = [s.gain for s in case["start"].signals if not math.isnan(s.gain)]
    if call is None or call.kind != "cross_entropy" or not gains:
        return None
    small = 0 < call.rms < limits.rms and gains[-1] > limits.gain
    if not small or case.learns or not case.untrained:
        return None
    return warning(
        title=f"The outputs are tiny (root mean square {call.rms:.1g}): they are scaled down "
        "before the loss",
        evidence=(Evidence("root mean square of the logits", call.rms, limits.rms),),
        meaning="A temperature is too high: hardly any gradient comes back.",
        advice="Remove the scaling of the outputs.",
    )
