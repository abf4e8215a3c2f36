"""``normscope what-if`` says what ``what_if`` says."""

import json
import sys

import pytest
import torch

from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.what_if import OPTIONS
from normscope.diagnose.what_if import what_if
from normscope.nn import network
from normscope.results.what_if import WhatIf
from normscope.subject.transforms import TRANSFORMS

NET = ["mlp:64-8-8-10", "--data", "digits"]
QUICK = ["--steps", "12", "--tol", "0.5"]


def output(words, capsys, *, code=0):
    assert main(["what-if", *map(str, words)]) == code
    return capsys.readouterr()


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def test_the_table_is_what_if(capsys, tmp_path):
    file, chart = tmp_path / "w.json", tmp_path / "w.svg"
    words = [*NET, *QUICK, "--changes", "gamma=0.1,remove-norms+scale-weights=5e-1", "--seed", 1]
    said = output([*words, "--save-data", file, "--chart", chart], capsys)
    assert said.err == f"Wrote {file}\nWrote {chart}\n"
    assert "<svg" in chart.read_text()
    found = WhatIf.from_json(file.read_text())
    wanted = what_if(
        network(NET[0], seed=1), "digits", ["gamma=0.1", ["remove-norms", "scale-weights=5e-1"]],
        momentum=0, steps=12, tol=0.5, seed=1,
    )  # fmt: skip
    assert found.variants == wanted.variants
    assert said.out == wanted.summary() + "\n"


def test_without_trainings_and_with_the_promising_ones(capsys):
    found = WhatIf.from_dict(json.loads(output([*NET, "--no-limits", "--json"], capsys).out))
    wanted = what_if(network(NET[0]), "digits", limits=False)
    assert found.variants == wanted.variants
    assert len(found.after) >= 2


def test_the_help_names_every_change(capsys):
    assert main(["what-if", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(TRANSFORMS[name].usage.partition("[")[0] in shown for name in TRANSFORMS)


def test_out_of_time(capsys, machine):
    words = [*NET, "--changes", "gamma=0.1", "--steps", "500", "--max-seconds", "0.3"]
    assert "max_seconds are used up" in output(words, capsys, code=3).out


def test_interruption_keeps_the_rows_before_it(capsys, monkeypatch, tmp_path):
    module = sys.modules["normscope.diagnose.what_if"]
    apply = module.apply_transform

    def interrupted(model, change, **options):
        if change == "remove-norms":
            raise KeyboardInterrupt
        return apply(model, change, **options)

    monkeypatch.setattr(module, "apply_transform", interrupted)
    file = tmp_path / "w.json"
    changes = ["--changes", "gamma=0.1,remove-norms,gamma=0.2"]
    shown = output([*NET, "--no-limits", *changes, "--save-data", file], capsys, code=3).out
    assert "remove-norms: interrupted from the keyboard" in shown
    found = WhatIf.from_json(file.read_text())
    assert [variant.made for variant in found] == [True, True, False, False]


def test_ctrl_c_in_a_training_ends_all(capsys, monkeypatch, tmp_path):
    """A training that is interrupted ends early by itself; no other change is begun."""
    from normscope.train._training import Training

    update, calls = Training._update, []

    def interrupted(self, batch):
        calls.append(None)
        if len(calls) == 20:
            raise KeyboardInterrupt
        update(self, batch)

    monkeypatch.setattr(Training, "_update", interrupted)
    file = tmp_path / "w.json"
    changes = ["--changes", "gamma=0.1,gamma=0.2"]
    output([*NET, *QUICK, *changes, "--save-data", file], capsys, code=3)
    found = WhatIf.from_json(file.read_text())
    assert len(calls) == 20
    assert found.before.made
    assert not any(variant.made for variant in found.after)


def test_a_toml_file(capsys, tmp_path):
    path = tmp_path / "w.toml"
    path.write_text(
        f'[what-if]\nmodel = "{NET[0]}"\ndata = "digits"\nchanges = ["gamma=0.1"]\n'
        "no-limits = true\njson = true"
    )
    found = WhatIf.from_dict(json.loads(output(["--config", path], capsys).out))
    assert [variant.change for variant in found.after] == ["gamma=0.1"]
    assert_keys_are_checked(
        OPTIONS, path, lambda file: output(["--config", file], capsys, code=2).err
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["Which model?"]),
        (NET[:1], ["Which data?"]),
        ([*NET, "--changes", "gama=1"], ["Unknown transform 'gama'", "'gamma'"]),
        ([*NET, "--changes", "gamma"], ["gamma"]),
        ([*NET, "--changes", "replace:batch->batsh"], ["batsh"]),
        (["mlp:64-8-10,norm=none", "--data", "digits", "--changes", "gamma=0.1", "--no-limits"],
         ["None of the changes could be made"]),
        ([*NET, "--save-data", "m.txt"], [".json"]),
        (["no_such:make", "--data", "digits"], ["ModuleNotFoundError"]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_bad_input_is_one_line(words, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = output(words, capsys, code=2).err
    assert_one_line(message, parts)
    assert "no_such" not in sys.modules
