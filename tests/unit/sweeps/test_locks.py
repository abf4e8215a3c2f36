"""One driver per shard."""

import contextlib
import json
import os
import socket

import pytest

import normscope as ns
from normscope.errors import InputError
from normscope.sweeps import BusyError, Store, StoreError, Sweep
from normscope.sweeps.locks import checked_shard, drivers, driving
from sweep_trials import product

GRID = {"x": range(8)}


@pytest.fixture
def store(tmp_path):
    ns.sweep(product, GRID, output=tmp_path, workers=1, shard="1/4")
    return Store(tmp_path)


@pytest.mark.parametrize("shard", ["0/4", "5/4", "4", "a/b", "-1/4", (3, 2), 3, "1/4/2", (1.5, 2)])
def test_bad_shards_are_refused(shard):
    with pytest.raises(InputError, match="i from 1 to n"):
        checked_shard(shard)


def test_shards_run_their_part_and_together_all(store):
    assert len(Sweep(store).found.done) == 2
    for number in (2, 3, 4):
        ns.sweep(product, GRID, output=store.folder, workers=1, shard=f"{number}/4")
    assert Sweep(store).complete
    names = sorted(path.name.split(".")[0] for path in store.records.iterdir())
    assert names == ["1of4", "2of4", "3of4", "4of4"]


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ((1, 4), (1, 4), True),
        ((1, 4), (2, 4), False),
        ((1, 4), (1, 2), True),
        ((1, 4), None, True),
        (None, (1, 4), True),
        (None, None, True),
    ],
)
def test_who_may_work_beside_whom(store, first, second, refused):
    with driving(store, first):
        expected = pytest.raises(BusyError) if refused else contextlib.nullcontext()
        with expected as error, driving(store, second):
            pass
        if refused:
            assert f"process {os.getpid()} on {socket.gethostname()}, since 20" in str(error.value)
        assert [who["pid"] for who in drivers(store)] == [os.getpid()]
    with driving(store, second):  # once the first has ended
        pass
    assert not drivers(store)


def test_the_switch(store):
    with driving(store, (1, 4)), driving(store, (1, 4), lock=False):
        pass


def test_a_summary_names_who_is_at_work(store):
    with driving(store, (2, 4)):
        assert f"running: 2of4, process {os.getpid()}" in Sweep(store).summary()
    (store.locks / "2of4.json").write_text("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads((store.locks / "2of4.json").read_text())
    assert "running" not in Sweep(store).summary()


def test_without_locks_one_line_says_so(store, monkeypatch):
    def none(*arguments):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(UserWarning, match="has no locks"):
        ns.sweep(product, GRID, output=store.folder, workers=1)
    assert Sweep(store).complete


@pytest.mark.parametrize("number", [28, 30])
def test_a_disk_that_cannot_be_written_is_not_said_to_lack_locks(store, monkeypatch, number):
    def full(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("normscope.sweeps.locks.write_atomically", full)
    with pytest.raises(StoreError, match=os.strerror(number)), driving(store, None):
        pass
    monkeypatch.undo()
    with driving(store, None):  # the lock was given back
        pass
