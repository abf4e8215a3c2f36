"""``normscope max-lr`` says what ``max_stable_lr``, ``lr_range_test``, ``suggest_lr`` say."""

import json
import sys

import pytest
import torch

from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.max_lr import MODES, OPTIONS
from normscope.diagnose.learning_rate import suggest_lr
from normscope.nn import network
from normscope.results import LRAdvice, LRRange, StabilityLimit
from normscope.train import lr_range_test, max_stable_lr

NET = ["mlp:64-8-10", "--data", "digits"]
QUICK = ["--steps", "12", "--tol", "0.5", "--num-seeds", "1"]


def output(words, capsys, *, code=0):
    assert main(["max-lr", *map(str, words)]) == code
    return capsys.readouterr()


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def outcomes(limit):
    return [(t.lr, t.seed, t.outcome, t.final) for t in limit.trials]


def test_bisection_is_max_stable_lr(capsys, tmp_path):
    file, chart = tmp_path / "m.json", tmp_path / "m.svg"
    words = [*NET, *QUICK, "--momentum", 0.9, "--seed", 2, "--save-data", file, "--chart", chart]
    said = output([*words, "--criterion", "does-not-learn"], capsys)
    assert said.err == f"Wrote {file}\nWrote {chart}\n"
    assert "<svg" in chart.read_text()
    found = StabilityLimit.from_json(file.read_text())
    wanted = max_stable_lr(
        network(NET[0], seed=2), "digits", "cross_entropy", momentum=0.9, steps=12, tol=0.5,
        seeds=[2], criterion="does-not-learn",
    )  # fmt: skip
    assert outcomes(found) == outcomes(wanted)
    assert (found.diverges, found.does_not_learn) == (wanted.diverges, wanted.does_not_learn)
    lines = said.out.splitlines()
    assert lines[0].startswith("largest learning rate that learns: ")
    assert lines[1].split()[0] == "diverges"
    assert lines[2].split()[0] == "does-not-learn"


def test_range(capsys):
    words = [*NET, "--mode", "range", "--steps", 30, "--bracket", "1e-3,100", "--json"]
    found = LRRange.from_dict(json.loads(output(words, capsys).out))
    wanted = lr_range_test(
        network(NET[0]), "digits", "cross_entropy", steps=30, bracket=(1e-3, 100)
    )
    assert found.suggestion == wanted.suggestion
    assert found.losses == pytest.approx(wanted.losses, nan_ok=True)


def test_suggestion(capsys):
    words = [*NET, "--mode", "suggest", "--steps", 12, "--tol", 0.5, "--json"]
    found = LRAdvice.from_dict(json.loads(output(words, capsys).out))
    wanted = suggest_lr(network(NET[0]), "digits", "cross_entropy", "sgd", steps=12, tol=0.5)
    assert found.lr == wanted.lr
    assert found.bounds == wanted.bounds


def test_out_of_time(capsys, machine):
    shown = output([*NET, "--steps", "500", "--max-seconds", "0.2"], capsys, code=3).out
    assert "NOT complete" in shown
    assert "the search ended early: out of time" in shown


@pytest.mark.parametrize("mode", ["bisect", "range", "suggest"])
def test_interruption_keeps_what_is_known(mode, capsys, monkeypatch, tmp_path):
    """Ctrl-C in the sixtieth forward pass, of whichever copy."""
    (tmp_path / "my_net.py").write_text(
        "from normscope.nn import network\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner, self.calls = network('mlp:64-8-10'), [0]\n"
        "    def __deepcopy__(self, memo):\n"
        "        other = Net()\n"
        "        other.inner.load_state_dict(self.inner.state_dict())\n"
        "        other.calls = self.calls\n"  # one count for all copies
        "        return other\n"
        "    def forward(self, x):\n"
        "        self.calls[0] += self.training\n"
        "        if self.calls[0] == 60:\n"
        "            self.calls[0] += 1\n"
        "            raise KeyboardInterrupt\n"
        "        return self.inner(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "m.json"
    quick = ["--steps", 40] if mode == "bisect" else ["--steps", 100] if mode == "range" else []
    words = ["my_net:Net", "--data", "digits", "--mode", mode, *quick, "--save-data", file]
    said = output(words, capsys, code=3)
    sys.modules.pop("my_net")
    assert "Traceback" not in said.err
    kind = {"bisect": StabilityLimit, "range": LRRange, "suggest": LRAdvice}[mode]
    found = kind.from_json(file.read_text())
    if mode != "range":
        assert found.ended


OWN = """
import torch
from torch import nn
from normscope.data import load_data

def loader():
    return load_data("digits").batches(64)

def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def test_what_the_user_wrote(capsys, tmp_path, monkeypatch):
    (tmp_path / "my_rates.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    words = [NET[0], "--data", "my_rates:loader", *QUICK, "--json"]
    plain = StabilityLimit.from_dict(json.loads(output(words, capsys).out))
    own = output([*words, "--loss-fn", "my_rates:loss_fn"], capsys).out
    found = StabilityLimit.from_dict(json.loads(own))
    sys.modules.pop("my_rates")
    assert found.diverges.low == pytest.approx(plain.diverges.low)
    assert found.diverges.high == pytest.approx(plain.diverges.high)


def test_a_toml_file(capsys, tmp_path):
    path = tmp_path / "m.toml"
    path.write_text(
        f'[max-lr]\nmodel = "{NET[0]}"\ndata = "digits"\nmode = "range"\nsteps = 30\n'
        "bracket = [1e-3, 100]\njson = true"
    )
    found = LRRange.from_dict(json.loads(output(["--config", path], capsys).out))
    assert found.lrs[0] == pytest.approx(1e-3)
    assert_keys_are_checked(
        OPTIONS, path, lambda file: output(["--config", file], capsys, code=2).err
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which model?"]),
        (NET[:1], ["Which data?"]),
        ([*NET, "--mode", "bisct"], ["Unknown mode 'bisct'", "'bisect'"]),
        ([*NET, "--mode", "range", "--tol", "0.1"], ["--tol is for --mode bisect or suggest"]),
        ([*NET, "--mode", "suggest", "--num-seeds", "2"], ["--num-seeds is for --mode bisect"]),
        ([*NET, "--bracket", "1"], ["two learning rates"]),
        ([*NET, "--bracket", "2,1"], ["reversed"]),
        ([*NET, "--criterion", "diverge"], ["'diverges'"]),
        ([*NET, "--steps", "0"], ["steps"]),
        ([*NET, "--num-seeds", "0"], ["seeds"]),
        ([*NET, "--optimizer", "adam", "--momentum", "0.9"], ["belongs to sgd"]),
        ([*NET, "--save-data", "m.txt"], [".json"]),
        ([*NET, "--chart", "m.xyz"], ["m.xyz"]),
        (["no_such:make", "--data", "digits"], ["ModuleNotFoundError"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = output(words, capsys, code=2).err
    assert_one_line(message, parts)


def test_every_mode_is_in_the_help(capsys):
    assert main(["max-lr", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(mode in shown for mode in MODES)
