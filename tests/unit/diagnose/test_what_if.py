"""what_if: before and after, honest about what cannot be made, and without a trace."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from test_learning_rate import regression
from torch import nn

import normscope as ns
from fingerprints import fingerprint
from normscope.diagnose import findings_of
from normscope.diagnose.what_if import promising_changes, what_if
from normscope.errors import InputError
from normscope.measure.probes.layout import norm_layout
from normscope.record import Record
from normscope.results import StabilityBound, Variant, WhatIf
from normscope.results.key_numbers import key_numbers
from normscope.subject.transforms import Transform, parse_transform

QUICK = {"steps": 8, "tol": 1.0}


def net(norm="batch"):
    return ns.network("mlp:64-16-16-10", norm=norm)


def test_a_smaller_gamma_flattens():
    found = what_if(net(), "digits", ["gamma=0.1", "gamma=1"], limits=False)
    before, small, same = found
    assert [v.change for v in found] == ["as it is", "gamma=0.1", "gamma=1"]
    assert small.lambda_max < before.lambda_max
    assert found.curvature_ratio(small) == before.lambda_max / small.lambda_max
    assert same.lambda_max == before.lambda_max
    assert same.kappa == before.kappa
    for variant in found:
        assert variant.threshold == pytest.approx(2 / variant.lambda_max)
        assert variant.diverges is None
        assert math.isnan(variant.reached)
        assert variant.kappa >= 1
        assert variant.kappa_layer in ("layer1", "layer2")


def test_each_change_starts_from_the_network_as_it_is():
    found = what_if(net(), "digits", ["gamma=0.1", ["gamma=0.1", "gamma=1"]], limits=False)
    assert found["gamma=0.1, gamma=1"].lambda_max == found.before.lambda_max


def test_what_does_not_change_the_curvature_does_not_change_the_limit():
    """A linear model: its Hessian does not depend on the weights."""
    model, data = regression(curvatures=(4.0, 1.0))
    model.weight.data.fill_(0.5)
    found = what_if(model, data, ["scale-weights=3"], "mse", batch_size=64, steps=30, tol=0.02)
    for variant in found:
        assert variant.threshold == pytest.approx(0.5, rel=1e-3)
        # bisection errs upwards, by less than 1 %
        assert variant.diverges.low / 1.01 <= 0.5 <= variant.diverges.high
    gain, low, high = found.limit_ratio(found.after[0], "diverges")
    assert low <= 1 <= high
    assert gain == pytest.approx(1, rel=0.05)
    assert found.curvature_ratio(found.after[0]) == pytest.approx(1, rel=1e-3)


def test_momentum_counts_in_the_threshold_and_adam_has_none():
    plain, heavy, adam = (
        what_if(net(), "digits", ["gamma=1"], limits=False, **options).before.threshold
        for options in ({}, {"momentum": 0.9}, {"optimizer": "adam"})
    )
    assert heavy == pytest.approx(1.9 * plain)
    assert math.isnan(adam)


def test_limits_before_and_after_with_intervals():
    found = what_if(net(), "digits", ["remove-norms"], **QUICK)
    after = found["remove-norms"]
    for variant in found:
        assert 0 < variant.does_not_learn.low < variant.does_not_learn.high < math.inf
        assert variant.reached < variant.loss
        assert variant.reached_lr <= variant.diverges.high
    gain, low, high = found.limit_ratio(after)
    assert low <= gain <= high
    assert gain == pytest.approx(after.does_not_learn.lr / found.before.does_not_learn.lr)
    assert high < 1  # without its norms the network bears less
    assert found.best is None


def test_what_cannot_be_made_has_a_row_with_the_reason():
    def broken(model, edit):
        edit.replace(model[1], nn.Linear(3, 3))

    found = what_if(
        net(), "digits", ["bogus", "gamma=0.5", Transform("breaks", broken), "freeze:nowhere"],
        limits=False,
    )  # fmt: skip
    assert [v.made for v in found] == [True, False, True, False, False]
    assert "Unknown transform 'bogus'" in found["bogus"].reason
    assert found["breaks"].reason
    assert found["freeze:nowhere"].reason
    frame = found.to_frame()
    assert list(frame["change"]) == ["as it is", "bogus", "gamma=0.5", "breaks", "freeze:nowhere"]
    assert frame["lambda_max"].isna().tolist() == [False, True, False, True, True]
    text = found.summary()
    assert "bogus: Unknown transform" in text
    assert "gamma=0.5" in text


def test_changes_are_read_from_the_data():
    """A model that takes no single tensor, and batches that only a function can take apart."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x, *, shift):
            return self.head(torch.relu(self.body(x + shift)))

    batch = {"x": torch.randn(16, 6), "shift": torch.zeros(6), "y": torch.randint(3, (16,))}
    found = what_if(
        Two(), [batch], ["norm-before-last", "norm-output"], "cross_entropy", limits=False,
        outputs_fn=lambda model, b: (model(b["x"], shift=b["shift"]), b["y"]),
    )  # fmt: skip
    assert all(variant.made for variant in found)


def test_nothing_that_can_be_made_is_an_error():
    with pytest.raises(InputError, match=r"None of the changes.*bogus.*remove-norms"):
        what_if(net(None), "digits", ["bogus", "remove-norms"], limits=False)
    with pytest.raises(InputError, match="empty"):
        what_if(net(), "digits", [])


def test_one_change_need_not_be_a_list():
    for change in ("gamma=0.1", parse_transform("gamma=0.1")):
        assert len(what_if(net(), "digits", change, limits=False).after) == 1


def test_promising_changes_by_default():
    found = what_if(net(), "digits", limits=False)
    layout = norm_layout(net(), "digits")
    assert [v.change for v in found.after] == list(promising_changes(layout, samples=256))
    assert all(v.made for v in found.after)
    plain = what_if(net(None), "digits", limits=False)
    assert "scale-weights=0.5" in [v.change for v in plain.after]
    assert all(v.made for v in plain.after)


def test_promising_changes_follow_the_layout():
    def names(samples=None, **options):
        model = ns.network("mlp:64-16-16-10", **options)
        return promising_changes(norm_layout(model, "digits"), samples=samples)

    assert names() == ("norm-before-last", "norm-output", "gamma=0.1")
    assert "gamma=1.5" in names(gamma=3.0)
    assert names(gamma=0.05) == ("norm-before-last", "norm-output")  # smaller already
    assert "replace:batch->group" in names(samples=4)
    assert "replace:batch->group" not in names(samples=4, norm="layer")
    assert names(extra_norms="output") == ("gamma=0.1",)
    assert names(norm=None) == ("norm-before-last", "norm-output", "scale-weights=0.5")


def test_a_loss_of_model_and_batch():
    def step(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    data = ns.load_data("digits").subset(64)
    batches = [{"x": data.images.double(), "y": data.labels}]
    found = what_if(net().double(), batches, loss_fn=step, limits=False)
    assert found.before.lambda_max > 0
    assert found.after[0].made


def test_time_that_is_up_is_said(machine):
    found = what_if(net(), "digits", ["gamma=0.1"], max_seconds=1e-3)
    assert all("max_seconds are used up" in v.reason for v in found)
    assert found.before.lambda_max > 0
    assert found.before.diverges is None
    assert not found.after[0].made


@pytest.mark.parametrize("changes", [["gamma=0.1", "bogus"], ["bogus"]])
def test_nothing_of_the_model_is_changed(changes):
    model = ns.network("mlp:64-16-16-10", dropout=0.2)
    model(torch.randn(8, 64)).sum().backward()
    model[1].eval()
    before = fingerprint(model)
    if changes == ["bogus"]:
        with pytest.raises(InputError):
            what_if(model, "digits", changes, **QUICK)
    else:
        what_if(model, "digits", changes, **QUICK)
    assert fingerprint(model) == before


# the record


def variant(change, lam, low, high, reached=0.1, learned=True, noise=0.02, **fields):
    limit = StabilityBound("does-not-learn", low, high)
    return Variant(
        change, loss=2.3, lambda_max=lam, lambda_error=0.0, threshold=2 / lam, diverges=limit,
        does_not_learn=limit, learned=learned, reached=reached, reached_lr=low, kappa=10.0,
        **({"finals": tuple(reached * (1 + noise * k) for k in (-1, 0, 1))} | fields),
    )  # fmt: skip


def table(*after):
    return WhatIf((variant("as it is", 60.0, 0.9, 1.1), *after), 1.0)


def test_the_best_reaches_a_lower_loss_for_certain():
    sure = variant("sure", 60.0, 0.2, 0.3, reached=0.07)
    unsure = variant("unsure", 60.0, 2.0, 2.2, reached=0.06, noise=0.4)
    assert table(unsure, sure).best is sure
    assert table(variant("faster", 60.0, 2.0, 2.2)).best is None  # at the same loss
    assert table(variant("slightly", 60.0, 2.0, 2.2, reached=0.09)).best is None
    assert table(variant("deaf", 60.0, 2.0, 2.2, reached=0.07, learned=False)).best is None
    two = variant("two seeds", 60.0, 2.0, 2.2, reached=0.07, finals=(0.07, 0.07))
    assert table(two).best is None
    failed = variant("diverged", 60.0, 2.0, 2.2, reached=0.07, finals=(0.07, 0.07, math.inf))
    assert table(failed).best is None


def test_the_interval_of_losses_is_students():
    """Over seeds 0.5, 0.7 and 0.6 of 1: by hand, t = 4.303 for two degrees of freedom."""
    after = variant("after", 60.0, 1.0, 1.1, finals=(0.5, 0.7, 0.6))
    before = dataclasses.replace(table().before, finals=(1.0, 1.0, 1.0))
    value, low, high = WhatIf((before, after), 1.0).loss_ratio(after)
    logs = np.log([0.5, 0.7, 0.6])
    half = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
    assert value == pytest.approx(math.exp(logs.mean()))
    assert (low, high) == pytest.approx((value * math.exp(-half), value * math.exp(half)), rel=1e-5)


def test_gain_and_price_stand_in_one_sentence():
    cheap = variant("cheap", 60.0, 0.18, 0.22, reached=0.05)
    found = table(cheap)
    [line] = [line for line in found.summary().splitlines() if line.startswith("best: ")]
    assert "0.5 [" in line
    assert "3 paired seeds" in line
    assert "largest stable learning rate 0.2 [" in line
    [one] = [f for f in findings_of({"what_if": found}, {}) if f.rule == "promising-change"]
    assert found.gain_in_words(cheap) in one.title
    shown = {e.quantity: e for e in one.evidence}["lowest loss reached, after / before"]
    [tile] = [n for n in key_numbers(found) if n.quantity.startswith("loss reached")]
    assert (tile.value, tile.low, tile.high) == (shown.value, shown.low, shown.high)


def test_ratios_that_differ_are_called_out():
    """60 times flatter, and the limit where it was: a factor 60 between the two."""
    found = table(variant("flat", 1.0, 0.9, 1.1), variant("alike", 30.0, 1.8, 2.2))
    flat, alike = found.after
    assert found.curvature_ratio(flat) == 60
    assert found.limit_ratio(flat)[0] == pytest.approx(1)
    assert found.disagreement(flat) == pytest.approx(60)
    assert found.disagreement(alike) == pytest.approx(1)
    assert len(found.notes) == 1
    assert "differ by a factor 60" in found.notes[0]
    assert "differ by a factor 60" in found.summary()


def test_where_nothing_learned_divergence_is_compared():
    deaf = StabilityBound("does-not-learn", 0.0, 1.1)
    before = dataclasses.replace(variant("as it is", 60.0, 0.9, 1.1), does_not_learn=deaf)
    found = WhatIf((before, variant("calm", 60.0, 1.8, 2.2)), 1.0)
    assert found.limit_ratio(found["calm"])[0] == pytest.approx(2)
    assert math.isnan(found.limit_ratio(found["calm"], "does-not-learn")[0])


def test_no_curvature_bounds_adam():
    flat = variant("flat", 1.0, 0.9, 1.1)
    adam = dataclasses.replace(flat, threshold=math.nan)
    assert table(flat).disagreement(flat) == pytest.approx(60)
    assert math.isnan(table(adam).disagreement(adam))
    assert table(adam).notes == ()


def test_what_never_learned_bears_no_rate():
    deaf = variant("deaf", 60.0, 1.8, 2.2, learned=False)
    assert math.isnan(table(deaf).limit_ratio(deaf)[0])
    assert table(deaf).limit_ratio(deaf, "diverges")[0] == pytest.approx(2)


def test_a_real_network_whose_ratios_differ():
    found = what_if(net(), "digits", ["norm-output"], steps=20, tol=0.5)
    assert found.disagreement(found.after[0]) > 3
    assert any("trust the training runs" in note for note in found.notes)


def test_a_larger_rate_that_leads_to_a_higher_loss_is_no_gain():
    """Outputs of unit variance bear any rate, and are never sure of a class."""
    torch.manual_seed(0)
    hidden = [(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU()) for _ in range(4)]
    net = nn.Sequential(nn.Flatten(), *itertools.chain(*hidden), nn.Linear(64, 10))
    found = what_if(net, "digits", ["norm-output"], tol=0.5)
    [after] = found.after
    assert found.limit_ratio(after)[1] > 3  # for certain
    assert after.learned
    assert after.reached > found.before.reached
    assert found.best is None
    assert all(len(v.finals) == 3 for v in found)
    assert found.loss_ratio(after)[2] > 1


def test_record_round_trip_and_access():
    found = table(variant("flat", 1.0, 0.9, 1.1), Variant("bogus", reason="unknown"))
    assert Record.from_json(found.to_json()) == found
    assert found["flat"].change == "flat"
    assert found.before.change == "as it is"
    assert not found["bogus"].made
    assert math.isnan(found.disagreement(found["bogus"]))
    with pytest.raises(InputError, match="flat"):
        found["flatt"]
    assert "2 changes" in repr(found)
