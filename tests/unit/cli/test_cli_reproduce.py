"""``normscope reproduce``: lists, runs, goes on after a kill, shows and verifies the ledger."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import catalogue
from command_line import assert_keys_are_checked, assert_one_line
from normscope.cli import main
from normscope.cli.reproduce import OPTIONS, _seconds
from normscope.errors import InputError
from normscope.experiments.experiment import Scale
from normscope.experiments.ledger import updated
from normscope.experiments.reproduce import folder_of, run
from normscope.results import ledger as ledgers
from normscope.results.ledger import Ledger, read_ledger, write_ledger

TESTS = Path(__file__).parents[2]
SMOKE = ["--scale", "smoke", "--executor", "serial"]


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """The small catalogue, no data sets, and an empty ledger."""
    catalogue.install(monkeypatch)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ledgers, "shipped_ledger", lambda: Ledger([]))


@pytest.fixture
def shipped(monkeypatch, tmp_path):
    known = [catalogue.EXPERIMENTS[k] for k in ("wei2019/gains", "wei2019/slow")]
    outcomes = [run(one, "desk", tmp_path / "store", executor="serial") for one in known]
    write_ledger(updated(Ledger([]), outcomes), tmp_path / "ledger")
    monkeypatch.setattr(ledgers, "shipped_ledger", lambda: read_ledger(tmp_path / "ledger"))
    return tmp_path / "ledger"


def said(words, capsys, *, code=0):
    assert main(["reproduce", *map(str, words)]) == code
    return capsys.readouterr()


def claims_in(captured):
    return [row["id"] for row in json.loads(captured.out)["claims"]]


def test_the_list_of_experiments_and_their_costs(capsys):
    shown = said([], capsys)
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0][:5] == ["experiment", "claims", "smoke", "desk", "paper"]
    table = {line[0]: line[1:] for line in lines[1:]}
    assert list(table) == list(catalogue.EXPERIMENTS)
    assert table["wei2019/gains"][:7] == ["4", "1", "s", "30", "s", "as", "desk"]
    assert table["wei2019/slow"][:6] == ["1", "1", "s", "7", "min", "-"]
    assert table["luo2019/real"][:8] == ["1", "1", "s", "60", "s", "-", "mnist", "Gains"]
    assert table["luo2019/broken"][:7] == ["1", "1", "s", "-", "500", "GPU", "h"]
    data = json.loads(said(["--json"], capsys).out)["experiments"]
    assert [one["id"] for one in data] == list(catalogue.EXPERIMENTS)
    first = {"id": "wei2019/gains", "title": "Gains of five networks", "claims": 4,
             "seconds": {"smoke": 1.0, "desk": 30.0}, "data": []}  # fmt: skip
    assert data[0] == first


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["wei2019/fig1"], ["wei2019/fig1"]),
        (["wei2019/gains"], ["wei2019/fig1", "wei2019/fig1-one", "wei2019/eq2", "wei2019/eq3"]),
        (["wei2019/fig1", "wei2019/slow"], ["wei2019/fig1", "wei2019/slow"]),
        (["wei2019/fig1,wei2019/slow"], ["wei2019/fig1", "wei2019/slow"]),
        (["wei2019/read"], ["wei2019/read"]),
        (["wei2019"], [k for k in catalogue.CLAIMS if k.startswith("wei2019")]),
    ],
)
def test_papers_experiments_and_claims(names, found, capsys):
    shown = said([*names, *SMOKE, "--json"], capsys)
    assert claims_in(shown) == found
    assert "A smoke run checks the code only" in shown.err or names == ["wei2019/read"]
    rows = json.loads(shown.out)["claims"]
    assert {(row["scale"], row["verdict"]) for row in rows} <= {
        ("smoke", "ran"), ("", "not reproduced")
    }  # fmt: skip


def test_a_smoke_run_gives_no_verdict(shipped, capsys):
    out = said(["wei2019/gains", *SMOKE], capsys).out
    found = {line.split()[0]: line.split()[-3:] for line in out.splitlines()[1:]}
    assert found["wei2019/fig1"][1:] == ["ran", "reproduced"]
    assert found["wei2019/eq3"] == ["ran", "not", "reproduced"]


def test_a_table_with_the_verdict_in_the_ledger(shipped, capsys):
    out = said(["wei2019/eq3", "wei2019/fig1-one", "--executor", "serial"], capsys).out
    assert [line.split()[0] for line in out.splitlines()] == [
        "claim", "wei2019/fig1-one", "wei2019/eq3"
    ]  # fmt: skip
    assert out.count("not reproduced") == 2
    assert "in the ledger" in out
    assert Path("reproduced", "wei2019-gains").is_dir()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["wei2019/fig2"],
            ["Unknown claim or experiment 'wei2019/fig2'", "Did you mean 'wei2019/fig1"],
        ),
        (["wei2020"], ["Unknown paper 'wei2020'", "Did you mean 'wei2019'?"]),
        (["hunag2020"], ["Unknown paper 'hunag2020'", "Did you mean 'huang2020'?"]),
        (["wei2019/gain"], ["Did you mean 'wei2019/gains'?"]),
        (["wei2019", "--output", __file__], ["--output is a folder", "test_cli_reproduce.py"]),
        (["wei2019/fig1", "--scale", "dest"], ["Unknown scale 'dest'", "'desk'"]),
        (["--budget", "soon"], ["90s, 20m or 2h", "'soon'"]),
        (["--budget=-3m"], ["90s, 20m or 2h"]),
        (["wei2019", "--scale", "smoke", "--update-ledger", "x"], ["checks the code only"]),
        (["wei2019/fig9", "--ledger"], ["The ledger has no row 'wei2019/fig9'"]),
        (["wei2019", "wei2019/fig9", "--ledger"], ["The ledger has no row 'wei2019/fig9'"]),
        (["wei2019", "--excutor", "serial"], ["unknown flag --excutor", "--executor"]),
    ],
)
def test_refusals(words, parts, capsys):
    captured = said(words, capsys, code=2)
    assert captured.out == ""
    assert_one_line(captured.err, parts)


def test_keys_of_a_file_are_checked(tmp_path, capsys):
    def err(path):
        return said(["--config", path], capsys, code=2).err

    assert_keys_are_checked(OPTIONS, tmp_path / "c.toml", err)


def test_a_file_may_hold_it_all(tmp_path, capsys):
    (tmp_path / "c.toml").write_text(
        'names = ["wei2019/fig1", "wei2019/slow"]\nscale = "smoke"\nexecutor = "serial"\n'
        "json = true\nledger = false\nverify = false\n"
    )
    shown = said(["--config", tmp_path / "c.toml"], capsys)
    assert claims_in(shown) == ["wei2019/fig1", "wei2019/slow"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("2h", 7200), ("1.5 h", 5400), ("45", 45)]
)
def test_budgets(text, seconds):
    assert _seconds(text) == seconds
    with pytest.raises(InputError):
        _seconds(text + "x")


def test_a_budget_takes_the_cheapest_without_a_verdict(shipped, monkeypatch, capsys):
    words = ["--executor", "serial", "--workers", "1", "--json", "--budget"]
    shown = said([*words, "1h"], capsys, code=3)
    assert claims_in(shown) == []  # all others are judged
    assert "could still decide" not in shown.err  # with its data luo2019/real could
    monkeypatch.setattr(ledgers, "shipped_ledger", lambda: Ledger([]))
    shown = said([*words, "60s"], capsys, code=3)
    assert "wei2019/fig1" in claims_in(shown)
    assert "wei2019/slow" not in claims_in(shown)
    assert "wei2019/slow" in claims_in(said([*words, "10m"], capsys, code=3))
    shown = said([*words, "1s"], capsys, code=3)
    least = "the shortest, wei2019/gains, takes about 30 s."
    assert f"Nothing without a verdict fits into 1 s: {least}" in shown.err


def test_a_budget_says_its_plan_and_nothing_of_what_it_cannot_run(capsys):
    words = ["--executor", "serial", "--workers", "1", "--json", "--budget", "10m"]
    err = said(words, capsys, code=3).err
    plan = "2 experiments, about 7 min 10 s: wei2019/gains, wei2019/slow."
    assert err.splitlines()[1] == plan
    assert err.index(plan) < err.index("Gains of five networks")
    assert "luo2019/broken" not in err


def test_a_budget_leaves_out_what_would_come_to_the_same(shipped, monkeypatch, capsys):
    """Undecided with these settings: the same trials would give the same numbers."""
    ledger = read_ledger(shipped)
    paper = ledger.papers["wei2019"]
    rows = tuple(replace(r, verdict="undecided", seeds=2) for r in paper.rows)
    there = Ledger([replace(paper, rows=rows)])
    monkeypatch.setattr(ledgers, "shipped_ledger", lambda: there)
    words = ["wei2019", "--executor", "serial", "--json", "--budget", "10m"]
    shown = said(words, capsys)
    assert claims_in(shown) == []
    assert "There is nothing that a run at scale 'desk' could still decide." in shown.err
    rows = tuple(replace(r, settings="") for r in rows)
    there = Ledger([replace(paper, rows=rows)])
    assert "2 experiments" in said(words, capsys).err


def test_a_missing_data_set_leaves_the_rest(capsys):
    shown = said(["wei2019", "luo2019/real", "--executor", "serial", "--json"], capsys, code=3)
    assert "luo2019/real" not in claims_in(shown)
    assert "wei2019/fig1" in claims_in(shown)
    (line,) = (line for line in shown.err.splitlines() if "mnist" in line)  # said once
    for part in ("MNIST was not found", "train-images-idx3-ubyte", "--data-dir", "NORMSCOPE_DATA",
                 "Left out, as they need mnist: luo2019/real."):  # fmt: skip
        assert part in line
    assert "load_data" not in line
    assert "digits" not in line
    assert claims_in(said(["luo2019/real", *SMOKE, "--json"], capsys)) == ["luo2019/real"]


def test_blocked_by_scale_says_the_command(capsys):
    shown = said(["luo2019/table9", "--json"], capsys, code=3)
    assert json.loads(shown.out) == {"claims": []}
    assert (
        "normscope reproduce luo2019/broken --scale paper, about 500 hours on one GPU" in shown.err
    )


def test_trials_that_fail(capsys):
    shown = said(["luo2019/broken", *SMOKE, "--json"], capsys, code=3)
    assert "a trial failed: ValueError: seed 0 went wrong" in shown.err
    (row,) = json.loads(shown.out)["claims"]
    assert (row["verdict"], row["reason"]) == ("failed", "trials are missing or failed")


def test_other_settings_have_another_folder(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CATALOGUE_LOG", str(tmp_path / "log"))
    (tmp_path / "log").mkdir()
    words = ["wei2019/gains", *SMOKE, "--output", tmp_path / "out"]
    said(words, capsys)
    said(words, capsys)
    assert len(list((tmp_path / "log").iterdir())) == 2  # the second command ran nothing
    before = catalogue.EXPERIMENTS["wei2019/gains"]
    for change in ({"version": 2}, {"scales": {"smoke": Scale({"shift": 2.0}, 2)}}):
        other = replace(before, **change)
        catalogue.install(monkeypatch, catalogue.EXPERIMENTS | {other.id: other})
        said(words, capsys)
        assert folder_of(other, "smoke", tmp_path / "out").is_dir()
    assert len(list((tmp_path / "out" / "wei2019-gains").iterdir())) == 3
    assert len(list((tmp_path / "log").iterdir())) == 6


DRIVER = """
import signal, sys, catalogue, pytest
from normscope.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
with pytest.MonkeyPatch.context() as patch:
    catalogue.install(patch)
    sys.exit(main(["reproduce", "wei2019/gains", "--executor", "serial", "--json", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_a_killed_run_goes_on(name, tmp_path):
    """The trials that were finished do not run again, and the verdicts are the same."""
    log = tmp_path / "log"
    log.mkdir()
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
                        "CATALOGUE_LOG": str(log)}  # fmt: skip
    command = [sys.executable, "-c", DRIVER, "--output", str(tmp_path / "out")]
    # the fourth trial never ends by itself
    waiting = env | {"CATALOGUE_HANGS": "3"}
    first = subprocess.Popen(command, env=waiting, stderr=subprocess.DEVNULL)
    while not list(log.glob("3-*")):
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(getattr(signal, name))
    assert first.wait() == (130 if name == "SIGINT" else -signal.SIGKILL)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    seeds = sorted(path.name.split("-")[0] for path in log.iterdir())
    assert seeds == ["0", "1", "2", "3", "3", "4"]
    fresh = run(catalogue.EXPERIMENTS["wei2019/gains"], "desk", tmp_path / "f", executor="serial")
    rows = json.loads(done.stdout)["claims"]
    assert {row["id"]: row["verdict"] for row in rows} == {
        key: one.verdict for key, one in fresh.judgements.items()
    }
    assert rows[0]["observation"] == fresh.observations["gain"]


def test_an_interrupted_run_says_what_is_saved(monkeypatch, tmp_path, capsys):
    log = tmp_path / "log"
    log.mkdir()
    monkeypatch.setenv("CATALOGUE_LOG", str(log))
    monkeypatch.setenv("CATALOGUE_HANGS", "3")

    def interrupt():
        while not list(log.glob("3-*")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    words = ["wei2019/gains", "--executor", "serial", "--json"]
    err = said(words, capsys, code=130).err
    thread.join()
    place = folder_of(catalogue.EXPERIMENTS["wei2019/gains"], "desk", "reproduced")
    done = len(list(log.iterdir())) - 1
    assert f"{done} of 5 trials of wei2019/gains are saved in {place}. The same command" in err
    monkeypatch.delenv("CATALOGUE_HANGS")
    err = said(words, capsys).err
    assert "The results are in reproduced; the same command runs only what is missing." in err
    seeds = sorted(path.name.split("-")[0] for path in log.iterdir())
    assert seeds == ["0", "1", "2", "3", "3", "4"]


def test_what_is_to_be_known_of_a_verdict(shipped, monkeypatch, capsys):
    paper = read_ledger(shipped).papers["wei2019"]
    first, second, *rest = paper.rows
    read = replace(rest[-1], verdict="not run")
    first = replace(first, verdict="partly", seeds_needed=5)
    second = replace(second, verdict="undecided", changed="The threshold was 0.")
    rows = (first, second, *rest[:-1], read)
    there = Ledger([replace(paper, rows=rows, altered=(first.id,))])
    monkeypatch.setattr(ledgers, "shipped_ledger", lambda: there)
    shown = said(["--ledger"], capsys)
    words = " ".join(shown.out.split())
    for part in ("partly so far; about 5 runs would decide", "undecided *", "cannot be tested",
                 "* the claim or its rule was changed after the run (1 of the rows",
                 "wei2019/fig1 Fig. 1 above 0", "wei2019/eq3 (3) below 0"):  # fmt: skip
        assert part in words
    assert max(map(len, shown.out.splitlines())) <= 100
    assert_one_line(
        shown.err, ["do not match for one entry of the ledger: wei2019/fig1.", "--verify"]
    )
    rows = json.loads(said(["--ledger", "--json"], capsys).out)["claims"]
    assert rows[1]["changed"] == "The threshold was 0."


def test_the_ledger_in_the_terminal_and_as_json(shipped, capsys):
    out = said(["--ledger"], capsys).out
    assert "wei2019/fig1-one" in out
    total = next(line.split() for line in out.splitlines() if line.split()[:1] == ["all"])
    assert " ".join(total) == "all 7 5 3 0 1 1 0 1 1"
    assert "5 of the 6 claims that are not blocked" in out
    rows = json.loads(said(["--ledger", "--json"], capsys).out)["claims"]
    assert [row["id"] for row in rows] == list(catalogue.CLAIMS)
    assert rows[0]["source"] == {"paper": "wei2019", "item": "Fig. 1"}
    shown = said(["luo2019", "wei2019/gains", "--ledger", "--json"], capsys)
    assert len(claims_in(shown)) == 6


def test_verify_names_the_row(shipped, capsys):
    assert (
        "8 rows checked (7 claims of papers, 1 of our own): all match."
        in said(["--verify"], capsys).out
    )
    path = shipped / "wei2019" / "ledger.json"
    text = path.read_text().replace('"verdict": "not reproduced"', '"verdict": "reproduced"', 1)
    path.write_text(text)
    out = said(["--verify"], capsys, code=1).out
    assert "wei2019/eq3: edited by hand" in out
    assert (
        "verdict: the file says 'reproduced'; computed from the observations: 'not reproduced'"
    ) in out
    assert "(7 claims of papers, 1 of our own): 1 does not match." in out
    data = json.loads(said(["--verify", "--json"], capsys, code=1).out)
    assert data["rows"] == 8
    assert all(line.startswith("wei2019/eq3: ") for line in data["troubles"])


def test_pages(shipped, tmp_path, capsys):
    err = said(["--ledger", "--pages", tmp_path / "pages"], capsys).err
    assert "papers.html and 5 pages beside it" in err
    text = (tmp_path / "pages" / "papers.html").read_text()
    assert 'href="wei2019.html#wei2019-fig1"' in text
    page = (tmp_path / "pages" / "wei2019.html").read_text()
    for part in ("What the paper got wrong", "The sign is the other one.", "Two networks at most.",
                 "normscope reproduce wei2019/fig1 --scale desk", "<svg"):  # fmt: skip
        assert part in page
    said(["wei2019/gains", *SMOKE, "--pages", tmp_path / "smoke"], capsys)
    page = (tmp_path / "smoke" / "wei2019.html").read_text()
    assert "a smoke run checks the code only" in page
    assert "The sign is the other one." not in page  # an error of the paper needs a verdict


def test_the_ledger_is_updated_after_each_experiment(tmp_path, capsys):
    words = ["wei2019", "--executor", "serial", "--update-ledger", tmp_path / "new"]
    said(words, capsys)
    assert read_ledger(tmp_path / "new")["wei2019/slow"].verdict == "reproduced"
    assert said(["--verify", "--update-ledger", tmp_path / "new"], capsys).out.endswith(
        "all match.\n"
    )
