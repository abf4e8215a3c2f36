"""``normscope sweep`` says and stores what ``ns.sweep`` does."""

import json

import pandas as pd
import pytest
import torch

from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.sweep import OPTIONS
from normscope.sweeps import Sweep
from normscope.train import training_trial
from normscope.train.trial import checksum_of

NET = ["mlp:64-8-10", "--data", "digits", "--steps", "4", "--workers", "1"]
GRID = ["lr=logspace(-2,2,3)", "gamma=0.5,1", "seeds=2", "--norm", "batch", "--loss", "mse"]


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def said(words, capsys, *, code=0):
    assert main(["sweep", *map(str, words)]) == code
    return capsys.readouterr()


def test_a_sweep_and_its_map(capsys, tmp_path):
    out = said([*NET, *GRID, "--output", tmp_path / "s"], capsys).out
    assert "12 of 12 trials done" in out
    assert "stability limit over gamma" in out
    found = Sweep(tmp_path / "s")
    assert sorted({row["lr"] for row in found.plan.rows}) == pytest.approx([0.01, 1, 100])
    settings = {"network": "mlp:64-8-10", "data": "digits", "steps": 4, "lr": 1.0, "gamma": 1.0,
                "norm": "batch", "loss": "mse", "seed": 1}  # fmt: skip
    settings["data_checksum"] = checksum_of(settings)
    assert found.records()[found.plan.key_of(settings)] == training_trial(**settings)
    before = {path: path.read_bytes() for path in (tmp_path / "s" / "records").iterdir()}
    said([*NET, *GRID, "--output", tmp_path / "s"], capsys)
    after = {path: path.read_bytes() for path in (tmp_path / "s" / "records").iterdir()}
    assert after == before


def test_a_file_takes_all_of_it(capsys, tmp_path):
    (tmp_path / "map.toml").write_text(
        'network = "mlp:64-8-10"\ndata = "digits"\nsteps = 4\nlr = "logspace(-2,2,3)"\n'
        f'gamma = [0.5, 1]\nseeds = 2\nnorm = "batch"\nloss = "mse"\noutput = "{tmp_path}/s"\n'
        "workers = 1\n"
    )
    said([tmp_path / "map.toml"], capsys)
    plan = Sweep(tmp_path / "s").plan
    said([*NET, *GRID, "--output", tmp_path / "t"], capsys)
    assert plan.identity == Sweep(tmp_path / "t").plan.identity
    said([tmp_path / "map.toml", "--output", tmp_path / "u", "seeds=1"], capsys)
    assert len(Sweep(tmp_path / "u").plan.rows) == 6


def test_a_file_may_stand_behind_flags(capsys, tmp_path):
    (tmp_path / "m.toml").write_text(
        'network = "mlp:64-8-10"\ndata = "digits"\nsteps = 2\nlr = [0.1, 0.2]\nworkers = 1\n'
    )
    file = tmp_path / "m.toml"
    for place, words in enumerate((["--dry-run", file], ["--output", tmp_path / "s.toml", file])):
        out = said(words, capsys).out
        assert ("2 trials: 2 lr", "2 of 2 trials done")[place] in out


def test_every_setting_of_a_network_can_be_swept(capsys, tmp_path):
    words = ["cnn:1x8x8:4-4", "--data", "digits", "--steps", "2", "--workers", "1", "lr=0.1",
             "kernel=1,3", "head=pool,flatten", "last_norm=none,batch"]  # fmt: skip
    said([*words, "--output", tmp_path / "s"], capsys)
    assert Sweep(tmp_path / "s").complete
    assert len(Sweep(tmp_path / "s").plan.rows) == 8


def test_every_trial_knows_the_checksum_of_its_data(capsys, tmp_path):
    """Also where samples or data sets are what is swept: other data are another trial."""
    said([*NET, "lr=0.1", "samples=100,200", "--output", tmp_path / "s"], capsys)
    rows = Sweep(tmp_path / "s").plan.rows
    assert [row["data_checksum"] for row in rows] == [
        checksum_of({"data": "digits", "samples": n}) for n in (100, 200)
    ]


def test_status_export_and_chart(capsys, tmp_path):
    folder = tmp_path / "s"
    said([*NET, *GRID, "--output", folder, "--shard", "1/3"], capsys)
    assert "4 of 12 trials done" in said(["status", folder], capsys).out
    assert json.loads(said(["status", folder, "--json"], capsys).out)["missing"] == 8
    said([*NET, *GRID, "--output", folder], capsys)
    assert "Wrote" in said(["export", folder, "--csv", tmp_path / "t.csv"], capsys).err
    table = pd.read_csv(tmp_path / "t.csv")
    assert len(table) == 12
    rows = json.loads(said(["export", folder, "--json"], capsys).out)
    assert [row["lr"] for row in rows] == table["lr"].tolist()
    shown = said(["chart", folder, tmp_path / "m.svg", "--criterion", "does-not-learn"], capsys)
    assert "learns nothing" in shown.out
    assert "<svg" in (tmp_path / "m.svg").read_text()


def test_a_dry_run_counts_and_times(capsys, tmp_path):
    out = said([*NET, *GRID, "--dry-run", "--output", tmp_path / "s"], capsys).out
    assert "12 trials: 2 gamma x 3 lr x 2 seed" in out
    assert "with 1 workers" in out
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which network?"]),
        (["mlp:64-8-10", "--data", "digits"], ["Which lr?"]),
        ([*NET, "lr=0.1"], ["Which folder?"]),
        ([*NET, "lr=0.1", "gama=1", "--output", "s"], ["unknown flag --gama", "--gamma"]),
        ([*NET, "lr=0.1", "lr=0.2", "--output", "s"], ["lr is given twice"]),
        ([*NET, "lr=0.1", "--lr", "0.2", "--output", "s"], ["lr is given twice"]),
        ([*NET, "lr=0.1", "--lr=0.2", "--output", "s"], ["lr is given twice"]),
        ([*NET, "lr=0.1", "norm=batch,bach,layer", "--output", "s"], ["Unknown norm 'bach'"]),
        ([*NET, "lr=0.1", "activation=relu,relo,tanh", "--output", "s"], ["relo"]),
        (["mlp:60-8-10", *NET[1:], "lr=0.1", "--output", "s"], ["cannot be run", "64"]),
        ([NET[0], "data=digits,dgits", "steps=4", "lr=0.1", "--output", "s"], ["'digits'"]),
        ([*NET, "lr=", "--output", "s"], ["--lr", "Expected a number"]),
        ([*NET, "lr=linspace(1,2)", "--output", "s"], ["linspace(a,b,count)", "linspace(1,2)"]),
        ([*NET, "lr=0.1,0.1", "--output", "s"], ["Two trials have the same settings"]),
        ([*NET, "lr=0.1", "seeds=0", "--output", "s"], ["seeds must be a whole number from 1"]),
        ([*NET, "lr=0.1", "batch_size=1.5", "--output", "s"], ["whole numbers"]),
        ([*NET, "lr=0.1", "--shard", "0/4", "--output", "s"], ["i from 1 to n"]),
        ([*NET, "lr=0.1", "--shard", "5/4", "--output", "s"], ["i from 1 to n"]),
        ([*NET, "lr=0.1", "norm=bach", "--output", "s"], ["batch"]),
        (["mlp:64-8-10", "--data", "minst", "--steps", "2", "lr=1", "--output", "s"], ["'mnist'"]),
        (["none.toml"], ["There is no file none.toml"]),
        (["status"], ["Which sweep?"]),
        (["status", "nowhere"], ["no plan.json"]),
        (["export", "nowhere", "--csv", "x.csv"], ["no plan.json"]),
        ([*NET, "lr=0.1", "--executor", "dask", "--output", "s"], ["Unknown executor 'dask'"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_one_line(said(words, capsys, code=2).err, parts)
    assert not (tmp_path / "s").exists()


def test_another_sweep_in_the_folder_is_refused(capsys, tmp_path):
    said([*NET, "lr=0.1", "--output", tmp_path / "s"], capsys)
    error = said([*NET, "lr=0.2", "--output", tmp_path / "s"], capsys, code=2).err
    assert_one_line(error, ["holds another sweep", "lr: 0.1 there, 0.2 here"])


def test_failed_trials_are_told_by_the_exit_code(capsys, tmp_path):
    """Batch norm over one sample, in the middle of a list."""
    words = [*NET, "lr=0.1", "--norm", "batch", "batch_size=64,1,32", "--output", tmp_path / "s"]
    out = said(words, capsys, code=3).out
    assert "2 of 3 trials done (0 diverged), 1 failed" in out
    error = said([*words, "--retry-failed", "--fail-fast"], capsys, code=2).err
    assert_one_line(error, ["1 trials failed", "sweep status"])


def test_every_key_of_a_file_is_checked(tmp_path, capsys):
    def run(path):
        return said(["--config", path], capsys, code=2).err

    assert_keys_are_checked(OPTIONS, tmp_path / "bad.toml", run)
