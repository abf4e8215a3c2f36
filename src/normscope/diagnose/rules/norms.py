"""Rules about where and how a network is normalized."""

from __future__ import annotations

import math

import numpy as np

from normscope.diagnose.rules.base import STARTED, Case, note, ok, rule, warning
from normscope.refs import BJORCK2018, KARAKIDA2019, LUO2019
from normscope.results import Evidence, Finding
from normscope.results.layout import Layout

MANY = 1 / 3  # share of hidden layers with a normalized input; in a transformer it is one half
POWER = 10.0  # mean square of the last layer's inputs that is called large
LEAST = 0.1  # of chance: a loss below is taken for that
FEW = 16  # samples from which the start says something about later
NOISY = 0.15  # relative deviation of a batch's deviations; that of 22 samples without positions
STRONG, WEAK = 0.1, 1e-3  # gap and penalty by batch statistics, as shares of the loss


@rule(
    "last-layer-unnormalized",
    "layout",
    order=8.1,
    kind="note",
    source=KARAKIDA2019,
    where="Theorems 3.3 and 3.4",
)
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
    shown: tuple[Evidence, ...] = (
        Evidence("share of hidden layers with a normalized input", share, MANY),
        Evidence("mean square of the last layer's inputs", power, POWER),
    )
    if bare:  # because of its inputs, or because it has no norm
        shown = shown[::-1] if power > POWER else shown[:1]
    if layout.output_norm is not None:
        meaning = "Their mean over the samples remains: only batch norm removes it."
        if any(n.name == layout.output_norm and n.over_batch for n in layout.norms):
            meaning = "Their mean over the samples, usually the sharpest direction, is removed."
        return ok(
            title="The outputs are normalized like the hidden layers",
            evidence=shown,
            meaning=meaning,
        )
    if not bare:
        title = "The input of the last layer is normalized, its output is not"
        return ok(
            title="The last layer is as close to a norm as the others" if name in fine else title,
            evidence=shown,
            meaning="This is usual. After a ReLU the inputs have a nonzero mean, which leaves a "
            "few "
            "directions sharp: see the finding about the mean of the outputs.",
        )
    return warning(
        title="The hidden layers are normalized, but the input of the last layer is not",
        evidence=shown,
        meaning="The largest curvature is then in the last layer, which is not normalized.",
        advice=case.before_last_advice,
        layer=name,
    )


@rule("unused-norm", "layout", order=8.4, kind="fact", source=BJORCK2018, where="Sec. 1.1, Eq. (1)")
def unused_norm(case: Case) -> Finding | None:
    """A norm layer that the forward pass never reaches."""
    norms = case["layout"].norms
    if not norms:
        return None
    unused = case["layout"].unused
    never = Evidence("norms that are never used", len(unused), 0.0)
    shown = (never, Evidence("norms in all", len(norms)))
    if not unused:
        return ok(
            title="Every norm is used in the forward pass",
            evidence=shown,
            meaning="No norm layer is left out.",
        )
    names = ", ".join(repr(n.name) for n in unused[:5])
    them, its = ("them", "their") if len(unused) > 1 else ("it", "its")
    return warning(
        title=f"{len(unused)} norm layer{'s are' if len(unused) > 1 else ' is'} never used",
        evidence=shown,
        meaning="On the batches used here, the forward pass does not call "
        + f"{them} in train or evaluation mode, or nothing uses the result.",
        advice=f"Call {names} in forward, or remove {them} (unless {its} parameters are used "
        "elsewhere).",
        layer=unused[0].name,
    )


@rule(
    "batch-size",
    "layout",
    "regularization",
    order=8.3,
    kind="guess",
    source=LUO2019,
    where="Eq. (3) and App. C.4",
)
def batch_size(case: Case) -> Finding | None:
    """What the noise of batch statistics adds to the loss, all batch norms together."""
    found = case["regularization"]
    size, loss = int(found.batch_sizes[-1]), found.population_loss
    here = case.samples or size
    # What is next to nothing is no trouble, however small the loss.
    floor = 0.0 if math.isnan(case.chance) else LEAST * case.chance
    scale = size / here / max(loss, floor, 1e-300)  # all fall like 1 / batch size
    gap, wide = scale * float(found.everywhere[-1]), scale * 2 * float(found.everywhere_error[-1])
    name = f"extra loss from batch noise at batch size {here}, relative to the loss"
    shown = Evidence(name, gap, STRONG, gap - wide, gap + wide)
    if gap - wide <= STRONG and loss > STARTED * case.chance:
        return _at_the_start(case, math.sqrt(size / here))
    if gap - wide > STRONG:
        return warning(
            title=f"The batch of {here} is small for batch norm",
            evidence=(shown,),
            meaning="The noise of the batch statistics is a large part of the loss.",
            advice="Use larger batches, group norm, or layer norm.",
        )
    if gap + wide > STRONG:
        return note(
            title=f"The batch of {here} may be small for batch norm",
            evidence=(shown,),
            meaning="The effect of the noise of batch statistics is not known well enough to tell.",
            advice=f"ns.bn_regularization(model, data, loss, batch_size={here}) measures it on "
            "more data.",
        )
    if (weak := _penalty(case, size / here)).value < WEAK:
        return note(
            title=f"At batch size {here} batch norm adds almost no regularization",
            evidence=(weak, shown),
            meaning="The batch statistics are close to those of all the data.",
            advice="If you need the regularization of smaller batches, gamma decay can replace it: "
            "ns.bn_regularization(...).restoring_decay(small, large).",
        )
    title = f"The batch of {here} is neither too small nor too large for batch norm"
    return ok(
        title=title,
        evidence=(shown,),
        meaning="The noise of the batch statistics regularizes moderately.",
    )


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
    name = f"relative variation of the standard deviation over batches of {here}"
    shown = (Evidence(name, noise, NOISY),)
    if noise <= NOISY and here >= FEW:
        meaning = "Their effect on the loss shows after some training."
        return ok(
            title=f"The statistics of batches of {here} vary little",
            evidence=shown,
            meaning=meaning,
        )
    title = f"The statistics of batches of {here} vary by {noise:.0%}"
    if noise <= NOISY:
        title = f"Batches of {here} samples are small for batch norm"
        shown = (Evidence("samples in a batch", here, FEW),)
    return note(
        title=title,
        evidence=shown,
        meaning="At the start the loss does not show it. After some training it probably will.",
        advice="Train for some steps and examine again, or use larger batches, group norm, or "
        "layer norm.",
    )
