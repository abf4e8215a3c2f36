"""The ledger: its file, its checksums, its totals, and what it keeps when the catalogue changes."""

import dataclasses
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import catalogue
from normscope.errors import InputError
from normscope.experiments.experiment import Scale
from normscope.experiments.ledger import rows_of, updated, verify
from normscope.experiments.reproduce import run
from normscope.results.ledger import (
    VERDICTS,
    Ledger,
    LedgerRow,
    PaperLedger,
    read_ledger,
    shipped_ledger,
    write_ledger,
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    catalogue.install(monkeypatch)


@pytest.fixture
def outcomes(tmp_path):
    return [run(catalogue.EXPERIMENTS[k], "desk", tmp_path / "s", executor="serial")
            for k in ("wei2019/gains", "wei2019/slow")]  # fmt: skip


@pytest.fixture
def ledger(outcomes):
    return updated(Ledger([]), outcomes)


def saved(ledger, folder):
    write_ledger(ledger, folder)
    return read_ledger(folder)


def test_a_ledger_of_what_was_run(ledger):
    found = {row.id: row.verdict for row in ledger}
    assert found == {
        "wei2019/fig1": "reproduced",
        "wei2019/fig1-one": "reproduced",
        "wei2019/eq2": "reproduced",
        "wei2019/eq3": "not reproduced",
        "wei2019/slow": "reproduced",
        "wei2019/read": "not reproduced",
        "luo2019/real": "not run",
        "luo2019/table9": "blocked by scale",
    }
    row = ledger["wei2019/fig1"]
    assert (row.scale, row.seeds, row.item, row.reads) == ("desk", 5, "Fig. 1", "gain")
    assert row.observed == pytest.approx(np.mean(row.observation["values"]))
    assert {"normscope", "numpy", "python"} <= set(row.versions)
    assert ledger["wei2019/fig1-one"].expected == 1.0
    assert ledger["luo2019/table9"].command == "normscope reproduce luo2019/table9 --scale paper"
    assert ledger["wei2019/read"].command == ""
    assert verify(ledger) == []
    with pytest.raises(InputError, match="no row 'wei2019/fig9'"):
        ledger["wei2019/fig9"]


def test_the_form_of_the_file(ledger, tmp_path):
    paths = write_ledger(ledger, tmp_path)
    assert paths[0].parent.name == "wei2019"
    data = json.loads((tmp_path / "wei2019" / "ledger.json").read_text())
    row = data["claims"][0]
    assert row["id"] == "wei2019/fig1"
    assert row["source"] == {"paper": "wei2019", "item": "Fig. 1"}
    needed = {"statement", "expected", "observed", "tolerance", "scale", "verdict", "error", "rule",
              "seeds", "settings", "versions", "cpu_seconds", "checksum", "limits"}  # fmt: skip
    assert needed <= set(row)
    assert [e["id"] for e in data["experiments"]] == ["wei2019/gains", "wei2019/slow"]


def test_there_and_back_with_numbers_that_json_lacks(tmp_path):
    strange = {"values": [math.inf, -math.inf, math.nan, 0.1], "parts": {"a": {"mean": math.nan}}}
    row = LedgerRow(
        "wei2019/x", "Fig. 1", "It holds.", "paper", "figure", math.inf, math.nan, math.inf,
        observation=strange, parameters={"list": [1, 2.5]}, seeds=3,
    )  # fmt: skip
    arrays = replace(row, id="wei2019/y", observation={"values": np.array([[1.0, math.nan]])})
    there = Ledger([PaperLedger("wei2019", (row, arrays))])
    back = saved(there, tmp_path)
    assert back.papers["wei2019"].altered == ()
    assert [one.checksum for one in back] == [one.checksum for one in there]
    assert [one.to_json() for one in back] == [one.to_json() for one in there]
    assert back.rows[0].expected == math.inf
    assert back.rows[0].observation["values"][:2] == (math.inf, -math.inf)
    np.testing.assert_array_equal(back.rows[1].observation["values"], [[1.0, math.nan]])
    write_ledger(back, tmp_path / "again")
    first, second = (p / "wei2019" / "ledger.json" for p in (tmp_path, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def edited(value):
    if isinstance(value, bool | str) or value is None:
        return "edited"
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, 1]
    return {**value, "edited": 1}


FIELDS = [f.name for f in dataclasses.fields(LedgerRow) if f.name not in ("id", "item")]


@pytest.mark.parametrize("name", [*FIELDS, "command", "checksum", "source", "new"])
def test_every_edit_is_found_and_its_row_named(name, ledger, tmp_path):
    path = write_ledger(ledger, tmp_path)[0]
    data = json.loads(path.read_text())
    data["claims"][1][name] = edited(data["claims"][1].get(name))
    if name == "source":
        data["claims"][1]["source"] = {"paper": "luo2019", "item": "Fig. 1"}
    path.write_text(json.dumps(data))
    troubles = verify(read_ledger(tmp_path))
    assert troubles
    assert all(line.startswith("wei2019/fig1-one: ") for line in troubles)
    assert "checksum" in troubles[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"verdict": "partly"},
            "verdict: the file says 'partly'; computed from the observations: 'reproduced'",
        ),
        ({"statement": "Other."}, "statement: the file says 'Other.'; "),
        ({"observed": 7.0}, "observed: the file says 7.0; "),
        ({"tolerance": 7.0}, "tolerance: the file says 7.0; "),
        ({"kind": "ours"}, "kind: the file says 'ours'; "),
        ({"limits": "None."}, "limits: the file says 'None.'; "),
        ({"changed": "The rule."}, "changed: the file says 'The rule.'; "),
        ({"rule": "bound"}, "rule: the file says 'bound'; "),
        ({"parameters": {"sigma": True}}, "parameters: the file says {'sigma': True}; "),
        ({"reads": "loss"}, "reads: the file says 'loss'; "),
        ({"seeds": 50}, "seeds: the file says 50; "),
        ({"reason": "because"}, "other reason"),
        ({"settings": "abc"}, "other settings now"),
        ({"scale": "smoke"}, "no verdict comes from the scale 'smoke'"),
        ({"observation": {}}, "the observation is missing"),
        (
            {"observation": {"values": (-1.0, -1.0)}},
            "the file says 'reproduced'; computed from the observations: 'not rep",
        ),
    ],
)
def test_a_forged_checksum_does_not_help(changes, words, ledger, tmp_path):
    papers = dict(ledger.papers)
    first, *rest = papers["wei2019"].rows
    papers["wei2019"] = replace(papers["wei2019"], rows=(replace(first, **changes), *rest))
    (trouble,) = verify(saved(Ledger(papers.values()), tmp_path))
    assert trouble.startswith("wei2019/fig1: ")
    assert words in trouble


def test_last_digits_of_another_machine_are_no_trouble(ledger, tmp_path):
    one = ledger["wei2019/fig1"]
    near = replace(
        one, observed=one.observed * (1 + 1e-12), tolerance=one.tolerance * (1 - 1e-12),
        reason=one.reason.replace("noise 0.", "noise 1."),
    )  # fmt: skip
    paper = ledger.papers["wei2019"]
    paper = replace(paper, rows=(near, *paper.rows[1:]))
    assert verify(saved(Ledger([paper, ledger.papers["luo2019"], *others(ledger)]), tmp_path)) == []


def others(ledger):
    return [one for key, one in ledger.papers.items() if key not in ("wei2019", "luo2019")]


def test_rows_that_are_missing_twice_or_unknown(ledger):
    paper = ledger.papers["wei2019"]
    first, second, *rest = paper.rows
    strange = replace(second, id="wei2019/fig9")
    rows = (first, first, strange, *rest)
    assert verify(Ledger([replace(paper, rows=rows), ledger.papers["luo2019"]])) == [
        "wei2019/fig1-one: not in the ledger",
        "wei2019/fig1: 2 times in the ledger",
        "wei2019/fig9: no such claim in the catalogue",
    ]


def test_an_edited_chart_is_found(ledger, tmp_path):
    path = write_ledger(ledger, tmp_path)[0]
    data = json.loads(path.read_text())
    data["experiments"][0]["panels"][0]["curves"][0]["y"] = [9.0]
    path.write_text(json.dumps(data))
    assert [line.split(":")[0] for line in verify(read_ledger(tmp_path))] == ["wei2019/gains"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "claims": [{}]}'])
def test_a_file_that_is_no_ledger(text, tmp_path):
    (tmp_path / "wei2019").mkdir()
    (tmp_path / "wei2019" / "ledger.json").write_text(text)
    with pytest.raises(InputError, match=r"ledger\.json"):
        read_ledger(tmp_path)


def test_updated_keeps_rows_and_charts(ledger, monkeypatch, tmp_path):
    back = saved(ledger, tmp_path)
    again = updated(back, [])
    assert [row.checksum for row in again] == [row.checksum for row in ledger]
    assert again.papers["wei2019"].panels["wei2019/gains"]
    texts = {k: replace(c, limits="Another text.") for k, c in catalogue.CLAIMS.items()}
    catalogue.install(monkeypatch, said=texts)
    reworded = updated(back, [])["wei2019/fig1"]
    assert (reworded.limits, reworded.verdict) == ("Another text.", "reproduced")
    assert reworded.settings == ledger["wei2019/fig1"].settings


@pytest.mark.parametrize(
    "change",
    [{"rule": "bound"}, {"parameters": {"threshold": 0.5}}, {"reads": "exact"}, {"expected": 0.5}],
)
def test_updated_drops_rows_of_another_rule(change, ledger, monkeypatch):
    said = catalogue.CLAIMS | {"wei2019/fig1": replace(catalogue.CLAIMS["wei2019/fig1"], **change)}
    catalogue.install(monkeypatch, said=said)
    again = updated(ledger, [])
    assert again["wei2019/fig1"].verdict == "not run"
    assert again["wei2019/eq3"].verdict == "not reproduced"
    assert [line.split(":")[0] for line in verify(ledger)] == ["wei2019/fig1"]


@pytest.mark.parametrize("change", [{"version": 2}, {"scales": {"desk": Scale(seeds=6)}}])
def test_updated_drops_rows_and_charts_of_other_settings(change, ledger, monkeypatch):
    before = catalogue.EXPERIMENTS["wei2019/gains"]
    known = catalogue.EXPERIMENTS | {"wei2019/gains": replace(before, **change)}
    catalogue.install(monkeypatch, known=known)
    again = updated(ledger, [])
    assert {r.verdict for r in again if r.experiment == "wei2019/gains"} == {"not run"}
    assert "wei2019/gains" not in again.papers["wei2019"].panels
    assert again["wei2019/slow"].verdict == "reproduced"
    assert len([t for t in verify(ledger) if "other settings now" in t]) == 4


def test_a_new_outcome_replaces_a_row(ledger, outcomes):
    changed = replace(outcomes[0], seconds=77.0)
    again = updated(ledger, iter([changed]))
    assert again["wei2019/fig1"].cpu_seconds == 77.0
    assert again.papers["wei2019"].panels["wei2019/gains"]


def test_trials_that_failed_are_not_run(tmp_path):
    one = run(catalogue.EXPERIMENTS["luo2019/broken"], "smoke", tmp_path, executor="serial")
    assert one.failures == ("ValueError: seed 0 went wrong", "ValueError: seed 1 went wrong")
    (row,) = rows_of(one)
    assert (row.verdict, row.reason) == ("not run", "trials are missing or failed")


def row_with(verdict, kind="paper", group="figure", seeds=None, name="x"):
    return LedgerRow(f"wei2019/{name}", "", "", kind, group, verdict=verdict, seeds=seeds)


@pytest.mark.parametrize(
    ("verdict", "seeds", "judged"),
    [("reproduced", None, True), ("partly", 1, True), ("not reproduced", 2, True),
     ("undecided", 5, True), ("undecided", 4, False), ("undecided", None, False),
     ("blocked by scale", 9, False), ("not run", 9, False)],
)  # fmt: skip
def test_what_counts_as_judged(verdict, seeds, judged):
    assert row_with(verdict, seeds=seeds).judged is judged


def test_totals_are_of_the_papers_own_claims():
    rows = [row_with(v, seeds=5) for v in VERDICTS]
    rows += [row_with("partly", kind=k) for k in ("ours", "guard")]
    rows += [row_with("not reproduced", group="misprint"), row_with("undecided", seeds=2)]
    both = Ledger([PaperLedger("wei2019", tuple(rows)), PaperLedger("luo2019", (rows[0],))])
    wei, luo, whole = both.totals()
    assert wei == {
        "paper": "wei2019", "rows": 8, "decided": 4, "judged": 5, "changed": 0, "reproduced": 1,
        "partly": 1, "not reproduced": 2, "undecided": 2, "blocked by scale": 1, "not run": 1,
    }  # fmt: skip
    assert (luo["rows"], luo["judged"]) == (1, 1)
    assert (whole["paper"], whole["rows"], whole["judged"]) == ("all", 9, 6)
    assert both.totals(misprints=True)[-1]["rows"] == 1
    assert both.totals(misprints=False)[-1]["not reproduced"] == 1
    assert both.totals(kind="guard")[-1]["partly"] == 1
    cells = both.markdown().splitlines()[2].split("|")  # misprints stand apart
    assert [cell.strip() for cell in cells[1:-1]] == [
        "wei2019", "8", "4", "1", "1", "1", "1", "2", "1", "1"
    ]  # fmt: skip
    assert both.summary().startswith("9 claims of 2 papers: 2 reproduced, 1 partly, 2 not rep")
    assert len(both.to_frame()) == 11
    assert set(both.to_dict()) == {"claims", "totals"}
    assert Ledger([]).totals()[-1]["rows"] == 0


def test_the_ledger_needs_no_torch(ledger, tmp_path):
    write_ledger(ledger, tmp_path)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from normscope.results import ledger\n"
        f"found = ledger.read_ledger({str(tmp_path)!r})\n"
        "ledger.shipped_ledger = lambda: found\n"
        "from normscope.cli import main\n"
        "assert main(['reproduce', '--ledger']) == 0\n"
        "assert main(['reproduce', 'wei2019/fig1', '--ledger', '--json']) == 0\n"
        "assert main(['reproduce', 'wei2019/fig9', '--ledger']) == 2\n"
        f"assert main(['reproduce', '--ledger', '--pages', {str(tmp_path)!r}]) == 0\n"
        "assert not [m for m in sys.modules if m.startswith('normscope.experiments')]\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "wei2019.html").is_file()
    assert "Did you mean 'wei2019/fig1" in done.stderr


def test_an_empty_ledger_can_be_shown():
    assert shipped_ledger().totals()[-1]["paper"] == "all"
    assert Ledger([]).summary() == "0 claims of 0 papers: none."
