"""No formula without its equation, its docstring parts and its place in the numeric roster."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import normscope.theory
from normscope.refs import NORMSCOPE, equations_of
from roster import NUMERIC

NOT_FORMULAS = {
    "assemble.assembled": "puts formulas together for one network",
    "assemble.assembled_from_data": "puts formulas together for one network",
    "batchnorm.scaled_pair": "an integrand of train_gram, checked through it",
    "grams.gram_of": "chooses the formulas of a theory",
    "kernel.input_gram": "checks and multiplies the inputs",
    "networks.shape_of": "says which specs share a recursion",
    "networks.stack": "arrays from specs",
    "outputs.with_output_norm": "chooses the formulas of the norm on the outputs",
    "order.pooled": "averages over positions, one line",
    "predict.predict": "the front door; its parts are the formulas",
    "quadrature.gaussian_mean": "a numerical rule, not a formula",
    "quadrature.gaussian_pair_mean": "a numerical rule, not a formula",
    "quadrature.hermite_coefficients": "a numerical rule, not a formula",
}
DESIGN = Path(__file__).parent.parent / "docs" / "design" / "0002-mean-field-corrections.md"


def public_functions():
    """Short name -> function for everything that a theory module defines and exports."""
    found = {}
    for info in pkgutil.walk_packages(normscope.theory.__path__, "normscope.theory."):
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value) and value.__module__ == info.name:
                found[f"{info.name.rsplit('.', 1)[-1]}.{name}"] = value
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
    headings = set(re.findall(r"^## (.+)$", DESIGN.read_text(), flags=re.MULTILINE))
    for name in FORMULAS:
        for equation in equations_of(FUNCTIONS[name]):
            if equation.reference is NORMSCOPE:
                prefix, section = equation.number.split(", ", 1)
                assert prefix == "docs/design/0002"
                assert section in headings, f"{name}: no section {section!r}"
