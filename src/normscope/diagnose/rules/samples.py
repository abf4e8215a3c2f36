"""Rules about samples and tokens that see one another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normscope.diagnose.rules.base import Case, ok, rule, warning
from normscope.messages import counted
from normscope.results import Evidence, Finding
from normscope.results.start import NormScale, Start
from normscope.results.wiring import Wiring


@dataclass(frozen=True)
class MixLimits:
    """Thresholds: change of outputs, relative to the largest, that is more than rounding."""

    change: float = 1e-3


@rule("samples-mix", "wiring", order=3.5, kind="fact", limits=MixLimits())
def mixing(case: Case, limits: MixLimits) -> Finding | None:
    """Outputs that depend on other samples of the batch in evaluation mode."""
    found: Wiring = case["wiring"]
    if math.isnan(found.mixing):
        return None
    name = "change of an output when other samples are exchanged, relative"
    shown = (Evidence(name, found.mixing, limits.change),)
    if found.mixing <= limits.change:
        return ok(
            title="Samples do not see one another in evaluation mode",
            evidence=shown,
            meaning="The output of a sample is its own.",
        )
    if found.across <= limits.change and not case.convention.get("rows"):
        return None  # the samples may well be on the second axis
    text = "The output of one sample depends on the other samples of the batch"
    text = f"{text}, in evaluation mode too"
    if found.mixing_by:
        return warning(
            title=text,
            evidence=shown,
            meaning=f"The norm {found.mixing_by!r} keeps no running statistics, and uses those of "
            "the batch.",
            advice="Set track_running_stats=True.",
            layer=found.mixing_by,
        )
    return warning(
        title=text,
        evidence=shown,
        meaning="A norm, softmax, reshape or recurrent layer works along the batch axis.",
        advice="Check the axis of norms, softmax and reshapes, and batch_first of recurrent and "
        "attention layers.",
    )


@rule("tokens-leak", "wiring", order=3.5, kind="fact", limits=MixLimits())
def leak(case: Case, limits: MixLimits) -> Finding | None:
    """Predictions of the next token that see it."""
    found: Wiring = case["wiring"]
    if math.isnan(found.leak):
        return None
    name = "change of early outputs when later tokens are exchanged, relative"
    shown = (Evidence(name, found.leak, limits.change),)
    if found.leak <= limits.change:
        return ok(
            title="Predictions do not see later tokens",
            evidence=shown,
            meaning="The mask is causal.",
        )
    return warning(
        title="The prediction of a token sees later tokens: a causal mask is missing, or "
        "convolutions are padded on both sides",
        evidence=shown,
        meaning="The targets leak into the inputs: the loss falls, and nothing useful is learned.",
        advice="Give the attention a causal mask (is_causal=True); pad convolutions on the left "
        "only.",
    )


@dataclass(frozen=True)
class LinearLimits:
    """Thresholds: change of outputs, relative, that is no more than rounding."""

    change: float = 1e-4


@rule("linear-network", "wiring", "start", order=3.7, kind="fact", limits=LinearLimits())
def linear_network(case: Case, limits: LinearLimits) -> Finding | None:
    """Several layers without a nonlinearity between them."""
    found: Wiring = case["wiring"]
    layers = [s for s in case["start"].layers if not math.isnan(s.gain)]
    if math.isnan(found.linear) or len(layers) < 2:
        return None
    if any(p.weight == 0 and not p.name.endswith("bias") for p in found.parameters):
        return None  # branches that start at zero leave only the way past them
    name = "distance of the outputs from a linear function, relative"
    shown = (Evidence(name, found.linear, limits.change),)
    if found.linear > limits.change:
        return ok(
            title="The network is not linear", evidence=shown, meaning="Its layers add up to more."
        )
    return warning(
        title=f"The network is linear: its {len(layers)} layers act as one, without an activation "
        "between them",
        evidence=shown,
        meaning="Its outputs are a linear function of the inputs (in evaluation mode), however "
        "many layers it has.",
        advice="Put a nonlinear activation, such as ReLU or GELU, behind every hidden layer.",
    )


@rule("token-order", "wiring", "start", order=5.2, kind="guess", limits=LinearLimits())
def token_order(case: Case, limits: LinearLimits) -> Finding | None:
    """Attention over tokens whose order makes no difference."""
    found: Wiring = case["wiring"]
    if math.isnan(found.ordered) or not case["start"].attention:
        return None
    name = "change of the outputs when tokens change places, relative"
    shown = (Evidence(name, found.ordered, limits.change),)
    if found.ordered > limits.change:
        title = "The order of the tokens makes a difference"
        return ok(title=title, evidence=shown, meaning="Positions reach the outputs.")
    return warning(
        title="The order of the tokens makes no difference: no position embedding reaches them",
        evidence=shown,
        meaning="Attention alone does not know where a token stands.",
        advice="Add position embeddings (learned, sinusoidal or rotary) to the tokens.",
    )


@rule("random-evaluation", "wiring", order=3.55, kind="fact")
def random_evaluation(case: Case) -> Finding | None:
    """Dropout that goes on in evaluation mode."""
    found: Wiring = case["wiring"]
    if not found.dropping:
        return None
    return warning(
        title=f"Dropout (p = {found.dropping:g}) stays on in evaluation mode: predictions are "
        "random",
        evidence=(Evidence("rate of dropout in evaluation mode", found.dropping, 0.0),),
        meaning="functional.dropout, or attention with dropout_p, is called without regard to the "
        "mode.",
        advice="Pass training=self.training (dropout_p=p if self.training else 0.0), or use "
        "nn.Dropout.",
    )


@dataclass(frozen=True)
class SmallLimits:
    """Thresholds of ``small-statistics``: numbers behind one statistic of a batch norm."""

    values: float = 8.0


@rule("small-statistics", "start", order=5.3, kind="fact", limits=SmallLimits(),
      suppressed_by=("norm-axis", "running-statistics"))  # fmt: skip
def small_statistics(case: Case, limits: SmallLimits) -> Finding | None:
    """Batch norms whose batches are too small for statistics."""
    norms = [n for n in case["start"].norms if n.over_batch and n.values > ValueLimits().batch]
    few = [n for n in norms if n.values < limits.values]
    if not few:
        return None
    return warning(
        title=f"The batch of {case['start'].samples} is too small for batch norm: "
        f"{few[0].values:.0f} values per statistic in {counted(len(few), 'norm')} (first "
        f"{few[0].name!r})",
        evidence=(Evidence("values per statistic", few[0].values, limits.values),),
        meaning="The noise of the statistics is as large as the signal, and evaluation mode, "
        "without it, is another network.",
        advice="Use larger batches, or group norm or layer norm.",
        layer=few[0].name,
    )


@rule("last-batch", "start", "data", order=3.6, kind="fact")
def last_batch(case: Case) -> Finding | None:
    """A last batch of one sample, for which a batch norm raises an error."""
    found: Start = case["start"]
    alone = [n for n in found.norms if n.over_batch and n.values == found.samples]
    if case["data"].last != 1 or not alone:
        return None
    return warning(
        title=f"The last batch of the loader has 1 sample, and batch norm ({alone[0].name!r}) "
        "raises an error there",
        evidence=(Evidence("samples in the last batch", 1.0, 1.0),),
        meaning="A single value has no variance: training stops at the end of the first epoch.",
        advice="Use drop_last=True, or another batch size.",
        layer=alone[0].name,
    )


@rule("shared-norm", "start", order=5.1, kind="fact")
def shared_norm(case: Case) -> Finding | None:
    """One batch norm behind several layers."""
    found: Start = case["start"]
    first = {s.name.partition("#")[0] for s in found.signals if s.kind in ("linear", "conv")}
    again = [s for s in found.signals if s.kind in ("linear", "conv") and "#" in s.name]
    uses = [n.name.partition("#")[0] for n in found.norms if n.over_batch]
    name = next((n for n in uses if uses.count(n) > 1), None)
    if name is None or len(again) * 2 > len(first):  # the whole network is called again
        return None
    return warning(
        title=f"The batch norm {name!r} is called {uses.count(name)} times, behind different "
        "layers: its running statistics fit none of them",
        evidence=(Evidence("uses of the norm in a pass", uses.count(name), 1.0),),
        meaning="They are a mixture of several signals: evaluation mode is another network.",
        advice="Give every layer a batch norm of its own.",
        layer=name,
    )


@dataclass(frozen=True)
class ValueLimits:
    """Thresholds of ``norm-axis``: numbers behind one statistic.

    Attributes:
        batch: least number for a norm over the batch, or without a mean.
        others: the same for one that subtracts a mean within a sample: two numbers always become
            -1 and 1.
    """

    batch: float = 1.0
    others: float = 2.0


@rule("norm-axis", "start", order=3.6, kind="fact", limits=ValueLimits())
def norm_axis(case: Case, limits: ValueLimits) -> Finding | None:
    """A norm over one value, or over an axis that is not that of features."""
    found: Start = case["start"]
    if not found.norms:
        return None

    def line(norm: NormScale) -> float:
        return limits.others if norm.centred and not norm.over_batch else limits.batch

    poor = next((n for n in found.norms if n.values <= line(n)), None)
    if poor is not None:
        one = "1 value" if poor.values == 1 else f"{poor.values:.0f} values"
        return warning(
            title=f"The norm {poor.name!r} ({poor.kind}) normalizes over {one} per statistic: its "
            "output carries no information",
            evidence=(Evidence("values per statistic", poor.values, line(poor)),),
            meaning="It works along the wrong axis, on the wrong shape, or with too many groups.",
            advice="Normalize over more values: another axis, fewer groups, or before the pooling.",
            layer=poor.name,
        )
    wrong = next((n for n in found.norms if n.axis), None)
    least = min(n.values for n in found.norms)
    shown = (Evidence("values per statistic, at least", least, limits.others),)
    if wrong is None:
        return ok(
            title="Norms work over features, channels or samples",
            evidence=shown,
            meaning="No norm stands on an axis of positions by mistake.",
        )
    meant = "channels" if wrong.axis == "width" else "features"
    return warning(
        title=f"The norm {wrong.name!r} ({wrong.kind}) normalizes over the wrong axis: "
        f"{wrong.axis} in place of {meant}",
        evidence=shown,
        meaning=f"The layer before it puts its {meant} on another axis.",
        advice=f"Move the axis of {meant} to where the norm expects it, or use another norm.",
        layer=wrong.name,
    )
