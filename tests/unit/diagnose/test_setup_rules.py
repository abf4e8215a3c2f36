"""Rules about a set-up: just below and above each line, and on networks that have the defect."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from normscope.diagnose import examine, findings_of
from normscope.results import (
    DataCard,
    LossCall,
    NormScale,
    ParameterUse,
    Rung,
    SignalScale,
    Start,
    Trial,
    Wiring,
)
from normscope.results.start import Entropy, Gates
from normscope.results.wiring import Held

CALL = LossCall("cross_entropy", "mean", "Addmm", (64, 10), (64,), -1.0, 1.0, 0.5, 0.5, 0.0,
                log_sum=2.5)  # fmt: skip
SQUARED = replace(CALL, kind="squared", shape=(64, 1), target_shape=(64, 1), target_low=-1.0,
                  target_high=1.0, target_rms=0.5)  # fmt: skip
WEIGHT = ParameterUse("0.weight", 1000, True, True, 1.0, 0.1)
SPARE = replace(WEIGHT, name="1.weight", size=0)
LAYER = SignalScale("0", "linear", "linear", 1, False, 0.5, 0.5, 1.0, 1.0, gain=0.6)
LAST = replace(LAYER, name="2", number=2)
NORM = NormScale("1", "LayerNorm", 12, True, False, 1e-5, 1.0, 1.0)
DATA = DataCard(512, 8, 1.0, 0.1, 0.5, 0, 1.0, 0.0, 0.0, 500.0, False, 10, 10.0, 10, 64, 0.0)
HELD = Held("SGD", ("0.weight", "1.weight"), 0, 0.1)
WIRING = Wiring(2.3, (CALL,), (WEIGHT, SPARE), HELD, mixing=0.0, leak=0.0, doubling=1.0, samples=64)
START = Start((LAYER, LAST), samples=64)


def trial(after, before=2.3, constant=2.3):
    return Trial(0.1, constant, math.nan, before, (Rung(1.0, 25, 25, before, after),))


GOOD, STUCK = trial(1.5), trial(2.2995)
LONG = replace(GOOD, rungs=(*trial(2.31).rungs, Rung(1.0, 100, 100, 2.3, 2.31)))


def severity(rule, *, judged=None, wiring=WIRING, start=START, data=DATA, lr=0.1):
    """How severe what one rule says is; "" if it says nothing."""
    results = {"wiring": wiring, "start": start, "data": data}
    if judged is not None:
        results["trial"] = judged
    settings = {"batch": 64, "chance": 2.3, "lr": lr}
    return next((f.severity for f in findings_of(results, settings) if f.rule == rule), "")


def call(**changes):
    return replace(WIRING, calls=(replace(CALL, **changes),))


def squared(**changes):
    return replace(WIRING, calls=(replace(SQUARED, **changes),))


def spare(share, **changes):
    """Such a share of the parameters is different."""
    rest = replace(WEIGHT, size=round(1e6 * (1 - share)))
    return replace(WIRING, parameters=(rest, replace(SPARE, size=round(1e6 * share), **changes)))


def signal(**changes):
    return replace(START, signals=(replace(LAYER, **changes), LAST))


def norm(**changes):
    return replace(START, norms=(replace(NORM, **changes),))


def decayed(pull=0.0, decay=0.1, momentum=0.0, *, coupled=True):
    held = replace(HELD, decays={"0.weight": decay}, coupled=coupled, momentum=momentum)
    used = replace(WEIGHT, decay=decay, weight=pull / decay, gradient=1.0)
    return replace(WIRING, parameters=(used,), optimizer=held)


def by_heart(held, on_all=None, *, most=False):
    """Only the samples that are trained on get better; ``on_all``: others, with all of the data."""
    own = replace(trial(1.5).rungs[0], held=held)
    rungs = (own,) if on_all is None else (own, replace(own, held=on_all, fresh=True))
    more = {"held": 2.3, "held_constant": 2.3, "fresh": True, "most": most}
    return replace(trial(1.5), rungs=rungs, **more)


def collapsed(spread):
    return replace(trial(1.5), rungs=(replace(trial(1.5).rungs[0], spread=spread),), spread=0.2)


ATTENTIVE = replace(START, attention=(Entropy("a", 0.9),))
LINES = [
    # rule, what is below, above, and what that is
    ("not-finite", {}, {"wiring": replace(WIRING, loss=math.nan)}, "problem"),
    ("not-finite", {}, {"wiring": spare(0.1, finite=False)}, "problem"),
    ("broadcast-loss", {"wiring": squared()}, {"wiring": squared(target_shape=(64,))}, "warning"),
    ("softmax-twice", {}, {"wiring": call(made_by="Softmax")}, "warning"),
    ("softmax-twice", {}, {"wiring": call(simplex=True)}, "warning"),
    ("softmax-twice", {"wiring": call(kind="logits")},
     {"wiring": call(kind="logits", made_by="Sigmoid")}, "warning"),
    ("log-softmax-missing", {"wiring": call(kind="nll", log_sum=0.0099)},
     {"wiring": call(kind="nll", log_sum=0.0101)}, "warning"),
    ("output-range", {"wiring": squared(made_by="Sigmoid", target_low=-0.049, target_high=0.95)},
     {"wiring": squared(made_by="Sigmoid", target_low=-0.051, target_high=0.95)}, "warning"),
    ("output-range", {}, {"wiring": call(made_by="Relu")}, "warning"),
    ("summed-loss", {"wiring": replace(WIRING, doubling=1.89)},
     {"wiring": replace(WIRING, doubling=1.91)}, "note"),
    ("summed-loss", {"wiring": replace(WIRING, doubling=2.0), "judged": GOOD},
     {"wiring": replace(WIRING, doubling=2.0), "judged": STUCK}, "warning"),
    ("unregistered-layers", {}, {"wiring": replace(WIRING, unregistered=1)}, "warning"),
    ("missing-in-optimizer", {"wiring": spare(0.0019, held=False)},
     {"wiring": spare(0.0021, held=False)}, "warning"),
    ("no-gradient", {"wiring": spare(0.0019, gradient=math.nan)},
     {"wiring": spare(0.0021, gradient=math.nan)}, "warning"),
    ("no-gradient", {"wiring": spare(0.49, gradient=math.nan, used=False)},
     {"wiring": spare(0.51, gradient=math.nan, used=False)}, "warning"),
    ("frozen-parameters", {"wiring": spare(0.49, trainable=False), "judged": STUCK},
     {"wiring": spare(0.51, trainable=False), "judged": STUCK}, "warning"),
    ("zero-gradient", {"wiring": spare(0.099, cut=True)}, {"wiring": spare(0.101, cut=True)},
     "warning"),
    ("samples-mix", {"wiring": replace(WIRING, mixing=0.9e-3)},
     {"wiring": replace(WIRING, mixing=1.1e-3)}, "warning"),
    ("samples-mix", {"wiring": replace(WIRING, mixing=0.5, across=0.0)},
     {"wiring": replace(WIRING, mixing=0.5, across=0.1)}, "warning"),
    ("samples-mix", {}, {"wiring": replace(WIRING, mixing=0.5, mixing_by="1")}, "warning"),
    ("output-operation", {"wiring": call(kind="poisson")},
     {"wiring": call(kind="poisson", made_by="Exp")}, "warning"),
    ("output-operation", {}, {"wiring": call(made_by="Dropout")}, "warning"),
    ("output-range", {"wiring": squared(made_by="Hardtanh", zeros=0.9)},
     {"wiring": squared(made_by="Hardtanh", zeros=1.0)}, "warning"),
    ("unbounded-loss", {"wiring": replace(WIRING, falling=2.4)},
     {"wiring": replace(WIRING, falling=2.6)}, "warning"),
    ("padding-counts", {"wiring": replace(WIRING, padded=0.29)},
     {"wiring": replace(WIRING, padded=0.31)}, "warning"),
    ("loss-terms", {"wiring": replace(WIRING, loss=2.3 + 50.0, calls=(
        replace(CALL, value=2.3), replace(SQUARED, value=50.0)))},
     {"wiring": replace(WIRING, loss=2.3 + 60.0, calls=(
        replace(CALL, value=2.3), replace(SQUARED, value=60.0)))}, "warning"),
    ("loss-terms", {"wiring": replace(WIRING, loss=2.3 + 0.02, calls=(
        replace(CALL, value=2.3), replace(SQUARED, value=0.02)))},
     {"wiring": replace(WIRING, loss=0.02 + 2.3, calls=(
        replace(CALL, value=0.02), replace(SQUARED, value=2.3)))}, "warning"),
    ("class-weights", {"wiring": call(weights=(1.0, 2.0)), "data": replace(DATA, counts=(90, 30))},
     {"wiring": call(weights=(4.0, 1.0)), "data": replace(DATA, counts=(90, 30))}, "warning"),
    ("standardized-rows", {}, {"data": replace(DATA, by_row=True)}, "warning"),
    ("input-scale", {"data": replace(DATA, rms=0.9e4), "judged": GOOD},
     {"data": replace(DATA, rms=1.1e4), "judged": GOOD}, "warning"),
    ("input-scale", {"data": DataCard()},
     {"data": DataCard(), "start": signal(rms_in=21.0)}, "warning"),
    ("recurrent-weights", {"start": replace(START, recurrent=(Gates("0", 0.0, recurrent=0.3),))},
     {"start": replace(START, recurrent=(Gates("0", 0.0, recurrent=0.1),))}, "warning"),
    ("last-batch", {"data": replace(DATA, last=2), "start": norm(over_batch=True, values=64)},
     {"data": replace(DATA, last=1), "start": norm(over_batch=True, values=64)}, "warning"),
    ("shared-norm", {"start": norm(over_batch=True, values=64)},
     {"start": replace(START, norms=tuple(replace(NORM, name=n, over_batch=True)
                                          for n in ("1", "1#2", "1#3")))}, "warning"),
    ("frozen-parameters", {"wiring": spare(0.1, trainable=False, held=False), "judged": GOOD},
     {"wiring": spare(0.1, trainable=False, held=False, table=True), "judged": GOOD}, "warning"),
    ("zero-gradient", {"wiring": spare(0.2, weight=0.0, gradient=0.0), "judged": GOOD},
     {"wiring": spare(0.2, weight=0.0, gradient=0.0),
      "judged": replace(GOOD, unmoved=("1.weight",))}, "warning"),
    ("tokens-leak", {"wiring": replace(WIRING, leak=0.9e-3)},
     {"wiring": replace(WIRING, leak=1.1e-3)}, "warning"),
    ("norm-axis", {"start": norm(values=3)}, {"start": norm(values=2)}, "warning"),
    ("norm-axis", {"start": norm(values=2, over_batch=True)},
     {"start": norm(values=1, over_batch=True)}, "warning"),
    ("norm-axis", {"start": norm()}, {"start": norm(axis="width")}, "warning"),
    ("sorted-data", {"data": replace(DATA, sorting=0.29)}, {"data": replace(DATA, sorting=0.31)},
     "warning"),
    ("sorted-data", {"data": replace(DATA, batches=1, labels=3)},
     {"data": replace(DATA, batches=1, labels=2)}, "warning"),
    ("sorted-data", {"data": replace(DATA, batches=1, labels=2, batch=19)},
     {"data": replace(DATA, batches=1, labels=2, batch=20)}, "warning"),
    ("sorted-data", {}, {"data": replace(DATA, labels=1)}, "warning"),
    ("repeated-samples", {"data": replace(DATA, duplicates=0.29)},
     {"data": replace(DATA, duplicates=0.31)}, "warning"),
    ("repeated-samples", {"data": replace(DATA, duplicates=0.89, tokens=True)},
     {"data": replace(DATA, duplicates=0.91, tokens=True)}, "warning"),
    ("repeated-samples", {"data": replace(DATA, duplicates=0.9, replacement=True)},
     {"data": replace(DATA, duplicates=0.91, replacement=True)}, "warning"),
    ("repeated-samples", {"data": replace(DATA, duplicates=0.9, bits=23.0)},
     {"data": replace(DATA, duplicates=0.9, bits=24.0)}, "warning"),
    ("constant-inputs", {}, {"data": replace(DATA, variation=0.0)}, "warning"),
    ("feature-scale", {"data": replace(DATA, feature_ratio=99.0)},
     {"data": replace(DATA, feature_ratio=101.0)}, "warning"),
    ("input-scale", {"data": replace(DATA, rms=19.9)}, {"data": replace(DATA, rms=20.1)},
     "warning"),
    ("input-scale", {"data": replace(DATA, rms=0.021)}, {"data": replace(DATA, rms=0.019)},
     "warning"),
    ("input-scale", {"data": replace(DATA, offset=9.9)}, {"data": replace(DATA, offset=10.1)},
     "warning"),
    ("target-scale", {"wiring": squared(target_rms=19.9)}, {"wiring": squared(target_rms=20.1)},
     "warning"),
    ("target-scale", {"wiring": squared(target_rms=0.011)}, {"wiring": squared(target_rms=0.009)},
     "warning"),
    ("weak-norms", {"start": norm(eps=0.49)}, {"start": norm(eps=0.51)}, "warning"),
    ("large-weights", {"start": signal(gain=3.9)}, {"start": signal(gain=4.1)}, "warning"),
    ("large-weights", {"start": signal(kind="embedding", rms=9.9, gain=math.nan)},
     {"start": signal(kind="embedding", rms=10.1, gain=math.nan)}, "warning"),
    ("small-weights", {"start": signal(gain=0.11)}, {"start": signal(gain=0.09)}, "warning"),
    ("small-weights", {"start": replace(signal(gain=0.09), norms=(NORM,)), "judged": STUCK},
     {"start": replace(signal(gain=0.09, variation=0.0), norms=(NORM,)), "judged": STUCK,
      "wiring": call(variation=0.0)}, "warning"),
    ("constant-weights", {}, {"start": signal(same=True)}, "warning"),
    ("saturated-units", {"start": signal(saturated=0.49)}, {"start": signal(saturated=0.51)},
     "warning"),
    ("saturated-gates", {"start": replace(START, recurrent=(Gates("r", 0.49),))},
     {"start": replace(START, recurrent=(Gates("r", 0.51),))}, "warning"),
    ("forget-gates", {"start": replace(START, recurrent=(Gates("r", 0.0, 0.16),))},
     {"start": replace(START, recurrent=(Gates("r", 0.0, 0.14),))}, "warning"),
    ("attention-saturated", {"start": replace(START, attention=(Entropy("a", 0.26),))},
     {"start": replace(START, attention=(Entropy("a", 0.24),))}, "warning"),
    ("positions", {"start": replace(START, positions={"pos": 19.9})},
     {"start": replace(START, positions={"pos": 20.1})}, "warning"),
    ("positions", {"start": replace(START, positions={"exposure": 20.1})},
     {"start": replace(START, positions={"embed_positions": 20.1})}, "warning"),
    ("tiny-outputs", {"wiring": call(rms=0.011)}, {"wiring": call(rms=0.009)}, "warning"),
    ("start-loss", {"judged": trial(6.8, before=6.89)}, {"judged": trial(6.8, before=6.91)},
     "warning"),
    ("weight-decay", {"wiring": decayed(decay=0.099)}, {"wiring": decayed(decay=0.101)},
     "warning"),
    ("weight-decay", {"wiring": decayed(decay=0.0099, momentum=0.9)},
     {"wiring": decayed(decay=0.0101, momentum=0.9)}, "warning"),
    ("weight-decay", {"wiring": decayed(2.9, 1e-3)}, {"wiring": decayed(3.1, 1e-3)}, "warning"),
    ("weight-decay", {"wiring": decayed(9.9, 1e-3), "judged": GOOD},
     {"wiring": decayed(10.1, 1e-3), "judged": GOOD}, "warning"),
    ("weight-decay", {"wiring": decayed(50.0, 1e-3, coupled=False)},
     {"wiring": decayed(50.0, 1e-3)}, "warning"),
    ("ignored-class", {"wiring": call(ignored=0.1)},
     {"wiring": call(ignored=0.1, ignored_label=0)}, "warning"),
    ("ignored-class", {"wiring": call(ignored=0.004, ignored_label=9)},
     {"wiring": call(ignored=0.006, ignored_label=9)}, "warning"),
    ("ignored-class", {}, {"wiring": call(ignored=0.1, ignored_label=0, padding=True)}, "note"),
    ("class-weights", {"wiring": call(uneven=2.9)}, {"wiring": call(uneven=3.1)}, "warning"),
    ("class-weights", {"wiring": call(smoothing=0.49)}, {"wiring": call(smoothing=0.5)},
     "warning"),
    ("target-probabilities", {"wiring": squared(kind="logits", target_low=0.0, target_high=1.009)},
     {"wiring": squared(kind="logits", target_low=0.0, target_high=1.011)}, "warning"),
    ("target-probabilities", {"wiring": call(target_sum=1.0)},
     {"wiring": call(target_sum=2.0)}, "warning"),
    ("target-probabilities", {"wiring": squared(kind="bernoulli", target_low=0.0, simplex=True,
                                                target_sum=1.0)},
     {"wiring": squared(kind="bernoulli", target_low=0.0, simplex=True, target_sum=2.0)},
     "warning"),
    ("rare-class", {"data": replace(DATA, counts=(900, 30)), "judged": LONG},
     {"data": replace(DATA, counts=(900, 15)), "judged": LONG}, "warning"),
    ("rare-class", {"data": replace(DATA, counts=(30, 0, 1)), "judged": LONG},
     {"data": replace(DATA, counts=(900, 15)), "judged": GOOD}, "note"),
    ("bounded-logits", {"wiring": call()}, {"wiring": call(made_by="Tanh")}, "warning"),
    ("bounded-logits", {"wiring": call(bound=1.4)}, {"wiring": call(bound=1.3)}, "warning"),
    ("output-range", {"wiring": call(kind="kl", log_sum=0.0)},
     {"wiring": call(kind="nll", made_by="Relu")}, ""),
    ("log-softmax-missing", {"wiring": call(kind="kl", log_sum=0.0)},
     {"wiring": call(kind="kl", log_sum=0.5)}, "warning"),
    ("loss-sign", {"wiring": call(value=2.3)},
     {"wiring": replace(call(value=2.3), loss=-2.3)}, "problem"),
    ("loss-sign", {}, {"wiring": replace(WIRING, optimizer=replace(HELD, maximizes=True))},
     "problem"),
    ("loss-terms", {"wiring": replace(WIRING, beside=0.89)},
     {"wiring": replace(WIRING, beside=0.91)}, "warning"),
    ("shifted-tokens", {"wiring": replace(WIRING, shift=1)},
     {"wiring": replace(WIRING, shift=2)}, "warning"),
    ("shifted-tokens", {}, {"wiring": replace(WIRING, shift=0)}, "warning"),
    ("shifted-tokens", {}, {"wiring": replace(WIRING, shift=-1)}, "warning"),
    ("momentum", {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.95, 0.95)))},
     {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.999, 0.9)))}, "warning"),
    ("momentum", {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.99, 0.999)))},
     {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.991, 0.999)))}, "warning"),
    ("momentum", {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.9, 0.999), eps=9e-3))},
     {"wiring": replace(WIRING, optimizer=replace(HELD, betas=(0.9, 0.999), eps=0.01))}, "warning"),
    ("random-evaluation", {}, {"wiring": replace(WIRING, dropping=0.1)}, "warning"),
    ("small-statistics", {"start": norm(values=8, over_batch=True)},
     {"start": norm(values=7, over_batch=True)}, "warning"),
    ("frozen-parameters", {"wiring": spare(0.49, trainable=False, initial=True), "judged": GOOD},
     {"wiring": spare(0.51, trainable=False, initial=True), "judged": GOOD}, "warning"),
    ("zero-rate", {}, {"wiring": replace(WIRING, optimizer=replace(HELD, still=0.1))}, "warning"),
    ("linear-network", {"wiring": replace(WIRING, linear=1.1e-4)},
     {"wiring": replace(WIRING, linear=0.9e-4)}, "warning"),
    ("token-order", {"wiring": replace(WIRING, ordered=1.1e-4), "start": ATTENTIVE},
     {"wiring": replace(WIRING, ordered=0.9e-4), "start": ATTENTIVE}, "warning"),
    ("token-order", {}, {"wiring": replace(WIRING, ordered=0.0)}, ""),
    ("no-gradient", {"wiring": spare(0.1, gradient=math.nan, used=False)},
     {"wiring": spare(0.1, gradient=math.nan, used=False, name="pos.weight")}, "warning"),
    ("no-gradient", {"wiring": spare(0.1, gradient=math.nan, used=False)},
     {"wiring": spare(0.1, gradient=math.nan, used=False, name="embed_positions.weight")},
     "warning"),
    ("target-in-inputs", {}, {"data": replace(DATA, given_away=3)}, "warning"),
    ("image-layout", {}, {"data": replace(DATA, scrambled=True)}, "warning"),
    ("labels-do-not-fit", {"judged": by_heart(2.27, most=True)},
     {"judged": by_heart(2.28, most=True)}, "warning"),
    ("labels-do-not-fit", {"judged": by_heart(2.6)}, {"judged": by_heart(2.6, most=True)},
     "warning"),
    ("labels-do-not-fit", {"judged": by_heart(2.6, 2.27)}, {"judged": by_heart(2.6, 2.28)},
     "warning"),
    ("labels-do-not-fit", {"judged": by_heart(2.1, 2.3)}, {"judged": by_heart(2.2, 2.3)},
     "warning"),
    ("labels-do-not-fit", {"judged": by_heart(2.6, 2.3), "data": replace(DATA, labels=0)},
     {"judged": by_heart(2.6, 2.3)}, "warning"),
    ("loss-below-zero", {"judged": trial(-0.3)},
     {"judged": replace(trial(-0.3), limitless=True)}, "warning"),
    ("collapse", {"judged": collapsed(0.0041), "wiring": replace(WIRING, calls=())},
     {"judged": collapsed(0.0039), "wiring": replace(WIRING, calls=())}, "warning"),
    ("collapse", {}, {"judged": collapsed(0.003)}, ""),  # classes are learned by their shares first
    ("dropout", {"start": replace(START, dropout=0.84)}, {"start": replace(START, dropout=0.85)},
     "warning"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "below", "above", "expected"), LINES)
def test_just_below_and_just_above(rule, below, above, expected):
    assert severity(rule, **below) not in ("warning", "problem")
    assert severity(rule, **above) == expected


@pytest.mark.parametrize("variation", [0.9e-4, 1.1e-4])
def test_a_signal_is_lost_if_it_stays_lost(variation):
    lost = replace(LAYER, name="1", variation=variation)
    end = replace(LAST, variation=0.9e-3)
    start = replace(START, signals=(LAYER, lost, replace(lost, name="3", entering=0.0), end))
    dull = call(variation=0.5e-4)
    expected = "warning" if variation < 1e-4 else "ok"
    assert severity("signal-lost", start=start, wiring=dull) == expected
    assert severity("signal-lost", start=start, wiring=WIRING) == "ok"  # another way leads past
    assert severity("signal-lost", start=start, wiring=dull, judged=GOOD) in ("", "ok")


def test_zero_gamma_and_zero_weights_are_fine_where_something_leads_past_them():
    lost = replace(LAYER, name="1", kind="norm", operation="BatchNorm1d", variation=0.0)
    start = replace(norm(gamma=0.0), signals=(LAYER, lost, LAST))
    start = replace(start, signals=(LAYER, lost, replace(LAST, variation=0.0, entering=0.0)))
    assert severity("zero-gamma", start=start, wiring=call(variation=0.0)) == "warning"
    assert severity("signal-lost", start=start, wiring=call(variation=0.0)) == ""  # its cause is
    assert severity("zero-gamma", start=start) == ""
    zero = replace(START, signals=(replace(LAYER, gain=0.0, variation=0.0), LAST))
    zero = replace(zero, signals=(zero.signals[0], replace(LAST, variation=0.0)))
    assert severity("zero-weights", start=zero, wiring=call(variation=0.0)) == "warning"
    assert severity("zero-weights", start=zero) == ""


@pytest.mark.parametrize(
    ("rule", "changes"),
    [("input-scale", {"data": replace(DATA, rms=100.0)}),
     ("large-weights", {"start": signal(gain=9.0)}),
     ("saturated-units", {"start": signal(saturated=0.9)}),
     ("attention-saturated", {"start": replace(START, attention=(Entropy("a", 0.1),))})],
)  # fmt: skip
def test_guesses_are_notes_where_the_trial_is_clearly_good(rule, changes):
    assert severity(rule, judged=GOOD, **changes) == "note"
    assert severity(rule, judged=STUCK, **changes) == "warning"


@pytest.mark.parametrize(
    ("rule", "changes"),
    [("large-weights", {"start": signal(gain=9.0)}),
     ("saturated-units", {"start": signal(saturated=0.9)}),
     ("attention-saturated", {"start": replace(START, attention=(Entropy("a", 0.1),))}),
     ("weight-decay", {"wiring": decayed(50.0, 1e-3)})],
)  # fmt: skip
def test_trained_networks_hear_nothing_of_their_start(rule, changes):
    assert severity(rule, judged=trial(0.05, before=0.05), **changes) in ("", "ok")


def examined(model, loss="cross_entropy", optimizer=None, **options):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    chosen = torch.optim.SGD(model.parameters(), 0.1) if optimizer is None else optimizer
    return examine(model, (x, torch.arange(64) % 4), loss, optimizer=chosen, **options)


def warned(found):
    return [f.rule for f in found.findings if f.warns]


def net(*end):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), *end)


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        return self.net(x).detach()


def spoiled():
    model = net()
    model[0].weight.data[0, 0] = math.nan
    return model


@pytest.mark.parametrize(
    ("made", "expected"),
    [(net, []), (spoiled, ["not-finite"]), (Detached, ["no-gradient"]),
     (lambda: net(nn.Softmax(1)), ["softmax-twice"])],
)  # fmt: skip
def test_networks_without_a_usable_gradient_are_examined_all_the_same(made, expected):
    torch.manual_seed(0)
    assert warned(examined(made()))[:1] == expected


def test_a_sampler_that_draws_with_replacement_repeats_samples_on_purpose():
    x, weights = torch.randn(400, 12), torch.ones(400)
    weights[:8] = 100.0
    sampler = WeightedRandomSampler(weights, 400)
    balanced = DataLoader(TensorDataset(x, (torch.arange(400) < 8).long()), 64, sampler=sampler)
    copied = DataLoader(TensorDataset(x[:60].repeat(6, 1), torch.arange(360) % 2), 64)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2))
    for loader, expected in ((balanced, "ok"), (copied, "warning")):
        found = examine(model, loader, "cross_entropy", num_batches=5, trial_seconds=0)
        assert found["data"].duplicates > 0.3
        [one] = [f for f in found.findings if f.rule == "repeated-samples"]
        assert one.severity == expected


def test_a_softmax_that_makes_several_labels_share_one_probability():
    torch.manual_seed(0)
    x, y = torch.randn(256, 12), (torch.rand(256, 4) < 0.4).float()
    body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    for last, expected in ((nn.Sigmoid(), ""), (nn.Softmax(dim=1), "warning")):
        loader = DataLoader(TensorDataset(x, y), 64)
        found = examine(nn.Sequential(body, last), loader, nn.BCELoss(), trial_seconds=0)
        assert next((f.severity for f in found.findings if "several" in f.advice), "") == expected


def test_an_optimizer_of_another_model_is_a_finding():
    model, other = net(), net()
    first = examined(model, optimizer=torch.optim.AdamW(other.parameters(), 1e-3)).findings[0]
    assert first.rule == "missing-in-optimizer"
    assert "none of the model's trainable parameters" in first.title
    part = examined(model, optimizer=torch.optim.AdamW(model[2].parameters(), 1e-3)).findings[0]
    assert part.rule == "missing-in-optimizer"
    assert part.layer == "0"


@pytest.mark.parametrize(
    ("rows", "drop", "expected"), [(33, False, 1), (33, True, 0), (64, False, 32)]
)
def test_the_size_of_the_last_batch_of_a_loader(rows, drop, expected):
    data = TensorDataset(torch.randn(rows, 6), torch.arange(rows) % 3)
    loader = DataLoader(data, 32, drop_last=drop)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    found = examine(model, loader, preset="fast", trial_seconds=0)
    assert found["data"].last == expected
    assert ("last-batch" in warned(found)) is (expected == 1)
