"""A training run as a trial is the run that fit and evaluate make."""

import math

import pytest
import torch

import normscope as ns
from normscope.errors import InputError
from normscope.train import TRAINING, training_trial
from normscope.train.trial import check_settings, checksum_of, spec_of

SETTINGS = {"network": "mlp:64-20-10", "data": "digits", "lr": 0.1, "steps": 8}


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def test_it_is_fit_and_evaluate():
    options = {"norm": "batch", "gamma": 0.5, "bias_variance": 0.5}
    found = training_trial(
        **SETTINGS, **options, loss="mse", momentum=0.9, batch_size=64, seed=3, samples=500
    )
    model = ns.build(ns.mlp([64, 20, 10], **options), 3)
    data = ns.load_data("digits").subset(500)
    run = ns.fit(model, data, "mse", lr=0.1, momentum=0.9, steps=8, batch_size=64, seed=3)
    judged = ns.evaluate(model, ns.load_data("digits", "test"), "mse")
    assert found.initial_loss == run.initial_loss
    assert found.test_loss == pytest.approx(judged.loss, rel=1e-6)
    assert found.test_accuracy == judged.accuracy
    assert found.final_loss == pytest.approx(float(run.losses[-2:].mean()))
    assert (found.updates, found.diverged, found.diverged_at) == (8, False, None)


def test_chance_and_learning():
    found = training_trial(**SETTINGS | {"steps": 60}, norm="batch")
    assert found.chance == pytest.approx(math.log(10), rel=2e-3)
    assert found.learned
    stuck = training_trial(**SETTINGS | {"lr": 1e-9}, norm="batch", loss="mse")
    assert stuck.chance == pytest.approx(0.45, rel=1e-3)
    assert not stuck.learned


def test_divergence_is_a_result_with_its_step():
    found = training_trial(**SETTINGS | {"lr": 1e3, "steps": 50}, loss="mse")
    assert found.diverged
    assert found.updates == found.diverged_at < 50
    assert math.isnan(found.test_loss)
    assert not found.learned


def test_only_weights_are_trained_if_asked_for():
    every = training_trial(**SETTINGS, norm="batch", loss="mse")
    weights = training_trial(**SETTINGS, norm="batch", loss="mse", trained="weights")
    assert every.initial_loss == weights.initial_loss
    assert every.final_loss != weights.final_loss


def test_a_network_of_the_zoo():
    found = training_trial(network="mlp:64-20-10", data="digits", lr=0.1, epochs=1, norm="batch")
    assert found.updates == 12
    with pytest.raises(InputError, match="weight_variance is a setting of mlp:"):
        training_trial(network="resnet8", data="digits", lr=0.1, steps=1, weight_variance=2.0)
    assert spec_of({"network": "resnet8"}) is None


def test_other_data_are_refused():
    assert training_trial(**SETTINGS, data_checksum=checksum_of(SETTINGS)).updates == 8
    with pytest.raises(InputError, match="has the checksum"):
        training_trial(**SETTINGS, data_checksum="00000000")
    assert checksum_of(SETTINGS | {"samples": 100}) != checksum_of(SETTINGS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"netwrk": "a"}, "Did you mean 'network'"),
        ({"steps": None}, "exactly one of epochs= and steps="),
        ({"network": "mlp"}, "has no sizes"),
        ({"network": "resnet7"}, "."),
        ({"data": "minst"}, "Did you mean 'mnist'"),
        ({"loss": "squared"}, "Unknown loss"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"trained": "some"}, "Unknown set of trained parameters"),
        ({"norm": "bach"}, "batch"),
        ({"stride": 2}, "stride is an option of cnn"),
    ],
)
def test_bad_settings_are_found_before_any_trial(change, said):
    with pytest.raises(InputError, match=said):
        check_settings(SETTINGS | change)


def test_a_long_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, monkeypatch):
    """Killed after a checkpoint and started again, it gives the record of an undisturbed run."""
    from normscope.train.checkpoint import Checkpoint

    settings = SETTINGS | {"steps": 30, "norm": "batch", "loss": "mse", "momentum": 0.9}
    whole = training_trial(**settings, checkpoint=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()  # too short to be worth a file
    monkeypatch.setattr(Checkpoint, "SECONDS", -1.0)  # every moment is a minute later
    saves, save = [], Checkpoint.save

    def killed(self, state):
        save(self, state)
        saves.append(state["place"][0])
        if len(saves) == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        training_trial(**settings, checkpoint=tmp_path / "state")
    assert saves[-1] == 7
    assert training_trial(**settings, checkpoint=tmp_path / "state") == whole
    assert saves[7] == 8


def test_the_trial_can_be_swept(tmp_path):
    found = ns.sweep(TRAINING, SETTINGS | {"lr": [0.1, 0.2]}, output=tmp_path, workers=1)
    direct = training_trial(**SETTINGS)
    assert direct in found.records().values()
