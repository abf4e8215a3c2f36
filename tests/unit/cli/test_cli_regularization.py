"""``normscope regularization`` says what ``bn_regularization`` says; targets by import."""

import json
import types

import pytest
import torch

from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main, targets
from normscope.cli.regularization import OPTIONS
from normscope.errors import InputError
from normscope.measure import bn_regularization
from normscope.nn import network
from normscope.results import BatchNormRegularization

FEW = ["--batch-sizes", "8,32", "--num-batches", "4", "--max-samples", "80"]
NET = ["mlp:64-6-10", "--data", "digits"]
OWN = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 10))

def loader():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(40, 64, generator=generator), torch.arange(40) % 10)] * 2

def broken():
    return 1 / 0

number = 7
"""


def output(words, capsys, *, code=0):
    assert main(["regularization", *map(str, words)]) == code
    return capsys.readouterr()


def expected(**options):
    given = {"batch_size": [8, 32], "num_batches": 4, "max_samples": 80} | options
    return bn_regularization(network("mlp:64-6-10"), "digits", "cross_entropy", **given)


def test_json_is_the_measurement(capsys):
    found = json.loads(output([*NET, *FEW, "--json"], capsys).out)
    assert BatchNormRegularization.from_dict(found) == expected()


def test_the_table(capsys):
    shown = output([*NET, *FEW], capsys).out
    lines = shown.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith("layer"))
    columns = lines[header].split()
    assert columns[:4] == ["layer", "M", "M_eff", "zeta"]
    row = dict(zip(columns, lines[header + 1].split(), strict=True))
    assert float(row["measured"]) == pytest.approx(expected().layers[0].measured[0], rel=1e-3)
    assert float(row["(s.e.)"]) == pytest.approx(expected().layers[0].ratio_error[0], rel=1e-3)
    assert lines[header + 3].split()[:3] == ["(all)", "8", "-"]
    assert "restoring_decay(8, 32)" in " ".join(shown.split())


def test_output_chart_and_options(capsys, tmp_path):
    file, chart = tmp_path / "r.json", tmp_path / "r.svg"
    words = [
        *NET,
        *FEW,
        "--seed",
        3,
        "--sampling",
        "epoch",
        "--layers",
        "norm1",
        "--save-data",
        file,
    ]
    said = output([*words, "--chart", chart], capsys).err
    assert said == f"Wrote {file}\nWrote {chart}\n"
    assert "<svg" in chart.read_text()
    found = BatchNormRegularization.from_json(file.read_text())
    model = network("mlp:64-6-10", seed=3)
    assert found == bn_regularization(
        model, "digits", "cross_entropy", batch_size=[8, 32], num_batches=4, max_samples=80,
        seed=3, sampling="epoch", layers=["norm1"],
    )  # fmt: skip


def test_training_first_and_weights(capsys, tmp_path):
    trained = output([*NET, *FEW, "--steps", "20", "--json"], capsys)
    assert "Trained 20 steps: finished" in trained.err
    model = network("mlp:64-6-10", seed=5)
    file = tmp_path / "weights.pt"
    torch.save(model.state_dict(), file)
    loaded = json.loads(output([*NET, *FEW, "--weights", file, "--json"], capsys).out)
    wanted = bn_regularization(
        model, "digits", "cross_entropy", batch_size=[8, 32], num_batches=4, max_samples=80
    )
    assert BatchNormRegularization.from_dict(loaded) == wanted
    assert json.loads(trained.out)["population_loss"] < loaded["population_loss"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_regularized.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    return tmp_path


def test_a_network_and_a_loader_of_the_user(own, capsys):
    options = ["--data", "my_regularized:loader", *FEW, "--json"]
    by_name = output(["my_regularized:make", *options], capsys).out
    by_file = output([own / "my_regularized.py:make", *options], capsys).out
    assert json.loads(by_name) == json.loads(by_file)
    assert json.loads(by_name)["samples"] == 80
    steps = output(["my_regularized:make", *options, "--steps", "3"], capsys)
    assert "Trained 3 steps" in steps.err


def test_targets(own):
    assert targets.imported("my_regularized:number") == 7
    assert len(targets.data_target("digits:test")) == 360
    for word, text in {
        "my_regularized:mkae": "'make'",
        "my_regularized:broken": r"ZeroDivisionError: division by zero \(my_regularized.py, line",
        "none.py:make": "There is no file none.py",
        "no_such_module:make": "ModuleNotFoundError: No module named 'no_such_module'",
        "plain": "module:name",
    }.items():
        with pytest.raises(InputError, match=text):
            targets.imported(word)
    with pytest.raises(InputError, match="gives an int"):
        targets.network_target("my_regularized:number")


def test_default_sizes_are_those_that_fit(own, capsys):
    words = [
        "my_regularized:make",
        "--data",
        "my_regularized:loader",
        "--num-batches",
        "4",
        "--json",
    ]
    found = json.loads(output(words, capsys).out)
    sizes = found["batch_sizes"]["$array"]
    assert max(sizes) <= 80  # all the samples there are


def test_an_interrupted_training_is_not_measured(capsys, monkeypatch):
    run = types.SimpleNamespace(outcome="interrupted", updates=3, losses=[1.0])
    monkeypatch.setattr("normscope.train.fit", lambda *_, **__: run)
    shown = output([*NET, *FEW, "--steps", "9"], capsys, code=130)
    assert not shown.out


def test_a_toml_file(capsys, tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        '[regularization]\nmodel = "mlp:64-6-10"\ndata = "digits"\nbatch-sizes = [8, 32]\n'
        "num-batches = 4\nmax-samples = 80\njson = true"
    )
    found = json.loads(output(["--config", path], capsys).out)
    assert BatchNormRegularization.from_dict(found) == expected()
    assert_keys_are_checked(
        OPTIONS, path, lambda file: output(["--config", file], capsys, code=2).err
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which model?", "resnet20"]),
        (["mlp:64-6-10"], ["Which data?"]),
        (["mlp:64-6-10,norm=none", "--data", "digits"], ["no batch-norm layer"]),
        (["resnt20", "--data", "digits"], ["Unknown network"]),
        ([*NET, "--batch-sizes", "1"], ["no deviation"]),
        ([*NET, "--batch-sizes", "8,x"], ["whole number", "'x'"]),
        ([*NET, "--batch-sizes", "8,5000"], ["population of 1437"]),
        ([*NET, "--loss", "mes"], ["Unknown loss 'mes'"]),
        ([*NET, "--weights", "none.pt"], ["There is no file none.pt"]),
        ([*NET, "--chart", "a.xyz"], ["a.xyz"]),
        (["mlp:64-6-10", "--data", "digitz"], ["'digits'"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = output(words, capsys, code=2).err
    assert_one_line(message, parts)
