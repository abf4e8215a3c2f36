"""A dry run's costs are shown in two digits that count; remarks count in good English."""

import pytest

from normscope.results import Examination, Finding, Plan, Step


@pytest.mark.parametrize(
    ("seconds", "size", "shown"),
    [
        (0.0, 1000, "about 0.001 s and 0.001 MB"),
        (0.0342, 4_620_000, "about 0.034 s and 4.6 MB"),
        (1.26, 340_000_000, "about 1.3 s and 340 MB"),
        (9.97, 1_000_000_000, "about 10 s and 1 GB"),
        (163.0, 12_400_000_000, "about 160 s and 12 GB"),
    ],
)
def test_costs(seconds, size, shown):
    step = Step("sharpness", "How sharp?", estimate=seconds)
    plan = Plan((step,), seconds, size, "A net", "3 samples", 1.0)
    _, costs, line = plan.summary().splitlines()
    assert costs.startswith(shown + "; ")
    assert line.split()[:3] == [shown.split()[1], "s", "sharpness:"]


@pytest.mark.parametrize(
    ("severities", "words"),
    [(["ok"], "No issues found (1 check passed)"),
     (["ok"] * 9, "No issues found (9 checks passed)"),
     (["note", "ok"], "1 other check passed"),
     (["note", "ok", "ok"], "2 other checks passed"),
     (["unjudged", "ok", "ok"], "2 checks passed")],
)  # fmt: skip
def test_remarks(severities, words):
    findings = tuple(Finding("rule", severity, "Title", (), "Meaning.") for severity in severities)
    plan = Plan((), 1.0, 1, "A net", "3 samples", 1.0)
    found = Examination("A net", (), findings, {}, plan, {}, seconds=1.0)
    assert found.remarks == (f"{words}; 1.0 s",)
