"""Rules about the loss: what it is given, and what it makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose.rules.base import Case, note, ok, problem, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.wiring import LossCall, Wiring

# operations -> the values that they can give
RANGES = {
    "Relu": (0.0, math.inf), "Softplus": (0.0, math.inf), "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0),
}  # fmt: skip
ENDS = {"Relu": "ReLU", "Clamp": "clamp", "ClampMin": "clamp", "Hardtanh": "clamp (hardtanh)"}
NAMES = {"Relu": "ReLU", "Sigmoid": "sigmoid", "Tanh": "tanh"}


@rule("not-finite", "wiring", order=0, kind="fact")
def not_finite(case: Case) -> Finding | None:
    """A loss, a signal or a weight that is no number."""
    found: Wiring = case["wiring"]
    shown = (Evidence("loss of the first batch", found.loss),)
    bad = next((p.name for p in found.parameters if not p.finite), None)
    if bad is not None:
        return problem(
            title=f"The parameter {bad!r} holds NaN or infinite values",
            evidence=shown,
            meaning="Every output that depends on it is NaN.",
            advice="Start again from weights that are finite.",
            layer=bad.rpartition(".")[0] or bad,
        )
    if math.isfinite(found.loss) and not found.origin:
        return ok(title="The loss is finite", evidence=shown, meaning="So are the signals.")
    if any(call.ignored == 1 for call in found.calls):
        return problem(
            title="All targets are the label that the loss ignores: there is nothing to learn from",
            evidence=(*shown, Evidence("share of the labels that is ignored", 1.0)),
            meaning="The loss is the mean over no labels, which is NaN.",
            advice="Check the labels, the padding and ignore_index.",
        )
    if found.origin:
        return problem(
            title="The forward pass gives NaN or infinite values, first at "
            f"{found.origin!r}, though inputs and weights are finite",
            evidence=shown,
            meaning="No gradient is finite, and the first update makes all weights NaN.",
            advice="Look for a division by zero, a mask that hides every key, or values that "
            "overflow there.",
            layer=found.origin,
        )
    return problem(
        title="The loss is NaN or infinite, though the outputs of all layers are finite",
        evidence=shown,
        meaning="No gradient is finite, and the first update makes all weights NaN.",
        advice="Check the targets, logarithms of zero, and the label that the loss ignores.",
    )


@rule("broadcast-loss", "wiring", order=1, kind="fact")
def broadcast(case: Case) -> Finding | None:
    """Outputs (n, 1) against targets (n,)."""
    calls = case["wiring"].calls
    if not calls:
        return None
    bad = next((call for call in calls if call.broadcast), None)
    if bad is None:
        shown = (Evidence("losses whose outputs and targets differ in shape", 0.0, 0.0),)
        return ok(
            title="Outputs and targets have the same shape",
            evidence=shown,
            meaning="Each output is compared with its own target.",
        )
    return warning(
        title=f"The outputs have shape {bad.shape} and the targets {bad.target_shape}: the loss "
        "broadcasts them and compares every sample with every other",
        evidence=(Evidence("axes of the outputs", len(bad.shape), len(bad.target_shape)),),
        meaning="The network can only learn the mean of the targets.",
        advice="Give both the same shape, for example with squeeze(-1) or unsqueeze(-1).",
    )


@dataclass(frozen=True)
class LogLimits:
    """Thresholds of ``log-softmax-missing``: largest abs(logsumexp) of log-probabilities."""

    log_sum: float = 0.01


@rule("softmax-twice", "wiring", order=1, kind="fact")
def probabilities(case: Case) -> Finding | None:
    """A loss of logits that is given probabilities."""
    calls: tuple[LossCall, ...] = case["wiring"].calls
    given = [call for call in calls if call.kind in ("cross_entropy", "logits")]
    if not given:
        return None
    for call in given:
        softmax = call.made_by == "Softmax" or (call.kind == "cross_entropy" and call.simplex)
        if not softmax and call.made_by != "Sigmoid":
            continue
        first = "softmax" if softmax else "sigmoid"
        second = "softmax" if call.kind == "cross_entropy" else "sigmoid"
        twice = "once more" if first == second else "to them"
        return warning(
            title=f"The outputs are already probabilities ({first}) but the loss applies {second} "
            f"{twice}: it expects logits",
            evidence=(
                Evidence("smallest output", call.low),
                Evidence("largest output", call.high),
            ),
            meaning="Logits between 0 and 1 cannot give probabilities near 0 or 1, and gradients "
            "are small.",
            advice=f"Give the loss the logits: remove the {first} at the end of the model.",
        )
    return ok(
        title="The loss is given logits, as it expects",
        evidence=(Evidence("losses that are given probabilities", 0.0, 0.0),),
        meaning="Softmax or sigmoid is applied once.",
    )


@rule("log-softmax-missing", "wiring", order=1, kind="fact", limits=LogLimits())
def log_softmax(case: Case, limits: LogLimits) -> Finding | None:
    """NLLLoss or kl_div on what are no log-probabilities."""
    given = [call for call in case["wiring"].calls if call.kind in ("nll", "kl")]
    given = [call for call in given if not math.isnan(call.log_sum)]
    if not given:
        return None
    worst = max(call.log_sum for call in given)
    shown = (Evidence("largest abs(logsumexp) of the outputs of a sample", worst, limits.log_sum),)
    if worst <= limits.log_sum:
        meaning = "They are log-probabilities."
        return ok(title="The loss is given log-probabilities", evidence=shown, meaning=meaning)
    name = "NLLLoss" if given[0].kind == "nll" else "kl_div"
    return warning(
        title=f"{name} is given outputs that are not log-probabilities: log_softmax is missing",
        evidence=shown,
        meaning="The loss has no lower bound: it falls as long as the outputs grow.",
        advice="Add log_softmax at the end of the model, or use cross_entropy on the logits.",
    )


@rule("output-operation", "wiring", order=1, kind="fact")
def output_operation(case: Case) -> Finding | None:
    """Dropout on the prediction, and rates in a loss of log rates."""
    for call in case["wiring"].calls:
        if call.made_by == "Dropout":
            return warning(
                title="Dropout is applied to the prediction itself",
                evidence=(Evidence("share of the outputs that are exactly 0", call.zeros),),
                meaning="In training outputs are set to zero at random, and the others are larger "
                "than meant.",
                advice="Remove the dropout behind the last layer.",
            )
        if call.kind == "poisson" and call.made_by in ("Exp", "Softplus"):
            return warning(
                title="The Poisson loss takes the outputs for log rates, and they are rates "
                "already (exp or softplus): exp is applied twice",
                evidence=(Evidence("smallest output", call.low),),
                meaning="Rates below 1 cannot be predicted, and gradients explode.",
                advice="Remove the exp at the end of the model, or pass log_input=False.",
            )
    return None


@dataclass(frozen=True)
class UnboundedLimits:
    """Thresholds of ``unbounded-loss``.

    Attributes:
        below: times its value, below zero, at outputs twice as large.
    """

    below: float = 2.5


@rule("unbounded-loss", "wiring", order=1.6, kind="fact", limits=UnboundedLimits(),
      suppressed_by=("loss-sign", "target-probabilities", "log-softmax-missing"))  # fmt: skip
def unbounded(case: Case, limits: UnboundedLimits) -> Finding | None:
    """A loss that falls faster and faster as outputs grow."""
    found: Wiring = case["wiring"]
    if not found.falling > limits.below:
        return None
    return warning(
        title="The loss has no lower bound: it falls below zero faster and faster as the outputs "
        "grow, as if a term had the wrong sign",
        evidence=(Evidence("loss at large outputs of twice the size / at once, both negative",
                           found.falling, limits.below),),
        meaning="Training makes the outputs as large as it can, and not right.",
        advice="Check the sign of every term: a log-likelihood needs a minus, a penalty or KL "
        "term a plus.",
    )  # fmt: skip


@dataclass(frozen=True)
class RangeLimits:
    """Thresholds of ``output-range``.

    Attributes:
        beyond: share of their span by which targets may lie outside.
    """

    beyond: float = 0.05


@rule("output-range", "wiring", order=1, kind="fact", limits=RangeLimits())
def output_range(case: Case, limits: RangeLimits) -> Finding | None:
    """A last activation that cannot reach the targets, or stands on logits."""
    for call in case["wiring"].calls:
        name = NAMES.get(call.made_by, call.made_by.lower())
        if call.kind in ("cross_entropy", "logits") and call.made_by == "Relu":
            return warning(
                title="A ReLU stands between the last layer and the loss: logits cannot be "
                "negative",
                evidence=(Evidence("share of the logits that are exactly 0", call.zeros),),
                meaning="Logits at zero get no gradient, and unlikely classes cannot be ruled out.",
                advice="Remove the activation at the end of the model.",
            )
        if call.made_by in ENDS and call.zeros == 1:
            name = ENDS[call.made_by]
            return warning(
                title=f"The {name} at the end of the model makes every output zero: it is "
                "saturated, and no gradient passes it",
                evidence=(Evidence("share of the outputs that are exactly 0", 1.0),),
                meaning="All outputs lie beyond its range at the start.",
                advice=f"Remove the {name} in training, or start the last bias within its range.",
            )
        regresses = call.kind in ("squared", "absolute", "difference")
        if not regresses or call.made_by not in RANGES or math.isnan(call.target_low):
            continue
        low, high = RANGES[call.made_by]
        outside = max(low - call.target_low, call.target_high - high)
        span = max(call.target_high - call.target_low, 1e-300)
        if outside > limits.beyond * span:
            return warning(
                title=f"The last activation ({name}) limits the outputs to {low:g}..{high:g} but "
                f"the targets lie in {call.target_low:.3g}..{call.target_high:.3g}",
                evidence=(
                    Evidence("how far targets lie outside, of their span", outside / span,
                             limits.beyond),
                ),
                meaning="The targets cannot be reached.",
                advice="Remove the last activation, or scale the targets into its range.",
            )  # fmt: skip
    return None


@dataclass(frozen=True)
class SumLimits:
    """Thresholds of ``summed-loss``: loss of a batch over the mean loss of its two halves."""

    low: float = 1.9
    high: float = 2.1


@rule(
    "summed-loss",
    "wiring",
    order=4.2,
    kind="fact",
    limits=SumLimits(),
    promoted_by=("learning-rate",),
)
def summed(case: Case, limits: SumLimits) -> Finding | None:
    """A loss that grows with the batch."""
    found: Wiring = case["wiring"]
    ratio = found.doubling
    if math.isnan(ratio) or any(call.kind == "nll" for call in found.calls):
        return None
    shown = (Evidence("loss of a batch / mean loss of its halves", ratio, limits.low),)
    if not limits.low < ratio < limits.high:
        return ok(
            title="The loss is a mean over the samples",
            evidence=shown,
            meaning="Its gradients do not depend on the batch size.",
        )
    return (warning if case.fails else note)(
        title="The loss is summed over the batch, not averaged",
        evidence=shown,
        meaning=f"Gradients are {found.samples} times larger than those of a mean, and the useful "
        "learning rate depends on the batch size.",
        advice="Use reduction='mean', or divide the learning rate by the batch size.",
    )
