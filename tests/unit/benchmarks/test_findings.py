"""The benchmark of findings: what names a defect, how it is counted, what a lost process costs."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.findings import harness
from benchmarks.findings.contestants import gradient_seconds
from benchmarks.findings.matching import Correction, corrections, judged
from benchmarks.findings.setup import Setup, collected, plain_updates
from benchmarks.findings.table import MARK, outcomes, page, wilson, with_tables
from scipy.stats import binomtest

import tiny_setups
from tiny_setups import BROKEN, HEALTHY

KNOWN = {"tiny": ("setups_one", HEALTHY), "tiny-dead": ("setups_two", BROKEN)}


def told(severity, title, advice="", rule="r"):
    return {"severity": severity, "title": title, "advice": advice, "rule": rule}


def row(setup, *said, seed=0, contestant="normscope fast", **more):
    return {"contestant": contestant, "setup": setup, "seed": seed, "told": list(said), **more}


DEAD = told("warning", "Units are DEAD", rule="dead-units")
OTHER = told("problem", "Something else", rule="other")
FINE = told("ok", "No dead units", rule="dead-units")


@pytest.mark.parametrize(
    ("said", "place", "false", "noted"),
    [
        ([DEAD], 1, 0, False),
        ([OTHER, DEAD], 2, 1, False),
        ([OTHER, told("warning", "x", "the layer is dead")], 2, 1, False),
        ([OTHER, told("note", "dead")], 0, 1, True),
        ([FINE], 0, 0, False),  # that all is well names nothing
        ([told("warning", "deadline")], 0, 1, False),  # words are whole
    ],
)
def test_words_in_title_and_advice_of_an_alarm_name_the_defect(said, place, false, noted):
    verdict = judged(BROKEN, row("tiny-dead", *said))
    assert (verdict.place, verdict.false, verdict.noted) == (place, false, noted)


def test_on_a_healthy_set_up_every_alarm_is_false():
    assert judged(HEALTHY, row("tiny", DEAD, OTHER, told("note", "x"))).false == 2


def test_corrections_count_both_ways_and_only_where_they_fit():
    right = Correction("tiny-dead", "normscope", "^Something", True, "It is the cause.")
    wrong = Correction("tiny-dead", "normscope", "DEAD", False, "Another layer.")
    verdict = judged(BROKEN, row("tiny-dead", DEAD, OTHER), [right, wrong])
    assert verdict.place == 2
    assert judged(BROKEN, row("tiny-dead", OTHER, contestant="torchdiag"), [right]).place == 0
    justified = Correction("tiny", "", "Something", False, "It is so.")
    assert judged(HEALTHY, row("tiny", OTHER, DEAD), [justified]).false == 1


def test_a_correction_needs_a_sentence(tmp_path):
    file = tmp_path / "adjudication.json"
    entry = {"setup": "a", "contestant": "", "title": "t", "counts": True, "why": " "}
    file.write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match="sentence"):
        corrections(file)


def test_the_corrections_that_are_kept_speak_of_set_ups_that_exist():
    known = collected(harness.modules())
    assert all(c.setup in known for c in corrections())


def test_the_worse_of_two_seeds_counts():
    rows = [row("tiny", seed=0), row("tiny", OTHER, seed=1),
            row("tiny-dead", DEAD, seed=0), row("tiny-dead", OTHER, DEAD, seed=1)]  # fmt: skip
    found = outcomes(rows, KNOWN, [])["normscope fast"]
    assert (found["tiny"].false, found["tiny-dead"].place) == (1, 2)
    rows.append(row("tiny-dead", OTHER, seed=2))
    assert outcomes(rows, KNOWN, [])["normscope fast"]["tiny-dead"].place == 0


def cells(text, first):
    """The cells of each line of a table that begins with this cell."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def test_the_tables_count_alarms_names_rules_and_harm():
    rows = [
        row("tiny", OTHER), row("tiny-dead", OTHER, DEAD), row("tiny-dead", contestant="torchdiag"),
        row("tiny", contestant="torchdiag", failure="ValueError: no"),
        *({"contestant": "harm", "setup": s, "seed": k, "updates": 100, "score": v}
          for s, v in (("tiny", 0.9), ("tiny-dead", 0.5)) for k in (0, 1)),
    ]  # fmt: skip
    text = page(rows, KNOWN, [])
    healthy, broken, *_ = cells(text, "normscope fast")
    assert healthy[1:5] == ["1", "1", "21 to 100 %", "1"]
    assert broken[1:] == ["1", "0", "1", "21 to 100 %", "1", "0", "0"]
    assert cells(text, "torchdiag")[0][-1] == "1"  # no answer is no false alarm
    assert cells(text, "torchdiag")[1][-1] == "1"  # silent
    assert cells(text, "tiny-dead") == [["tiny-dead", "0.5, 0.9", "**2**", "silent"]]
    assert cells(text, "other") == [["other", "1", "0", "1"]]
    assert cells(text, "dead-units") == [["dead-units", "0", "1", "0"]]
    assert "## Half: one" in text
    assert "ValueError: no" in text


def test_harm_is_called_not_shown_where_one_seed_is_as_good_as_a_twin():
    scores = {"tiny": [0.9, 0.8], "tiny-dead": [0.5, 0.85]}
    rows = [{"contestant": "harm", "setup": s, "seed": k, "updates": 100, "score": v}
            for s, values in scores.items() for k, v in enumerate(values)]  # fmt: skip
    assert "(not shown)" in page(rows, KNOWN, [])


@pytest.mark.parametrize(("hits", "of"), [(0, 20), (3, 27), (27, 27)])
def test_the_interval_is_that_of_wilson(hits, of):
    exact = binomtest(hits, of).proportion_ci(method="wilson")
    assert wilson(hits, of) == pytest.approx((exact.low, exact.high), abs=1e-12)


def test_the_tables_replace_the_old_ones_below_the_text_of_the_page():
    once = with_tables("# Title\n\nText.\n", "first\n")
    assert with_tables(once, "second\n") == f"# Title\n\nText.\n\n{MARK}\n\nsecond\n"


def test_set_ups_are_refused_without_twin_words_or_a_name_of_their_own(monkeypatch):
    for bad, text in (
        (Setup("x", "mlp", None, "broken", ("w",), "nobody"), "twin"),
        (Setup("x", "mlp", None, "broken", (), "tiny"), "words"),
        (Setup("x", "mlp", None, "", (), "tiny-dead"), "healthy"),
        (HEALTHY, "called"),
    ):
        monkeypatch.setattr(tiny_setups, "SETUPS", [HEALTHY, BROKEN, bad])
        with pytest.raises(ValueError, match=text):
            collected(["tiny_setups"])


def test_the_known_half_is_large_and_its_words_compile():
    known = [setup for _, setup in collected(["benchmarks.findings.setups_known"]).values()]
    broken = [setup for setup in known if setup.defect]
    assert len(broken) >= 18
    assert len(known) - len(broken) >= 16
    assert all(re.compile(word) for setup in broken for word in setup.words)
    families = {"mlp", "cnn", "resnet", "transformer", "lstm", "autoencoder", "regression",
                "two-heads", "fine-tuning"}  # fmt: skip
    assert {setup.family for setup in known} == families


def test_timing_a_gradient_changes_nothing():
    parts = HEALTHY.make(0)
    before, state = torch.get_rng_state(), [p.clone() for p in parts.model.parameters()]
    assert gradient_seconds(parts) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(parts.model.parameters(), state, strict=True))
    assert all(p.grad is None for p in parts.model.parameters())


def test_plain_updates_train_for_as_many_updates_as_asked():
    parts = HEALTHY.make(0)
    losses = plain_updates(parts, 70)
    assert len(losses) == 70
    assert losses[-1] < 0.5 * losses[0]


def test_harm_trains_defect_and_twin_alike():
    jobs = harness.jobs_of("harm", [BROKEN], [0, 1])
    assert jobs == [("tiny-dead", 0, 100), ("tiny-dead", 1, 100), ("tiny", 0, 100),
                    ("tiny", 1, 100)]  # fmt: skip


@pytest.fixture
def tiny_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(tiny_setups.__file__).parent))


@pytest.mark.slow
def test_the_harness_runs_writes_and_goes_on_from_its_file(tiny_path, tmp_path, capsys):
    file, report = tmp_path / "rows.json", tmp_path / "findings.md"
    report.write_text("# Text\n")
    given = ["--presets", "fast", "--rivals", "torchdiag", "--modules", "tiny_setups", "--setups",
             "tiny", "tiny-dead", "--seeds", "0", "--peers", str(tmp_path), "--file", str(file),
             "--page", str(report)]  # fmt: skip
    made = harness.main(given)["rows"]
    assert "left out: torchdiag" in capsys.readouterr().out
    assert not [r for r in made if "failure" in r]
    scores = {r["setup"]: r["score"] for r in made if r["contestant"] == "harm"}
    assert scores["tiny"] > 0.9 > scores["tiny-dead"]
    [dead] = [r for r in made if r["contestant"] == "normscope fast" and r["setup"] == "tiny-dead"]
    assert judged(BROKEN, dead).place == 1
    assert dead["gradients"]["rest"] > 0
    assert json.loads(file.read_text()) == made
    assert "**1**" in report.read_text()
    assert harness.main(given)["rows"] == made


@pytest.mark.slow
def test_a_process_that_dies_costs_only_its_set_up(tiny_path):
    jobs = [("exits", 0, 1), ("tiny", 0, 1)]
    found = list(harness.measured("harm", sys.executable, ["tiny_setups"], jobs))
    assert [r["setup"] for r in found] == ["exits", "tiny"]
    assert "code 3" in found[0]["failure"]
    assert "score" in found[1]


@pytest.mark.slow
def test_a_process_that_hangs_is_ended(tiny_path):
    jobs = [("hangs", 0, 1)]
    [found] = harness.measured("harm", sys.executable, ["tiny_setups"], jobs, seconds=5.0)
    assert "longer than 5 s" in found["failure"]
