"""Facts, causes, consequences: what of the findings is reported, and in which order."""

from __future__ import annotations

import math

import pytest

from normscope.diagnose.findings import decided, findings_of
from normscope.diagnose.rules import RULES
from normscope.diagnose.rules.base import ANY, DESIGN, Case, note, ok, rule, warning
from normscope.errors import InputError
from normscope.results import Evidence, Finding, Rung, Trial, TrialThresholds


@pytest.fixture
def rules(monkeypatch):
    """A registry of its own, so that the rules of a test are gone afterwards."""
    monkeypatch.setattr(RULES, "_entries", {})
    return rule


def trial(*ends, before=2.3, constant=2.3, factor=1.0, reason=""):
    """Trials at one rate that end at ``ends``, the first after 25 updates, another after 100."""
    rungs = [
        Rung(factor, steps, steps, before, after)
        for steps, after in zip((25, 100), ends, strict=False)
    ]
    return Trial(0.1, constant, math.nan, before, tuple(rungs), reason=reason)


CLEAR, DOUBTFUL = trial(1.6), trial(2.25)


def finding(name, severity="warning"):
    return Finding(name, severity, name, (Evidence("number", 1.0),), "It matters.", "Change it.")


def reported(found, judged=None):
    return [(f.rule, f.severity) for f in decided(found, judged)]


def add(name, order, **options):
    rule(name, order=order, **options)(lambda case: None)


def test_what_warns_stands_first_and_causes_before_consequences(rules):
    add("consequence", 7, kind="fact")
    add("cause", 2, kind="fact")
    found = [
        finding("cause", "ok"),
        finding("consequence", "note"),
        finding("cause", "note"),
        finding("consequence", "problem"),
        finding("cause"),
    ]
    assert reported(found) == [
        ("cause", "warning"),
        ("consequence", "problem"),
        ("cause", "note"),
        ("consequence", "note"),
        ("cause", "ok"),
    ]


def test_a_note_becomes_a_warning_where_it_explains_one(rules):
    add("scale", 4, kind="guess", promoted_by=("rate",))
    add("rate", 7, kind="fact")
    found = [finding("rate", "problem"), finding("scale", "note")]
    assert reported(found) == [("scale", "warning"), ("rate", "problem")]
    assert reported([finding("rate", "ok"), found[1]]) == [("scale", "note"), ("rate", "ok")]


def test_what_any_warning_explains(rules):
    add("one", 4, kind="fact")
    add("no cause", 9, kind="fact", suppressed_by=(ANY,))
    assert reported([finding("no cause"), finding("one")]) == [("one", "warning")]
    harmless = [finding("no cause"), finding("one", "note")]
    assert reported(harmless) == [("no cause", "warning"), ("one", "note")]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("fact", "warning"), ("guess", "note"), ("symptom", "note"), ("note", "note")],
)
def test_a_clear_trial_turns_guesses_into_notes(rules, kind, expected):
    add("one", 1, kind=kind)
    assert reported([finding("one")], CLEAR) == [("one", expected)]
    assert reported([finding("one", "ok")], CLEAR) == [("one", "ok")]
    without = "note" if kind == "note" else "warning"
    assert reported([finding("one")], DOUBTFUL) == [("one", without)]
    assert reported([finding("one")]) == [("one", without)]


def test_a_consequence_is_left_out_where_its_cause_warns(rules):
    add("cause", 2, kind="guess")
    add("symptom", 5, kind="symptom", suppressed_by=("cause",))
    add("further", 6, kind="symptom", suppressed_by=("symptom",))
    everything = [finding("further"), finding("symptom"), finding("cause")]
    # what follows from a consequence that is left out has to name its first cause too
    assert reported(everything) == [("cause", "warning"), ("further", "warning")]
    harmless = [finding("symptom"), finding("cause", "note")]
    assert reported(harmless) == [("symptom", "warning"), ("cause", "note")]
    fine = [finding("symptom", "ok"), finding("cause")]
    assert reported(fine) == [("cause", "warning"), ("symptom", "ok")]


def test_a_cause_that_the_trial_overrules_suppresses_nothing(rules):
    add("cause", 2, kind="guess")
    add("symptom", 5, kind="symptom", suppressed_by=("cause",))
    found = [finding("symptom"), finding("cause")]
    assert reported(found, CLEAR) == [("cause", "note"), ("symptom", "note")]


def test_a_rule_takes_its_limits_and_needs_no_paper(rules):
    @rules("limited", order=3, limits=TrialThresholds(learns=0.7))
    def limited(case: Case, limits: TrialThresholds) -> Finding:
        shown = (Evidence("number", 0.5, limits.learns),)
        return note(title="A title", evidence=shown, meaning="It matters.")

    assert RULES["limited"].reference == DESIGN
    [one] = findings_of({}, {})
    assert (one.rule, one.severity, one.evidence[0].threshold) == ("limited", "note", 0.7)


def test_an_unknown_kind_of_rule_is_refused(rules):
    with pytest.raises(InputError, match="kind of rule 'facts'"):
        rules("one", order=1, kind="facts")


def test_builders_take_keywords_only():
    made = ok(title="Fine", evidence=(), meaning="All is well.")
    assert (made.severity, made.title, made.rule, made.warns) == ("ok", "Fine", "", False)
    assert warning(title="Bad", evidence=(), meaning="It costs quality.").warns
    with pytest.raises(TypeError):
        warning("Bad", (), "It costs quality.")


def test_every_kind_but_symptom_may_stand_alone():
    for name in RULES:
        one = RULES[name]
        assert one.kind != "symptom" or one.suppressed_by, name
        assert {*one.suppressed_by, *one.promoted_by} <= {ANY, *RULES}, name


def test_what_explains_a_finding_is_decided_before_it():
    places = {name: (RULES[name].order, place) for place, name in enumerate(RULES)}
    for name in RULES:
        for cause in {*RULES[name].suppressed_by} - {ANY}:
            assert places[cause] < places[name], (name, cause)


@pytest.mark.parametrize(
    ("made", "learns", "clear", "doubtful"),
    [
        (trial(1.6), True, True, False),
        (trial(2.3 * 0.899), True, True, False),
        (trial(2.3 * 0.901), True, False, False),
        (trial(2.3 * 0.951), True, False, True),
        (trial(2.3 * 0.996), False, False, False),  # it has not fallen either
        (trial(2.2, before=5.0), True, False, True),
        (trial(2.5, before=5.0), False, False, True),  # down to the constant, as a dead one
        (trial(2.29, 1.97, before=2.4), True, False, True),  # the longer one needs 0.15
        (trial(2.29, 1.9, before=2.4), True, True, True),
        (trial(math.nan), False, False, False),
        (trial(0.11, before=0.1), True, True, False),  # trained, at its floor
        (trial(0.5, before=0.1), False, False, False),  # trained, and lost again
        (trial(1.6, constant=math.nan), True, True, False),
        (trial(1.6, reason="the time was up"), False, False, False),
        (trial(1.6, factor=0.1), False, False, False),  # another rate
    ],
)
def test_what_a_trial_says(made, learns, clear, doubtful):
    assert (made.learns, made.clear, made.doubtful) == (learns, clear, doubtful)


def test_a_trial_comes_back_from_json():
    made = trial(1.6, 1.2)
    assert Trial.from_json(made.to_json()) == made
    assert (made.own.steps, made.rung(longest=True).steps) == (25, 100)
    assert made.rung(0.1) is None
    assert trial(math.inf).diverged
    assert not trial(2.2).diverged
