"""Every example in a docstring of normscope runs and gives what it shows."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import normscope

MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(normscope.__path__, "normscope.")
    if not m.name.endswith("__main__")
)


def imported(name):
    """The module, or None where an optional extra is not installed; ours are never missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "normscope").startswith("normscope"):
            raise
        return None


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    torch.set_default_dtype(torch.float32)  # as a reader has it; the fixture sets it back
    module = imported(name)
    if module is not None:
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        assert doctest.testmod(module, optionflags=flags).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    theory = importlib.import_module("normscope.theory.predict")
    assert any(test.examples for test in finder.find(theory))
