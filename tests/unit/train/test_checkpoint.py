"""Checkpoints: whole or absent, and only continued by the training they belong to."""

import os
import pickle

import pytest
import torch
from torch import nn

from normscope.data import load_data
from normscope.errors import InputError
from normscope.train import Checkpoint, fit
from normscope.train.checkpoint import config_hash


def test_settings_have_a_name():
    assert config_hash({"a": 1, "b": None}) == config_hash({"b": None, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


def test_state_round_trip(tmp_path):
    path = tmp_path / "deep" / "folder" / "c.pt"
    file = Checkpoint(path, {"lr": 0.1}, every=None)
    assert file.load() is None
    file.save({"weights": torch.arange(3), "step": 4})
    found = file.load()
    assert found["step"] == 4
    assert found["weights"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match=r"lr: 0\.1 there, 0\.2 here"):
        Checkpoint(path, {"lr": 0.2}, every=None).load()


@pytest.mark.parametrize(
    "content",
    [b"", b"text", pickle.dumps({"a": 1}), b"PK\x03\x04broken"],
    ids=["empty", "text", "pickle", "zip"],
)
def test_a_file_that_is_no_checkpoint(tmp_path, content):
    path = tmp_path / "c.pt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a checkpoint of a training .*resume=False"):
        Checkpoint(path, {}, every=None).load()
    assert path.read_bytes() == content


def test_a_truncated_checkpoint_is_refused(tmp_path):
    file = Checkpoint(tmp_path / "c.pt", {}, every=None)
    file.save({"weights": torch.zeros(1000)})
    whole = file.path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 1):
        file.path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="not a checkpoint"):
            file.load()


def test_a_foreign_pickle_is_not_run(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "attacked"),)

    path = tmp_path / "c.pt"
    torch.save({"format": 1, "config": "{}", "state": Attack()}, path)
    with pytest.raises(InputError, match="not a checkpoint"):
        Checkpoint(path, {}, every=None).load()
    assert not (tmp_path / "attacked").exists()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def run(path, **options):
    settings = {"lr": 0.1, "epochs": 2, "batch_size": 500, **options}
    return fit(network(), "digits", "cross_entropy", checkpoint=path, **settings)


def test_cadence(tmp_path, monkeypatch, machine):
    saved = []
    original = Checkpoint.save
    monkeypatch.setattr(
        Checkpoint, "save", lambda self, s: (saved.append(s["place"]), original(self, s))
    )
    run(tmp_path / "a.pt")
    assert saved == [[3, 1, 0], [6, 2, 0], [6, 2, 0]]  # after each epoch, and at the end
    saved.clear()
    run(tmp_path / "b.pt", checkpoint_every=2)
    assert [place[0] for place in saved] == [2, 4, 6, 6, 6]
    saved.clear()
    run(tmp_path / "c.pt", callbacks=[lambda _: machine.spend(Checkpoint.SECONDS)])
    assert {place[0] for place in saved} == {1, 2, 3, 4, 5, 6}


def test_a_finished_training_is_not_repeated(tmp_path):
    first = run(tmp_path / "c.pt")
    seen = []
    again = run(tmp_path / "c.pt", callbacks=[seen.append])
    assert not seen
    assert again.losses.tolist() == first.losses.tolist()
    assert again.events == first.events


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lr": 0.2}, r"lr: 0\.1 there, 0\.2 here"),
        ({"epochs": 3}, "epochs: 2 there, 3 here"),
        ({"batch_size": 400}, "batch_size: 500 there, 400 here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"schedule": "step"}, "schedule"),
        ({"momentum": 0.5}, "momentum"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, text):
    path = tmp_path / "c.pt"
    run(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match=text):
        run(path, **change)
    assert path.read_bytes() == before
    assert run(path, resume=False, **change).outcome == "finished"


def test_other_data_and_other_models_are_refused(tmp_path):
    path = tmp_path / "c.pt"
    run(path)
    options = {"lr": 0.1, "epochs": 2, "batch_size": 500, "checkpoint": path}
    data = load_data("digits")
    data.images[0, 0, 0, 0] += 1
    with pytest.raises(InputError, match="content: "):
        fit(network(), data, "cross_entropy", **options)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    with pytest.raises(InputError, match="model: "):
        fit(other, "digits", "cross_entropy", **options)


def test_other_batches_are_refused(tmp_path):
    data, path = load_data("digits"), tmp_path / "c.pt"
    options = {"lr": 0.1, "epochs": 1, "checkpoint": path}
    fit(network(), data.batches(500), "cross_entropy", **options)
    with pytest.raises(InputError, match="in batches of 400"):
        fit(network(), data.batches(400), "cross_entropy", **options)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        run(tmp_path)
