"""The README is true: its Python runs, and says the numbers that the comments promise."""

import re
from pathlib import Path

import pytest
import torch

from normscope.results.ledger import shipped_ledger

README = Path(__file__).parent.parent / "README.md"


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_readme_code_runs_and_prints_what_it_says(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a block writes a page
    torch.set_default_dtype(torch.float32)  # as a reader has it; the next test sets its own
    scope = {}
    checked = 0
    for block in python_blocks():
        exec(compile(block, str(README), "exec"), scope)
        printed = capsys.readouterr().out.splitlines()
        promised = re.findall(r"print\(.*\)\s+# (\d[\d.]*)", block)
        for value, line in zip(promised, printed, strict=False):
            assert float(line) == pytest.approx(float(value), rel=1e-3)
            checked += 1
    assert checked == 4


def test_readme_names_exist():
    import normscope as ns

    for name in set(re.findall(r"`ns\.(\w+)`", README.read_text())):
        assert hasattr(ns, name), name


def test_links_of_the_readme_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
    for path in re.findall(
        r"`((?:docs|benchmarks)/[^`*]+|[A-Z]+\.(?:md|cff))`", README.read_text()
    ):
        assert (README.parent / path).exists(), path


def test_the_table_of_verdicts_is_that_of_the_ledger():
    table = re.search(r"<!-- ledger.*?-->\n(.*?)\n<!-- /ledger -->", README.read_text(), re.DOTALL)
    assert table[1] == shipped_ledger().markdown(), "paste shipped_ledger().markdown()"
