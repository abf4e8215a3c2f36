"""Rules about where and how a network is normalized."""

from __future__ import annotations

import math

import numpy as np

from normscope.diagnose.rules.base import STARTED, Case, note, ok, rule, warning
from normscope.refs import BJORCK2018, KARAKIDA2019, LUO2019
from normscope.results import Evidence, Finding
from normscope.results.layout import Layout, NormUse

MANY = 1 / 3  # share of hidden layers with a normalized input; in a transformer it is one half
GAP, RATIO = 0.5, 2.0  # of running against batch statistics
POWER = 10.0  # mean square of the last layer's inputs that is called large
LEAST = 0.1  # of chance: a loss below is taken for that
FEW = 16  # samples from which the start says something about later
NOISY = 0.15  # relative deviation of a batch's deviations; that of 22 samples without positions
STRONG, WEAK = 0.1, 1e-3  # gap and penalty by batch statistics, as shares of the loss


@rule("last-layer-unnormalized", "layout", source=KARAKIDA2019, where="Theorems 3.3 and 3.4")
def last_layer(case: Case) -> Finding | None:
    """Hidden layers normalized, the last one not; of several heads each is looked at."""
    layout: Layout = case["layout"]
    share = layout.normalized / layout.hidden_layers if layout.hidden_layers else 0.0
    if share < MANY:
        return None
    heads = [(x.power, x.norm, x.name) for x in layout.layers if x.head and x.name != layout.last]
    heads.insert(0, (layout.last_input_power, layout.last_input_norm, layout.last))
    near, ends = layout.within_reach, {name for *_, name in heads}
    # where other layers stand one behind a norm, so may a head
    fine = near & ends if near - ends else frozenset()
    bare = [x for x in heads if x[0] > POWER or (x[1] is None and x[2] not in fine)]
    power, _, name = (bare or heads)[0]
    shown = (
        Evidence("share of hidden layers with a normalized input", share, MANY),
        Evidence("mean square of the last layer's inputs", power, POWER),
    )
    if layout.output_norm is not None:
        meaning = "Their mean over the samples is not: only batch norm takes it away."
        if any(n.name == layout.output_norm and n.over_batch for n in layout.norms):
            meaning = "Their mean over the samples, which would be the sharpest direction, is gone."
        return ok("The outputs are normalized like the hidden layers", shown, meaning)
    if not bare:
        title = "What goes into the last layer is normalized, what comes out is not"
        return ok(
            "The last layer is as close to a norm as the others" if name in fine else title,
            shown,
            "So it is in most networks. Behind a rectifier the inputs have a mean, which leaves a "
            "few directions sharp: see the finding about the mean of the outputs.",
        )
    return warning(
        "The hidden layers are normalized, but what goes into the last layer is not",
        shown,
        "The largest curvature then sits in the last layer, where no norm tames it.",
        f"{case.what_if('norm-before-last')} shows what a norm there gains.",
        layer=name,
    )


@rule("running-statistics", "layout", source=BJORCK2018, where="Sec. 1, batch normalization")
def running_statistics(case: Case) -> Finding | None:
    """Stored statistics that are not those of the batches."""
    norms = [n for n in case["layout"].norms if n.used and not n.frozen]
    kept = [n for n in norms if not math.isnan(n.mean_gap)]
    if not kept:
        return None
    if all(n.updates == 0 and math.isfinite(n.mean_gap) for n in kept):
        return ok(
            "Running statistics were never updated",
            (Evidence("batches behind them", 0),),
            "The network has not been trained yet. In evaluation mode it would use mean 0 and "
            "variance 1.",
        )
    worst = max(kept, key=_disagreement)
    shown = (
        Evidence("largest gap of means, in running deviations", worst.mean_gap, GAP),
        Evidence("factor between batch and running variances there", worst.variance_gap, RATIO),
    )
    if _disagreement(worst) <= 1:
        meaning = "Training and evaluation see the same network."
        return ok("Running statistics agree with those of the batch", shown, meaning)
    return warning(
        "Running statistics disagree with those of the batch",
        shown,
        "In evaluation mode this is another network than in training.",
        "Check that evaluation data is prepared like training data; run some batches in train mode "
        "to renew the statistics; with small batches use group norm.",
        layer=worst.name,
    )


def _disagreement(norm: NormUse) -> float:
    """How far running statistics are off, in units of what is allowed."""
    return max(norm.mean_gap / GAP, math.log(norm.variance_gap) / math.log(RATIO))


@rule("unused-norm", "layout", source=BJORCK2018, where="Sec. 1, batch normalization")
def unused_norm(case: Case) -> Finding | None:
    """A norm layer that the forward pass never reaches."""
    norms = case["layout"].norms
    if not norms:
        return None
    unused = case["layout"].unused
    never = Evidence("norms that are never used", len(unused), 0.0)
    shown = (never, Evidence("norms in all", len(norms)))
    if not unused:
        return ok("Every norm is used in the forward pass", shown, "None is forgotten.")
    names = ", ".join(repr(n.name) for n in unused[:5])
    return warning(
        f"{len(unused)} norm layer{'s are' if len(unused) > 1 else ' is'} never used",
        shown,
        "In the batches that were looked at, the forward pass does not call it, in train mode or "
        "in evaluation mode, or nothing uses its result.",
        f"Use in forward, or delete (unless its parameters are used elsewhere): {names}.",
        layer=unused[0].name,
    )


@rule("batch-size", "layout", "regularization", source=LUO2019, where="Eq. (3) and App. C.4")
def batch_size(case: Case) -> Finding | None:
    """What the noise of batch statistics adds to the loss, all batch norms together."""
    found = case["regularization"]
    size, loss = int(found.batch_sizes[-1]), found.population_loss
    here = case.samples or size
    # What is next to nothing is no trouble, however small the loss.
    floor = 0.0 if math.isnan(case.chance) else LEAST * case.chance
    scale = size / here / max(loss, floor, 1e-300)  # all fall like 1 / batch size
    gap, wide = scale * float(found.everywhere[-1]), scale * 2 * float(found.everywhere_error[-1])
    name = f"gap of the loss at batch size {here}, as a share of the loss (or a tenth of chance)"
    shown = Evidence(name, gap, STRONG, gap - wide, gap + wide)
    if gap - wide <= STRONG and loss > STARTED * case.chance:
        return _at_the_start(case, math.sqrt(size / here))
    if gap - wide > STRONG:
        return warning(
            f"The batch of {here} is small for batch norm",
            (shown,),
            "The noise of its statistics makes up a good part of the loss.",
            "Use larger batches, group norm, or layer norm.",
        )
    if gap + wide > STRONG:
        return note(
            f"The batch of {here} may be small for batch norm",
            (shown,),
            "The noise of its statistics is not known well enough to tell.",
            f"ns.bn_regularization(model, data, loss, batch_size={here}) measures it on more data.",
        )
    if (weak := _penalty(case, size / here)).value < WEAK:
        return note(
            f"At a batch of {here} batch norm hardly regularizes",
            (weak, shown),
            "Its statistics are nearly those of the population.",
            "If you came from smaller batches and miss it, gamma decay gives it back: "
            "ns.bn_regularization(...).restoring_decay(small, large).",
        )
    title = f"The batch of {here} is neither too small nor too large for batch norm"
    return ok(title, (shown,), "The noise of its statistics is a moderate regularizer.")


def _penalty(case: Case, shrinking: float) -> Evidence:
    """What batch norm adds to the loss, by zeta and as measured, whichever is more."""
    found, loss = case["regularization"], max(case["regularization"].population_loss, 1e-300)
    # The layers that were not measured are taken to give as much each, at most.
    norms = [n for n in case["layout"].norms if n.over_batch]
    others = max(len(norms) / len(found.layers), 1.0)
    penalty = others * float(sum(layer.paper[-1] for layer in found.layers))
    name = "penalty zeta gamma^2 of all batch norms, or the gap, as a share of the loss"
    return Evidence(name, shrinking * max(penalty, float(found.everywhere[-1])) / loss, WEAK)


def _at_the_start(case: Case, shrinking: float) -> Finding:
    """A network that has not learned: its loss does not show the noise of batch statistics."""
    found, here = case["regularization"], case.samples
    noise = shrinking * float(np.sqrt(found.layers[0].deviation_variance[-1].mean()))
    name = f"scatter of the deviations of batches of {here}, relative"
    shown = (Evidence(name, noise, NOISY),)
    if noise <= NOISY and here >= FEW:
        meaning = "What they do to the loss shows after some training."
        return ok(f"The statistics of batches of {here} scatter little", shown, meaning)
    return note(
        f"The statistics of batches of {here} scatter by {noise:.0%}",
        shown,
        "At its start the loss does not show it; after some training it is likely to.",
        "Train for some steps and examine again, or use larger batches, group norm, or layer norm.",
    )
