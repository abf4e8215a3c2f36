"""Layers that a user has put into evaluation mode stay in it, as they do in training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError
from normscope.measure.probes.layout import norm_layout
from normscope.results import Layout
from normscope.subject.statistics import (
    batch_norms,
    coupling_layers,
    in_words,
    put_in_train_mode,
    set_mode,
)
from normscope.train import fit

FROZEN = "3 of 3 batch norms are in evaluation mode"


def digits():
    data = ns.load_data("digits")
    return data.images.reshape(-1, 1, 8, 8).float(), data.labels


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def freeze_norms(model):
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()


@pytest.fixture(scope="module")
def fine_tuned():
    """A trained network, its batch norms in evaluation mode, and data unlike those of training."""
    torch.manual_seed(0)
    model, (x, y) = cnn(), digits()
    fit(model, (x[:512], y[:512]), "cross_entropy", lr=0.05, momentum=0.9, steps=60, batch_size=64)
    freeze_norms(model)
    return model, (2 * x[:128] + 1, y[:128])


def largest(model, pair, statistics):
    risk = ns.Risk(model, *pair, loss="cross_entropy", statistics=statistics)
    return ns.top_eigenvalues(ns.fisher(risk)).values[0]


def test_curvature_is_that_of_the_frozen_norms(fine_tuned):
    model, pair = fine_tuned
    expected = largest(model, pair, "running")
    found = ns.examine(model, pair, lr=0.05, momentum=0.9)
    assert found["sharpness"].largest == pytest.approx(expected, rel=0.01)
    assert largest(model, pair, "batch") == pytest.approx(expected, rel=0.01)
    assert largest(model, pair, "frozen") == pytest.approx(expected, rel=0.01)
    twin = copy.deepcopy(model).train()  # what was measured before
    assert largest(twin, pair, "batch") < 0.3 * expected


def test_the_convention_says_so(fine_tuned):
    model, pair = fine_tuned
    for statistics in ("batch", "frozen"):
        assert in_words(model, statistics).endswith(f"; {FROZEN}")
    risk = ns.Risk(model, *pair, loss="cross_entropy", statistics="batch")
    assert FROZEN in risk.convention["statistics"]
    assert FROZEN in ns.activations(model, [pair]).convention["statistics"]
    assert "are in evaluation mode" not in in_words(model, "running")
    assert "are in evaluation mode" not in in_words(copy.deepcopy(model).eval(), "batch")
    assert "samples coupled" not in in_words(model, "batch")
    model = copy.deepcopy(model)
    model[1].train()
    said = in_words(model, "batch")
    assert "samples coupled; 2 of 3 batch norms are in evaluation mode" in said


def test_the_suggested_rate_can_be_trained_with(fine_tuned):
    model, pair = fine_tuned
    lr = ns.suggest_lr(model, pair, "cross_entropy", momentum=0.9, steps=15).lr
    run = fit(
        copy.deepcopy(model), pair, "cross_entropy", lr=lr, momentum=0.9, steps=20, divergence=None
    )
    assert np.isfinite(run.losses).all()
    assert run.losses[-1] < 10 * run.losses[0]


def test_training_leaves_frozen_norms_as_they_are(fine_tuned):
    model = copy.deepcopy(fine_tuned[0])
    before = [layer.running_mean.clone() for layer in batch_norms(model).values()]
    fit(model, fine_tuned[1], "cross_entropy", lr=1e-4, steps=2)
    after = [layer.running_mean for layer in batch_norms(model).values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    model.eval()  # the whole model: it is trained as always
    fit(model, fine_tuned[1], "cross_entropy", lr=1e-4, steps=2)
    assert not torch.equal(before[0], model[1].running_mean)
    assert not any(module.training for module in model.modules())


def test_trials_keep_the_modes(fine_tuned):
    """The limit of copies with frozen norms is far below that of copies in train mode."""
    model, pair = fine_tuned
    options = {"steps": 5, "seeds": 1, "tol": 0.5}
    frozen = ns.max_stable_lr(model, pair, "cross_entropy", **options)
    free = ns.max_stable_lr(copy.deepcopy(model).train(), pair, "cross_entropy", **options)
    assert frozen.diverges.lr < 0.3 * free.diverges.lr


def test_dropout_in_evaluation_mode_stays_off():
    x, y = torch.randn(32, 6), torch.randint(3, (32,))
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))
    model[1].eval()
    found = ns.Risk(model, x, y, loss="cross_entropy", statistics="batch")
    plain = nn.functional.cross_entropy(model(x), y).item()
    assert found.value() == pytest.approx(plain, rel=1e-5)
    assert "1 of 1 dropout layers are in evaluation mode" in found.convention["statistics"]
    model[1].train()
    again = ns.Risk(model, x, y, loss="cross_entropy", statistics="batch")
    assert again.value() != pytest.approx(plain, rel=1e-5)
    assert "dropout" not in again.convention["statistics"]


def test_a_model_in_evaluation_mode_is_measured_as_it_is_trained():
    x, y = digits()
    torch.manual_seed(0)
    model = cnn()
    risks = [
        ns.Risk(m, x[:32], y[:32], loss="cross_entropy", statistics="batch")
        for m in (model.eval(), copy.deepcopy(model).train())
    ]
    assert risks[0].value() == risks[1].value()
    assert risks[0].convention == risks[1].convention
    assert coupling_layers(model) == batch_norms(model)


def test_which_layers_couple_the_samples():
    model = nn.Sequential(
        nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3)
    )
    model[0].eval(), model[1].eval()
    assert list(coupling_layers(model)) == ["1", "2"]  # without statistics it uses the batch
    assert list(batch_norms(model)) == ["0", "1", "2"]
    assert list(coupling_layers(model.eval())) == ["0", "1", "2"]
    assert "in evaluation mode" not in in_words(model, "batch")


def test_the_rule_of_modes():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.BatchNorm1d(3))
    model[0].eval()
    put_in_train_mode(model)
    assert [m.training for m in model] == [False, True, True]
    set_mode(model, "batch")
    assert [m.training for m in model] == [False, True, True]
    assert [model[0].track_running_stats, model[2].track_running_stats] == [True, False]
    set_mode(model, "running")
    assert not any(m.training for m in model.modules())
    set_mode(model, "frozen")
    assert all(m.training for m in model.modules())


def test_a_batch_of_one_sample_fits_frozen_norms(fine_tuned):
    model, (x, y) = fine_tuned
    ns.Risk(model, x[:1], y[:1], loss="cross_entropy", statistics="batch")
    fit(copy.deepcopy(model), (x[:1], y[:1]), "cross_entropy", lr=1e-6, steps=1)
    noise = ns.gradient_noise(model, (x[:8], y[:8]), "cross_entropy")
    assert not noise.coupled


# ---- what is said of them


def test_the_layout_knows(fine_tuned):
    model, pair = fine_tuned
    layout = norm_layout(model, [pair])
    assert [norm.frozen for norm in layout.norms] == [True] * 3
    assert not any(norm.over_batch for norm in layout.norms)
    assert layout.to_frame()["frozen"].all()
    assert "3 of them in evaluation mode" in layout.summary()
    trained = norm_layout(copy.deepcopy(model).eval(), [pair])
    assert [norm.frozen for norm in trained.norms] == [False] * 3
    assert all(norm.over_batch for norm in trained.norms)
    assert "evaluation mode" not in trained.summary()
    again = norm_layout(model, [pair], statistics="running")
    assert [norm.frozen for norm in again.norms] == [True] * 3


def test_a_file_of_an_earlier_version_is_read(fine_tuned):
    saved = norm_layout(fine_tuned[0], [fine_tuned[1]]).to_dict()
    for norm in saved["norms"]:
        del norm["frozen"]
    assert not any(norm.frozen for norm in Layout.from_dict(saved).norms)


def test_rules_about_batch_statistics_are_silent(fine_tuned):
    model, pair = fine_tuned
    found = ns.examine(model, pair, preset="standard")
    rules = {finding.rule for finding in found.findings}
    assert not rules & {"running-statistics", "batch-size"}
    reasons = {step.name: step.reason for step in found.plan.steps if step.status == "skipped"}
    assert "evaluation mode" in reasons["regularization"]


def test_regularization_leaves_them_out(fine_tuned):
    model, (x, y) = copy.deepcopy(fine_tuned[0]), fine_tuned[1]
    options = {"batch_size": 8, "num_batches": 4}
    with pytest.raises(InputError, match="evaluation mode"):
        ns.bn_regularization(model, (x, y), "cross_entropy", **options)
    model[4].train()
    found = ns.bn_regularization(model, (x, y), "cross_entropy", **options)
    assert [layer.layer for layer in found.layers] == ["4"]
    assert any("evaluation mode" in note and "1, 7" in note for note in found.notes)
    with pytest.raises(InputError, match="'1' is in evaluation mode"):
        ns.bn_regularization(model, (x, y), "cross_entropy", layers="1", **options)
    whole = ns.bn_regularization(model.eval(), (x, y), "cross_entropy", **options)
    assert len(whole.layers) == 3
    assert not any("evaluation mode" in note for note in whole.notes)
