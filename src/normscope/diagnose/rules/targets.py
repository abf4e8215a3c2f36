"""Rules about what the loss compares: labels, class weights, targets of tokens, and its sign."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose.rules.base import Case, note, ok, problem, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.wiring import LossCall, Wiring

OFTEN = 3  # samples of a class, from which on its share is known


@dataclass(frozen=True)
class IgnoredLimits:
    """Thresholds of ``ignored-class``: share of the labels."""

    share: float = 0.005


@rule("ignored-class", "wiring", order=1.1, kind="fact", limits=IgnoredLimits())
def ignored_class(case: Case, limits: IgnoredLimits) -> Finding | None:
    """A label that is one of the model's classes, and that the loss leaves out."""
    calls: tuple[LossCall, ...] = case["wiring"].calls
    for call in calls:
        label, share = call.ignored_label, call.ignored
        if not 0 <= label < call.classes or share <= limits.share or share == 1:
            continue
        return (note if call.padding else warning)(
            title=f"The loss ignores class {label} (ignore_index={label}): {100 * share:.2g} % of "
            "the labels do not count",
            evidence=(Evidence("share of the labels that is ignored", share, limits.share),),
            meaning="They stand side by side, as padding does."
            if call.padding
            else "The model has an output for this class and never learns when to give it.",
            advice=""
            if call.padding
            else "Use the default ignore_index=-100, or a label that is no class.",
        )
    return None


@dataclass(frozen=True)
class PaddingLimits:
    """Thresholds of ``padding-counts``: share of the targets."""

    share: float = 0.3


@rule("padding-counts", "wiring", order=1.15, kind="fact", limits=PaddingLimits())
def padding_counts(case: Case, limits: PaddingLimits) -> Finding | None:
    """Padding that has a label as other tokens have."""
    found: Wiring = case["wiring"]
    ignores = any(call.ignored >= found.padded for call in found.calls)
    if found.padded <= limits.share or ignores or not found.calls:
        return None
    return warning(
        title=f"Padding counts in the loss: {100 * found.padded:.0f} % of the labels stand at "
        "padding tokens, all of one class",
        evidence=(Evidence("share of the labels at padding", found.padded, limits.share),),
        meaning="The loss falls as this class is learned, and hardly depends on the others.",
        advice="Give these places the label -100 (ignore_index).",
    )


@dataclass(frozen=True)
class WeightLimits:
    """Thresholds of ``class-weights``.

    Attributes:
        uneven: how much more unequal weights may make the classes.
        smoothing: label smoothing, from which on labels hardly count.
    """

    uneven: float = 3.0
    smoothing: float = 0.5


def _uneven(call: LossCall, counts: tuple[int, ...]) -> float:
    """How much more unequal its weights make the classes, by all samples that were seen."""
    pairs = [(n, n * w) for n, w in zip(counts, call.weights, strict=False) if n >= OFTEN]
    if len(pairs) < 2:
        return call.uneven
    own, new = zip(*pairs, strict=True)
    return max(new) / max(min(new), 1e-300) * min(own) / max(own)


@rule("class-weights", "wiring", "data", order=1.2, kind="fact", limits=WeightLimits())
def class_weights(case: Case, limits: WeightLimits) -> Finding | None:
    """Class weights the wrong way round, or label smoothing that drowns the labels."""
    calls: tuple[LossCall, ...] = case["wiring"].calls
    for call in calls:
        uneven = _uneven(call, case["data"].counts)
        if uneven > limits.uneven:
            times = f"{uneven:.0f} times" if uneven < 1e6 else "far"
            return warning(
                title=f"The class weights (weight or pos_weight) make the classes {times} more "
                "unequal than they are",
                evidence=(Evidence("largest / smallest class, with weights over without",
                                   uneven, limits.uneven),),
                meaning="A class with little weight is ignored: it is hardly ever predicted.",
                advice="Weight rare classes up, not down: about one over their frequency "
                "(pos_weight = negatives / positives).",
            )  # fmt: skip
        if call.smoothing >= limits.smoothing:
            return warning(
                title=f"Label smoothing of {call.smoothing:g} leaves little of the labels",
                evidence=(Evidence("label smoothing", call.smoothing, limits.smoothing),),
                meaning="Nearly equal probabilities are what the loss asks for.",
                advice="Use label smoothing of 0.1.",
            )
    return None


@dataclass(frozen=True)
class SoftLimits:
    """Thresholds of ``target-probabilities``: how far from probabilities targets may be."""

    beyond: float = 0.01


@rule("target-probabilities", "wiring", order=1.3, kind="fact", limits=SoftLimits())
def target_probabilities(case: Case, limits: SoftLimits) -> Finding | None:
    """Targets that must be probabilities, and are not."""
    calls: tuple[LossCall, ...] = case["wiring"].calls
    for call in calls:
        if call.kind == "bernoulli" and call.simplex:
            beyond = call.target_sum - 1
            title = (
                f"Samples have up to {call.target_sum:.3g} true labels, but a softmax makes their "
                "outputs sum to 1"
            )
            advice = "For several labels per sample use a sigmoid: BCEWithLogitsLoss on the logits."
        elif call.kind in ("bernoulli", "logits"):
            beyond = max(-call.target_low, call.target_high - 1)
            span = f"{call.target_low:.3g}..{call.target_high:.3g}"
            title = f"The targets lie in {span}, not in 0..1: the loss expects probabilities"
            advice = "Scale the targets to 0..1, or use a squared loss."
        elif call.kind in ("cross_entropy", "kl") and not math.isnan(call.target_sum):
            beyond = abs(call.target_sum - 1)
            total = f"{call.target_sum:.3g}"
            title = (
                f"The targets of a sample sum to {total}, not to 1: the loss expects probabilities"
            )
            advice = "For several labels per sample use BCEWithLogitsLoss; else normalize them."
        else:
            continue
        shown = (Evidence("how far the targets are from probabilities", beyond, limits.beyond),)
        if beyond > limits.beyond:
            return warning(
                title=title,
                evidence=shown,
                meaning="The loss has no lower bound, or asks for what the outputs cannot be.",
                advice=advice,
            )
    return None


@dataclass(frozen=True)
class BoundLimits:
    """Thresholds of ``bounded-logits``: share of the loss of equal probabilities that remains.

    Attributes:
        remains: share, for cosines, which a scale should follow, and for a tanh.
    """

    remains: float = 0.2


@rule("bounded-logits", "wiring", order=1.4, kind="fact", limits=BoundLimits())
def bounded_logits(case: Case, limits: BoundLimits) -> Finding | None:
    """Logits that are cosines: without a scale no class can become likely."""
    calls: tuple[LossCall, ...] = case["wiring"].calls
    for call in calls:
        tanh = call.made_by == "Tanh"
        bound = 1.0 if tanh and call.kind == "cross_entropy" else call.bound
        if call.classes < 2 or not bound < math.inf:
            continue
        least = math.log1p((call.classes - 1) * math.exp(-2 * bound))
        chance = math.log(call.classes)
        line = limits.remains
        shown = (
            Evidence("lowest possible loss / that of equal probabilities", least / chance, line),
        )
        if least < line * chance:
            continue
        made = "end in a tanh" if tanh else "are cosines of unit vectors"
        return warning(
            title=f"The logits {made}, limited to {bound:.2g}: the loss cannot fall below "
            f"{least:.3g} (equal probabilities: {chance:.3g})",
            evidence=shown,
            meaning="The softmax of such a narrow range is nearly uniform.",
            advice="Remove the tanh in front of the loss."
            if tanh
            else "Divide cosines by a temperature of 0.05 to 0.2; do not multiply by it.",
        )
    return None


@dataclass(frozen=True)
class TermLimits:
    """Thresholds of ``loss-terms``: share of the loss that other terms may have.

    Attributes:
        beside: together, beside one torch loss.
        several: the larger ones of several torch losses.
    """

    beside: float = 0.9
    several: float = 0.96


@rule("loss-terms", "wiring", order=4.3, kind="fact", limits=TermLimits())
def loss_terms(case: Case, limits: TermLimits) -> Finding | None:
    """A penalty that drowns the loss of the predictions."""
    found: Wiring = case["wiring"]
    call = found.call
    values = [c.value for c in found.calls if c.value > 0]
    whole = len(values) > 1 and math.isclose(sum(values), found.loss, rel_tol=0.01)
    large = max(found.calls, key=lambda c: c.value) if whole else None
    least = (1 - limits.several) * found.loss
    # a cross-entropy has its own size, and a small squared error beside it is no trouble
    if large is not None and large.kind in ("squared", "absolute") and min(values) < least:
        return warning(
            title=f"One of {len(values)} loss terms ({large.kind.replace('_', '-')}, "
            f"{large.value:.3g}) drowns another one ({min(values):.3g})",
            evidence=(Evidence("share of the loss in the largest term", large.value / found.loss,
                               limits.several),),
            meaning="It decides the gradients: the output of the other term is hardly learned.",
            advice="Scale the targets of the large term, or balance the terms by weights.",
        )  # fmt: skip
    if call is None or math.isnan(found.beside):
        return None
    shown = (Evidence("share of the loss in other terms", found.beside, limits.beside),)
    if not limits.beside < found.beside <= 1:
        return None
    kind = call.kind.replace("_", "-")
    return warning(
        title=f"Other terms are {100 * found.beside:.0f} % of the loss ({found.loss:.3g}) and "
        f"drown the {kind} loss of the predictions ({call.value:.3g})",
        evidence=shown,
        meaning="A penalty or second term of this weight decides the gradients: the outputs are "
        "hardly learned.",
        advice="Lower the weight of this penalty or regularization until the terms are of about "
        "the same size.",
    )


@rule("loss-sign", "wiring", order=1, kind="fact")
def loss_sign(case: Case) -> Finding | None:
    """Training that goes uphill."""
    found: Wiring = case["wiring"]
    call = found.call
    value = math.nan if call is None else call.value
    flipped = value > 0 and math.isclose(found.loss, -value, rel_tol=0.05)
    if flipped == found.optimizer.maximizes:  # neither, or both: then it goes downhill again
        return None
    what = "The optimizer maximizes the loss (maximize=True)"
    if flipped and call is not None:
        kind = call.kind.replace("_", "-")
        what = f"The sign of the loss is flipped: the {kind} loss of {value:.3g} is taken as "
        what += f"{found.loss:.3g}, and training makes it as large as it can"
    return problem(
        title=what,
        evidence=(Evidence("loss of the first batch", found.loss),),
        meaning="Every update makes the predictions worse.",
        advice="Minimize the loss: remove the minus sign, or maximize=True.",
    )


@rule("shifted-tokens", "wiring", order=3.4, kind="fact")
def shifted_tokens(case: Case) -> Finding | None:
    """Targets that are the tokens shifted by another number than one."""
    found: Wiring = case["wiring"]
    if found.shift is None:
        return None
    shown = (Evidence("tokens by which the targets are ahead of the inputs", found.shift, 1.0),)
    if found.shift == 1:
        return ok(
            title="The targets are the next tokens",
            evidence=shown,
            meaning="Labels and inputs are shifted once.",
        )
    far = f"{abs(found.shift)} token{'s' * (abs(found.shift) > 1)}"
    if found.shift == 0:
        title = "The labels are the input tokens themselves, not the next tokens: they are not "
        title += "shifted"
    elif found.shift > 1:
        title = (
            f"The labels are shifted by {far}, not by one: what is learned is not the next token"
        )
    else:
        title = f"The labels are shifted the wrong way, {far} back"
    return warning(
        title=title,
        evidence=shown,
        meaning="Some models shift the labels themselves (those of Hugging Face do)."
        if found.shift > 1
        else "The model sees what it has to predict.",
        advice="Shift the labels against input_ids by one position, once.",
    )
