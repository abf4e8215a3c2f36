"""Two examinations side by side, and the numbers that are compared."""

import math
from dataclasses import replace

import numpy as np
import pytest

from examinations import hostile, normalized
from normscope.results import (
    ExaminationDifference,
    Finding,
    StabilityBound,
    StabilityLimit,
    compare_examinations,
    key_numbers,
)


@pytest.fixture(scope="module")
def found():
    return compare_examinations(normalized(), hostile(), names=("a.json", "b.json"))


def by_name(numbers):
    return {n.quantity: n for n in numbers}


def test_headline_numbers_and_their_ratio(found):
    head = by_name(n for n in found.numbers if not n.measurement)
    a, b = normalized()["sharpness"].largest, hostile()["sharpness"].largest
    top = head["lambda_max of the loss (Gauss-Newton)"]
    assert (top.first, top.second, top.ratio) == (a, b, b / a)


def test_numbers_of_a_measurement_that_only_one_has(found):
    only = [n for n in found.numbers if n.measurement == "regularization"]
    assert only
    assert all(math.isnan(n.second) and math.isnan(n.ratio) for n in only)


def test_findings_that_appeared_and_disappeared(found):
    rules = {f.rule: f for f in found.findings}
    assert rules["ill-conditioned-layer"].change == "appeared"
    assert (rules["ill-conditioned-layer"].first, rules["ill-conditioned-layer"].second) == (
        "ok", "note",
    )  # fmt: skip
    back = compare_examinations(hostile(), normalized())
    gone = {f.rule: f for f in back.findings}["ill-conditioned-layer"]
    assert gone.change == "disappeared"
    assert gone.title == rules["ill-conditioned-layer"].title  # what it was, not what is fine now
    assert {f.rule for f in found.changed("not judged")} == {
        f.rule
        for e, other in ((normalized(), hostile()), (hostile(), normalized()))
        for f in e.findings
        if f.rule not in {g.rule for g in other.findings}
    }


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ("note", "problem", "worse"),
        ("problem", "warning", "better"),
        ("warning", "warning", "same"),
        ("ok", "note", "appeared"),
        ("note", "ok", "disappeared"),
    ],
)
def test_changes_of_severity(first, second, change):
    one, other = (
        replace(hostile(), findings=(Finding("r", severity, severity, (), ""),))
        for severity in (first, second)
    )
    only = compare_examinations(one, other).findings
    assert [f.change for f in only] == [change]


def test_a_rule_counts_by_its_gravest_finding():
    many = (Finding("r", "note", "n", (), ""), Finding("r", "problem", "p", (), ""))
    change = compare_examinations(
        replace(hostile(), findings=many), replace(hostile(), findings=many[:1])
    ).findings[0]
    assert (change.first, change.second, change.change) == ("problem", "note", "better")


def test_settings_and_cautions(found):
    assert {s.name: (s.first, s.second) for s in found.settings}["lr"] == (0.1, 50.0)
    assert found.cautions == ()
    other = replace(hostile(), convention=hostile().convention | {"batch": 7})
    caution = compare_examinations(normalized(), other).cautions
    assert caution == ("batch differs (48 and 7), on which the numbers depend",)


def test_an_examination_and_itself(found):
    same = compare_examinations(hostile(), hostile())
    assert same.settings == ()
    assert {f.change for f in same.findings} == {"same"}
    assert {n.ratio for n in same.numbers} == {1.0}


def test_round_trip_and_tables(found):
    assert ExaminationDifference.from_json(found.to_json()) == found
    frame = found.to_frame()
    assert list(frame.columns) == ["measurement", "quantity", "first", "second", "ratio"]
    assert len(frame) == len(found.numbers)
    assert list(found.findings_frame()["change"]) == [f.change for f in found.findings]
    summary = found.summary()
    assert "A  a.json: MLP 8-16-" in summary
    assert "appeared: Activations grow with depth" in summary
    assert "findings changed" in repr(found)


FACTS = ("wiring", "start", "data")  # facts of the set-up, which rules judge one by one
TABLES = ("order_parameters", "changes")  # one row for each layer, or for each change


@pytest.mark.parametrize("examination", [normalized, hostile])
def test_key_numbers_of_every_measurement(examination):
    for name, result in examination().measurements.items():
        numbers = key_numbers(result)
        assert (numbers == ()) == (name in FACTS + TABLES), name
        for n in numbers:
            assert not math.isnan(n.value)
            assert n.meaning
            if not (math.isnan(n.low) or math.isnan(n.high)):
                assert n.low <= n.value <= n.high or "mean eigenvalue" in n.quantity


def test_key_numbers_say_what_the_result_says():
    numbers = by_name(key_numbers(hostile()["conditioning"]))
    kappas = hostile()["conditioning"].kappa(0.5)
    assert numbers["median kappa_50%"].value == np.median(kappas)
    numbers = by_name(key_numbers(hostile()["outliers"]))
    found = hostile()["outliers"]
    assert numbers["share of lambda_max along mean gradients"].value == found.explained
    spectrum = hostile()["sharpness"]
    numbers = by_name(key_numbers(spectrum))
    assert numbers["2 / lambda_max"].value == 2 / spectrum.largest
    assert numbers["2 / lambda_max"].low == 2 / (spectrum.largest + spectrum.bounds[0])


def test_open_limits_have_no_finite_value():
    bound = StabilityBound("diverges", 2.0, math.inf)
    closed = StabilityBound("does-not-learn", 1.0, 4.0)
    limit = StabilityLimit("diverges", bound, closed, (), True, 1.0)
    numbers = by_name(key_numbers(limit))
    assert numbers["diverges at"].value == math.inf
    assert numbers["stops learning above"].value == pytest.approx(2.0)
    nothing = replace(limit, diverges=StabilityBound("diverges", 0.0, 5.0))
    assert "diverges at" not in by_name(key_numbers(nothing))


def test_other_things_have_no_key_numbers():
    assert key_numbers({"type": "Tomorrow"}) == ()


def test_what_could_not_be_judged_is_a_change():
    unjudged = Finding("coverage", "unjudged", "Could not judge", (), "Meaning.")
    part = replace(normalized(), findings=(unjudged, *normalized().findings))
    found = compare_examinations(normalized(), part)
    assert [(f.change, f.title) for f in found.changed("appeared")] == [
        ("appeared", "Could not judge")]  # fmt: skip
    assert "appeared: Could not judge (none -> unjudged)" in found.summary()
    back = compare_examinations(part, normalized())
    assert [f.title for f in back.changed("disappeared")] == ["Could not judge"]
