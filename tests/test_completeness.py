"""No formula without its equation, its docstring parts and its place in the numeric roster."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import normscope.theory
from normscope.refs import NORMSCOPE, equations_of
from rosters import NOT_FORMULAS, NUMERIC

DESIGN = Path(__file__).parent.parent / "docs" / "design"


def public_functions():
    """Short name -> function for everything public that a theory module defines."""
    found = {}
    for info in pkgutil.walk_packages(normscope.theory.__path__, "normscope.theory."):
        last = info.name.rsplit(".", 1)[-1]
        for name, value in vars(importlib.import_module(info.name)).items():
            public = not last.startswith("_") and not name.startswith("_")
            if public and inspect.isfunction(value) and value.__module__ == info.name:
                found[f"{last}.{name}"] = value
    return found


FUNCTIONS = public_functions()
FORMULAS = sorted(set(FUNCTIONS) - set(NOT_FORMULAS))


def test_exceptions_still_hold():
    assert set(NOT_FORMULAS) <= set(FUNCTIONS), "an exception names a function that is gone"
    for name in NOT_FORMULAS:
        assert not equations_of(FUNCTIONS[name]), f"{name} has an equation: it is a formula now"


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_has_its_equation_and_the_parts_of_its_docstring(name):
    function = FUNCTIONS[name]
    assert equations_of(function), "no @equation"
    text = inspect.getdoc(function)
    first = text.splitlines()[0]
    assert first.endswith(".")
    assert len(first) <= 100
    for part in (".. math::", "Symbols:", "Holds for:"):
        assert part in text, f"{part} is missing"


def test_roster_holds_every_formula_and_nothing_else():
    assert sorted(NUMERIC) == FORMULAS


def test_our_own_derivations_have_their_section():
    for name in FORMULAS:
        for equation in equations_of(FUNCTIONS[name]):
            if equation.reference is NORMSCOPE:
                page, section = equation.number.removeprefix("docs/design/").split(", ", 1)
                [path] = DESIGN.glob(f"{page}-*.md")
                headings = set(re.findall(r"^## (.+)$", path.read_text(), flags=re.MULTILINE))
                assert section in headings, f"{name}: no section {section!r}"
