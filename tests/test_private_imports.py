"""No package imports a private module, or a private name, of another package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import normscope

ROOT = Path(normscope.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def package(parts):
    return parts[0] if len(parts) > 1 else ""


def imported(tree):
    """(module, name) of everything of ours that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("normscope."):
            for alias in node.names:
                yield node.module.split(".")[1:], alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("normscope."):
                    yield alias.name.split(".")[1:], ""


def private(own, tree):
    for module, name in imported(tree):
        foreign = module[0] != own
        if foreign and any(part.startswith("_") for part in (*module, name)):
            yield ".".join([*module, name])


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_private_modules_stay_in_their_package(path):
    own = package(path.relative_to(ROOT).parts)
    found = [
        what for what in private(own, ast.parse(path.read_text())) if what != "_version.__version__"
    ]
    assert not found


def test_the_rule_sees_all_forms():
    code = (
        "from normscope.measure._tape import record\n"
        "from normscope.measure import _tape\n"
        "from normscope.measure.probes._overlaps import Overlaps\n"
        "import normscope.measure._tape\n"
        "from normscope.measure import fisher\n"
        "from normscope.train._training import Training\n"
    )
    assert len(list(private("train", ast.parse(code)))) == 4
