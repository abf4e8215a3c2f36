"""Journals: what is read back after any damage, and what is refused."""

import json
import re

import pytest

import normscope as ns
from normscope.errors import InputError
from normscope.sweeps import Store, StoreError, Sweep, Trial
from normscope.sweeps.plan import make_plan
from normscope.sweeps.store import Journal, line_of
from sweep_trials import failing, logged, product

GRID = {"x": [1.0, 2.0, 3.0], "y": [0.5, 4.0]}


@pytest.fixture
def folder(tmp_path):
    ns.sweep(product, GRID, output=tmp_path / "s", workers=1)
    return tmp_path / "s"


def journal(folder):
    [path] = (folder / "records").glob("*.jsonl")
    return path


def rerun(folder):
    """The number of trials that the same call runs again, and its result."""
    before = set((folder / "records").iterdir())
    found = ns.sweep(product, GRID, output=folder, workers=1)
    fresh = set((folder / "records").iterdir()) - before
    return sum(len(path.read_text().splitlines()) for path in fresh), found


def values(found):
    return found.to_frame()["value"].tolist()


def test_results_come_in_the_order_of_the_plan(folder):
    found = Sweep(folder)
    assert found.complete
    assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]
    assert rerun(folder)[0] == 0


def test_records_come_back_as_they_were(folder):
    found = Sweep(folder)
    expected = {key: product(**row) for key, row in found.plan.trials.items()}
    assert found.records() == expected


def test_a_line_says_where_and_with_what_it_was_made(folder):
    line = json.loads(journal(folder).read_text().splitlines()[0])
    assert {"key", "settings", "status", "record", "error", "checksum", "about"} == set(line)
    assert {"seconds", "host", "versions", "time"} <= set(line["about"])


def test_a_torn_last_line_runs_again_and_nothing_else_is_touched(folder):
    path = journal(folder)
    whole = path.read_bytes()
    for cut in (1, 2, 40):
        path.write_bytes(whole[:-cut])
        again, found = rerun(folder)
        assert again == 1
        assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]
        assert not found.found.bad
        assert path.read_bytes() == whole[:-cut]
        [p.unlink() for p in path.parent.iterdir() if p != path]


def test_a_bad_line_is_named_and_its_trial_runs_again(folder):
    path = journal(folder)
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"value": ', '"value": 1')
    lines[4] = "\x00garbage"
    path.write_text("\n".join(lines) + "\n")
    again, found = rerun(folder)
    assert again == 2
    assert [place.line for place in found.found.bad] == [3, 5]
    assert f"{path.name}, line 3" in found.summary()
    assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]


def test_equal_records_of_two_drivers_count_once(folder):
    path = journal(folder)
    text = re.sub('"host": "[^"]*"', '"host": "elsewhere"', path.read_text())
    path.with_name("all.20990101T000000.jsonl").write_text(text)
    found = Sweep(folder)
    assert found.complete
    assert not found.found.conflicts
    assert len(found.to_frame()) == 6


def test_of_different_records_the_first_counts_and_both_are_named(folder):
    store = Store(folder)
    plan = store.plan()
    key, settings = next(iter(plan.trials.items()))
    later = Journal(store, "2of9")
    record = json.dumps(product(99.0).to_dict())
    later.write([line_of(key, settings, record, None, {"seconds": 1.0})])
    later.close()
    found = Sweep(folder)
    assert [(k, b.file) for k, _, b in found.found.conflicts] == [(key, later.path.name)]
    assert f"{later.path.name}, line 1" in found.summary()
    assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]


def test_failures_keep_their_traceback_and_may_be_tried_again(tmp_path):
    found = ns.sweep(failing, {"x": range(1, 7)}, output=tmp_path, workers=1)
    assert len(found.found.failed) == 2
    assert all("is a multiple of three" in text for text in found.errors().values())
    assert "2 failed" in found.summary()
    assert found.to_frame()["status"].tolist() == ["done", "done", "failed"] * 2
    files = len(list((tmp_path / "records").iterdir()))
    ns.sweep(failing, {"x": range(1, 7)}, output=tmp_path, workers=1)
    assert len(list((tmp_path / "records").iterdir())) == files
    found = ns.sweep(failing, {"x": range(1, 7)}, output=tmp_path, workers=1, retry_failed=True)
    assert len(found.found.failed) == 2
    assert len(list((tmp_path / "records").iterdir())) == files + 1


@pytest.mark.parametrize(("limit", "most"), [({"fail_fast": True}, 1), ({"max_failures": 2}, 2)])
def test_a_sweep_stops_after_too_many_failures(limit, most, tmp_path):
    with pytest.raises(ns.NormscopeError, match=f"{most} trials failed"):
        ns.sweep(failing, {"x": range(30)}, output=tmp_path, workers=1, **limit)
    found = Sweep(tmp_path)
    assert len(found.found.failed) == most
    assert found.missing > 0


def test_another_sweep_or_other_files_are_refused(folder, tmp_path):
    for change in ({"x": [1.0]}, {"x": [1.0, 2.0, 3.0], "y": [0.5, 5.0]}):
        with pytest.raises(InputError, match="holds another sweep"):
            ns.sweep(product, change, output=folder, workers=1)
    with pytest.raises(InputError, match=r"holds another sweep \(version 1 there, 2 here"):
        ns.sweep(Trial(product, version=2), GRID, output=folder, workers=1)
    with pytest.raises(InputError, match="holds other files"):
        ns.sweep(product, GRID, output=tmp_path, workers=1)
    with pytest.raises(InputError, match="is a file"):
        ns.sweep(product, GRID, output=folder / "plan.json", workers=1)
    with pytest.raises(InputError, match=r"no plan\.json"):
        Sweep(tmp_path)


@pytest.mark.parametrize("output", [None, 3, ""])
def test_a_folder_is_a_path(output):
    with pytest.raises(InputError, match=r"a folder.*Got"):
        ns.sweep(product, GRID, output=output, workers=1)


def test_a_plan_that_cannot_be_read(folder):
    plan = folder / "plan.json"
    plan.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no plan of a sweep"):
        Sweep(folder)
    plan.unlink()
    plan.mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        Sweep(folder)


def test_a_sweep_is_shown_by_how_far_it_is(folder):
    assert repr(Sweep(folder)).startswith("Sweep(6 of 6 trials done")


def test_a_changed_function_is_warned_of(folder):
    plan = folder / "plan.json"
    source = json.loads(plan.read_text())["source"]
    plan.write_text(plan.read_text().replace(source, "0" * 20))
    with pytest.warns(UserWarning, match="has changed"):
        ns.sweep(product, GRID, output=folder, workers=1)


def test_a_disk_that_fails_leaves_whole_lines(tmp_path, monkeypatch):
    """The third write stops in the middle of a line, as on a full disk."""
    import os

    write, calls = os.write, []

    def full(file, data):
        calls.append(len(data))
        if len(calls) == 3:
            return write(file, data[:30])
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr("normscope.sweeps.store.os.write", full)
    with pytest.raises(StoreError, match=r"No space left.*\n?.*2 trials of this start are saved"):
        ns.sweep(product, GRID, output=tmp_path, workers=1)
    monkeypatch.undo()
    assert len(journal(tmp_path).read_text().splitlines()) == 2
    found = ns.sweep(product, GRID, output=tmp_path, workers=1)
    assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]
    assert not found.found.torn


def test_no_byte_of_a_line_can_harm_more_than_its_trial(folder):
    """One bit of each byte is flipped in turn: the line is read as it was, or named."""
    path, expected = journal(folder), Sweep(folder).to_frame()
    whole = path.read_bytes()
    length = whole.index(b"\n")
    for place in range(length):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        found = Sweep(folder)
        assert found.complete or len(found.found.bad) == 1
        assert len(found.found.done) >= 5
        assert found.summary()
        assert not found.complete or found.to_frame().equals(expected)


def test_a_journal_that_goes_away_while_others_read(folder, monkeypatch):
    """A driver that ends without a result removes its empty file."""
    Journal(Store(folder), "2of9")
    listed = list((folder / "records").iterdir())
    next(path for path in listed if path.name.startswith("2of9")).unlink()
    monkeypatch.setattr("normscope.sweeps.store.Path.glob", lambda *_: iter(listed))
    assert Sweep(folder).complete


def test_a_plan_is_written_once(tmp_path, monkeypatch):
    """Of two sweeps that begin in one folder at the same moment the second is refused."""
    from normscope.sweeps import store as module

    mine, other = (make_plan(Trial(product), {"x": x}) for x in ([1, 2], [3, 4]))
    exists = module.Path.exists

    def late(path):
        found = exists(path)
        if path.name == "plan.json" and not found:
            monkeypatch.undo()
            Store(tmp_path).prepare(other)
        return found

    monkeypatch.setattr(module.Path, "exists", late)
    with pytest.raises(InputError, match="holds another sweep"):
        Store(tmp_path).prepare(mine)
    assert Store(tmp_path).plan().identity == other.identity
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_a_plan_where_there_are_no_links(tmp_path, monkeypatch):
    def none(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", none)
    assert ns.sweep(product, GRID, output=tmp_path, workers=1).complete


def test_journals_are_ordered_by_one_look_at_the_clock(folder, monkeypatch):
    """Second and fraction from two looks put a journal a second too early now and then."""
    monkeypatch.setattr("normscope.sweeps.store.time.time_ns", lambda: 11_000_000_001)
    made = Journal(Store(folder), "all")
    assert made.path.name.startswith("all.19700101T000011.000000001-")
    made.close()


def test_a_journal_is_no_program(folder):
    assert not journal(folder).stat().st_mode & 0o111


@pytest.mark.parametrize("saved", [0, 2])
def test_a_disk_that_turns_read_only(saved, tmp_path, monkeypatch):
    """Neither the journal nor its lock nor its checkpoints can be touched any more."""
    import os

    calls, real = [], {name: getattr(os, name) for name in ("write", "ftruncate", "unlink")}

    def refusing(name):
        def call(*arguments, **options):
            calls.append(name)
            if calls.count("write") > saved:
                raise OSError(30, "Read-only file system")
            return real[name](*arguments, **options)

        return call

    for name in real:
        monkeypatch.setattr(f"normscope.sweeps.store.os.{name}", refusing(name))
    said = f"Read-only file system.*{saved} trials of this start are saved"
    with pytest.raises(StoreError, match=said):
        ns.sweep(product, GRID, output=tmp_path, workers=1)
    monkeypatch.undo()
    assert len(Sweep(tmp_path).found.done) == saved
    found = ns.sweep(product, GRID, output=tmp_path, workers=1)
    assert values(found) == [0.5, 4.0, 1.0, 8.0, 1.5, 12.0]


def test_results_that_are_called_as_a_setting_do_not_hide_it(tmp_path):
    found = ns.sweep(renaming, {"x": [1, 2]}, output=tmp_path, workers=1).to_frame()
    assert found["x"].tolist() == [1, 2]
    assert found["record.x"].tolist() == [-1, -2]


def renaming(x):
    return {"x": -x}


def test_export_is_the_table(folder, tmp_path):
    import pandas as pd

    found = Sweep(folder)
    found.to_csv(tmp_path / "t.csv")
    read = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert read["value"].tolist() == values(found)
    with pytest.raises(InputError, match="There is no folder"):
        found.to_csv(tmp_path / "none" / "t.csv")


def test_results_are_plain_and_ended_trials_only(tmp_path):
    found = ns.sweep(logged, {"x": [1, 5], "log": str(tmp_path)}, output=tmp_path / "s", workers=1)
    assert found.found.diverged == 1
    plan = make_plan(Trial(logged), {"x": [1, 5], "log": str(tmp_path)})
    assert found.plan.identity == plan.identity
