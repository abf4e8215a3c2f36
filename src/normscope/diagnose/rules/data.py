"""Rules about the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose.rules.base import Case, note, ok, rule, warning
from normscope.results import Evidence, Finding
from normscope.results.data_card import DataCard
from normscope.results.wiring import Wiring

STANDARDIZE = "Standardize the inputs to mean 0 and deviation 1 (images: divide by 255 first)."


@dataclass(frozen=True)
class SortedLimits:
    """Thresholds of ``sorted-data``.

    Attributes:
        sorting: what the batch tells of the label, 0 for shuffled data, 1 for sorted.
        share: share of the classes that a single batch may hold.
        classes: from which on a single batch is judged.
        samples: samples per class, from which on it is.
    """

    sorting: float = 0.3
    share: float = 0.25
    classes: int = 4
    samples: float = 2.0


@rule("sorted-data", "data", order=3, kind="fact", limits=SortedLimits())
def sorted_data(case: Case, limits: SortedLimits) -> Finding | None:
    """One class only, or batches that hold few classes each."""
    found: DataCard = case["data"]
    if not found.labels:
        return None
    enough = found.batch >= limits.samples * max(found.classes, 2)
    if found.labels == 1 and enough:
        return warning(
            title="All targets that were looked at are of one class",
            evidence=(Evidence("different labels", found.labels, 1.0),),
            meaning=f"There is nothing to learn from these {found.samples} samples.",
            advice="Check the labels, and whether the data is sorted by class: shuffle=True.",
        )
    if found.batches > 1:
        if math.isnan(found.sorting):
            return None
        shown = Evidence("how much the batch tells of the label", found.sorting, limits.sorting)
        bad = found.sorting > limits.sorting
    else:
        share = found.labels / max(found.classes, 1)
        shown = Evidence("share of the classes that the batch holds", share, limits.share)
        bad = enough and found.classes >= limits.classes and share <= limits.share
    each = Evidence("different labels in a batch", found.labels_per_batch)
    if not bad:
        title = "Batches hold a mixture of the classes"
        return ok(title=title, evidence=(shown, each), meaning="The data looks shuffled.")
    return warning(
        title=f"The data is not shuffled: batches hold {found.labels_per_batch:.1f} of "
        f"{max(found.classes, found.labels)} classes each, sorted by label",
        evidence=(shown, each),
        meaning="Each batch teaches the network one class and lets it forget the others; batch "
        "norm sees one class at a time.",
        advice="Shuffle the data (shuffle=True).",
    )


@dataclass(frozen=True)
class CopyLimits:
    """Thresholds of ``repeated-samples``.

    Attributes:
        share: share of the samples.
        usual: the same where they are words, as short sentences and simple tasks repeat
            themselves, or where the sampler draws with replacement.
        bits: size of a row, below which rows are equal by chance.
    """

    share: float = 0.3
    usual: float = 0.9
    bits: float = 24.0


@rule("repeated-samples", "data", order=3, kind="fact", limits=CopyLimits(),
      suppressed_by=("constant-inputs",))  # fmt: skip
def repeated(case: Case, limits: CopyLimits) -> Finding | None:
    """Exact copies among the samples."""
    found: DataCard = case["data"]
    if math.isnan(found.duplicates) or found.bits < limits.bits:
        return None
    line = limits.usual if found.tokens or found.replacement else limits.share
    shown = (Evidence("share of samples that are copies of others", found.duplicates,
                      line),)  # fmt: skip
    if found.duplicates <= line:
        return ok(
            title="Few samples are copies of others",
            evidence=shown,
            meaning="The samples differ.",
        )
    return warning(
        title=f"{100 * found.duplicates:.0f} % of the samples are exact duplicates of others",
        evidence=shown,
        meaning="The network sees few different samples, and learns them by heart.",
        advice="Check the sampler and the data set for repeated samples.",
    )


@dataclass(frozen=True)
class RareLimits:
    """Thresholds of ``rare-class``.

    Attributes:
        share: samples of a class, of its equal share.
        few: equal share below which chance decides.
    """

    share: float = 0.05
    few: int = 20


@rule("rare-class", "data", order=4.6, limits=RareLimits(), promoted_by=("no-learning",))
def rare_class(case: Case, limits: RareLimits) -> Finding | None:
    """A class that is so rare that never predicting it costs little."""
    counts = [n for n in case["data"].counts if n]
    equal = sum(counts) / max(len(counts), 1)
    if len(counts) < 2 or equal < limits.few:
        return None
    rare = min(counts)
    shown = Evidence("samples of the rarest class, of an equal share", rare / equal, limits.share)
    if rare >= limits.share * equal:
        return ok(title="No class is rare", evidence=(shown,), meaning="All are seen often.")
    label = case["data"].counts.index(rare)
    return note(
        title=f"The classes are imbalanced: {100 * rare / sum(counts):.2g} % of the labels are "
        f"of class {label}",
        evidence=(shown,),
        meaning="Never predicting it costs little, and accuracy hardly shows it.",
        advice="Draw rare classes more often (WeightedRandomSampler), or weight them in the loss.",
    )


@rule("constant-inputs", "data", order=3, kind="fact")
def constant(case: Case) -> Finding | None:
    """Inputs without information."""
    found: DataCard = case["data"]
    if math.isnan(found.variation) or found.samples < 2:
        return None
    shown = Evidence("variance of the inputs over the samples, relative", found.variation, 0.0)
    if found.variation > 0:
        share = Evidence("share of the features or channels that are constant",
                         found.constant_features)  # fmt: skip
        title = "The inputs differ from sample to sample"
        return ok(title=title, evidence=(shown, share), meaning="They carry information.")
    return warning(
        title="All inputs are the same for every sample: they are constant",
        evidence=(shown,),
        meaning="They carry no information.",
        advice="Check how the data is loaded and normalized.",
    )


@rule("target-in-inputs", "data", order=3.1, kind="fact")
def target_in_inputs(case: Case) -> Finding | None:
    """An input that gives the answer away."""
    found: DataCard = case["data"]
    if found.given_away < 0:
        return None
    return warning(
        title=f"Input feature {found.given_away} is the target itself: the label leaks into the "
        "inputs",
        evidence=(Evidence("input features that are the target, but for scale", 1.0, 0.0),),
        meaning="The network copies it, and learns nothing that helps where it is not known.",
        advice="Remove this feature from the inputs.",
    )


@rule("image-layout", "data", order=3.2, kind="fact")
def image_layout(case: Case) -> Finding | None:
    """Images whose axes were changed by view, not permute."""
    found: DataCard = case["data"]
    if not found.scrambled:
        return None
    return warning(
        title="The images look scrambled: channels that were stored last are read as first "
        "(view or reshape in place of permute)",
        evidence=(Evidence("images whose neighbouring pixels belong to other channels", 1.0, 0.0),),
        meaning="Pixels are in places where they do not belong, and convolutions see no shapes.",
        advice="Use x.permute(0, 3, 1, 2) to move the channels; view and reshape only rename axes.",
    )


@rule("standardized-rows", "data", order=4, kind="fact")
def standardized_rows(case: Case) -> Finding | None:
    """Rows of a table standardized in place of its columns."""
    found: DataCard = case["data"]
    if not found.by_row:
        return None
    return warning(
        title="Every row is standardized by itself (axis=1), and the columns are not: features "
        "keep different means",
        evidence=(Evidence("rows of mean 0 and deviation 1, share", 1.0, 0.0),),
        meaning="The largest feature decides the rows' means and scales, and hides the others.",
        advice="Standardize each column over the rows (axis=0).",
    )


@dataclass(frozen=True)
class InputLimits:
    """Thresholds of ``feature-scale`` and ``input-scale``.

    Attributes:
        ratio: scale of one feature over that of the median one.
        high: root mean square of the inputs.
        low: the same.
        offset: abs(mean) over deviation.
        extreme: root mean square from which on no norm and no trial excuses it.
    """

    ratio: float = 100.0
    high: float = 20.0
    low: float = 0.02
    offset: float = 10.0
    extreme: float = 1e4


@rule("feature-scale", "data", "start", order=4, kind="fact", limits=InputLimits(),
      promoted_by=("learning-rate",),
      suppressed_by=("constant-inputs",))  # fmt: skip
def feature_scale(case: Case, limits: InputLimits) -> Finding | None:
    """One feature far larger than the others, and no norm that would scale it."""
    found: DataCard = case["data"]
    if math.isnan(found.feature_ratio) or _normed_first(case, batch=True):
        return None
    shown = (Evidence("scale of one feature over that of the median one", found.feature_ratio,
                      limits.ratio),)  # fmt: skip
    if found.feature_ratio <= limits.ratio:
        return ok(
            title="Input features have similar scales",
            evidence=shown,
            meaning="None of them drowns the others.",
        )
    return warning(
        title=f"Input feature {found.feature} has a scale {found.feature_ratio:.0f} times that of "
        "the median feature: features are not standardized",
        evidence=shown,
        meaning="It decides the gradient, and the other features are hardly learned.",
        advice="Standardize every feature to mean 0 and deviation 1.",
    )


@rule("input-scale", "data", "start", order=4.1, kind="fact", limits=InputLimits(),
      promoted_by=("learning-rate",),
      suppressed_by=("constant-inputs", "feature-scale"))  # fmt: skip
def input_scale(case: Case, limits: InputLimits) -> Finding | None:
    """Inputs that are large, tiny, or far from centred."""
    found: DataCard = case["data"]
    if math.isnan(found.rms):
        return _inside(case, limits)
    if found.variation == 0:
        return None
    shown = Evidence("root mean square of the inputs", found.rms, limits.high)
    # norms inside residual branches do not make up for it: what leads past them stays as large
    past = bool(case["start"].attention)
    severity = note if not past and (case.clear or _normed_first(case)) and case.learns else warning
    if found.rms > limits.high:
        extreme = found.rms > limits.extreme and not _normed_first(case, batch=True)
        return (warning if extreme else severity)(
            title=f"The inputs are large (root mean square {found.rms:.3g}): they are not "
            "normalized",
            evidence=(shown,),
            meaning="The first layer gets large gradients: training diverges, or units die.",
            advice=STANDARDIZE,
        )
    if 0 < found.rms < limits.low:
        return severity(
            title=f"The inputs are tiny (root mean square {found.rms:.2g}): they are not "
            "normalized",
            evidence=(Evidence(shown.quantity, found.rms, limits.low),),
            meaning="Beside the biases nothing of them is left, and gradients are tiny.",
            advice=STANDARDIZE,
        )
    offset = Evidence("abs(mean) of the inputs over their deviation", found.offset, limits.offset)
    if found.offset > limits.offset:
        return severity(
            title=f"The inputs have a mean of {found.offset:.0f} times their deviation: they are "
            "not centred",
            evidence=(offset,),
            meaning="All samples look alike to the first layer.",
            advice=STANDARDIZE,
        )
    return ok(
        title="The inputs have a usual scale",
        evidence=(shown, offset),
        meaning="Initial weights expect inputs of about this size.",
    )


def _inside(case: Case, limits: InputLimits) -> Finding | None:
    """Of inputs that are made in the loss function: noised ones, and times."""
    first = [s for s in case["start"].layers if s.number <= 1 and s.rms_in > limits.high]
    if not first:
        return None
    worst = max(first, key=lambda s: s.rms_in)
    return (note if case.clear else warning)(
        title=f"The input of {worst.name!r} is large (root mean square {worst.rms_in:.3g}): it is "
        "not scaled",
        evidence=(Evidence("root mean square of what goes into it", worst.rms_in, limits.high),),
        meaning="It decides the outputs at the start, and drowns the other inputs.",
        advice="Scale such numbers (times, positions) to about 1, or embed them.",
        layer=worst.name,
    )


def _normed_first(case: Case, *, batch: bool = False) -> bool:
    """Whether a norm is among the first that sees the inputs; ``batch`` for one as the very first
    that scales each feature by itself.
    """
    signals = case["start"].signals
    if batch:
        over = {norm.name for norm in case["start"].norms if norm.over_batch}
        return bool(signals) and signals[0].kind == "norm" and signals[0].name in over
    return any(signal.kind == "norm" for signal in signals[:3])


@dataclass(frozen=True)
class TargetLimits:
    """Thresholds of ``target-scale``.

    Attributes:
        high: root mean square of the targets, alone and over that of the outputs.
        low: the same, alone.
        least: size of the outputs from which on they are compared.
        remains: share of the constant's loss that a failing trial leaves.
    """

    high: float = 20.0
    low: float = 0.01
    least: float = 0.3
    remains: float = 0.9


def _scaled_away(case: Case, limits: TargetLimits) -> bool:
    """Whether the network learns large targets quickly all the same."""
    own = None if case.trial is None else case.trial.own
    if case.trial is None or own is None or not case.learns:
        return False
    return own.after <= limits.remains * case.trial.scale


@rule(
    "target-scale",
    "wiring",
    order=4,
    kind="fact",
    limits=TargetLimits(),
    promoted_by=("learning-rate",),
)
def target_scale(case: Case, limits: TargetLimits) -> Finding | None:
    """Targets of a regression that the outputs can hardly reach."""
    found: Wiring = case["wiring"]
    calls = [c for c in found.calls if c.kind in ("squared", "absolute", "difference")]
    if not calls or math.isnan(calls[0].target_rms):
        return None
    call = calls[0]
    ratio = call.target_rms / max(call.rms, limits.least)
    shown = (
        Evidence("root mean square of the targets", call.target_rms, limits.high),
        Evidence("the same over that of the outputs", ratio, limits.high),
    )
    advice = "Standardize the targets to mean 0 and deviation 1, and undo it after prediction."
    if call.target_rms > limits.high and ratio > limits.high:
        return (warning if not _scaled_away(case, limits) else note)(
            title=f"The targets are large (root mean square {call.target_rms:.3g}, outputs "
            f"{call.rms:.2g}): they are not scaled",
            evidence=shown,
            meaning="The outputs must grow by this factor first, and gradients are as large.",
            advice=advice,
        )
    if 0 < call.target_rms < limits.low:
        low = (Evidence(shown[0].quantity, call.target_rms, limits.low),)
        return (note if case.clear else warning)(
            title=f"The targets are tiny (root mean square {call.target_rms:.2g}): they are not "
            "scaled",
            evidence=low,
            meaning="The loss is as good as zero from the start.",
            advice=advice,
        )
    return ok(
        title="The targets have a usual scale",
        evidence=shown,
        meaning="The outputs can reach them.",
    )
