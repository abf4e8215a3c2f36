"""Every example that a command's help shows is run, as it is printed."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from normscope.cli.main import COMMANDS, main

FILES = ("--page", "--save-data", "--chart")
MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
"""
DATA = """
import torch

torch.manual_seed(0)
loader = [(torch.randn(32, 6), torch.randint(0, 3, (32,))) for _ in range(2)]
train, test = loader, loader
"""


def examples(command: str) -> list[list[str]]:
    epilog = importlib.import_module(COMMANDS[command][0]).EPILOG
    text = epilog.split("example:\n")[1].replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_the_help_run(command, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("my_model.py").write_text(MODEL)
    Path("my_data.py").write_text(DATA)
    if command == "compare":
        for name in ("plain", "normalized"):
            assert main(["examine", "my_model:make", "--data", "my_data:loader",
                         "--save-data", f"{name}.json"]) == 0  # fmt: skip
    lines = examples(command)
    assert any(" ".join(line[1:]).startswith(command) for line in lines)
    for program, *words in lines:
        assert program == "normscope"
        assert main(words) == 0, capfd.readouterr().err
        written = [words[i + 1] for i, word in enumerate(words) if word in FILES]
        assert all(Path(name).stat().st_size for name in written)
