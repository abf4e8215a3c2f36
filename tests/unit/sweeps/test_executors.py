"""One contract for all executors: the same table, whatever a trial does."""

import io
import math
import sys

import numpy as np
import pytest
import threadpoolctl

import normscope as ns
from normscope.errors import InputError, NormscopeError
from normscope.sweeps import Sweep, live, running
from sweep_trials import deadly, failing, logged, product, remembering

LOCAL = [{"executor": "serial"}, {"executor": "processes", "workers": 2}]
CHILDREN = LOCAL[1:]
RAY = pytest.param({"executor": "ray", "workers": 2}, marks=pytest.mark.distributed, id="ray")


def named(executors):
    return [pytest.param(one, id=one["executor"]) for one in executors] + [RAY]


def nonfinite(x: float) -> dict:
    return {"x": x, "nan": math.nan, "inf": -math.inf, "array": np.arange(3.0), "none": None}


def threads(x: int) -> dict:
    import torch

    pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
    return {"threads": max(torch.get_num_threads(), *pools)}


def leaving(x: int) -> dict:
    if x == 1:
        raise SystemExit(7)
    return {"x": x}


def wrong(x: int) -> object:
    return object()


@pytest.mark.parametrize("how", named(LOCAL))
def test_every_trial_comes_back_once(how, tmp_path):
    found = ns.sweep(product, {"x": [1.0, 2.0, 2e6], "y": 3.0}, seeds=2, output=tmp_path, **how)
    assert found.complete
    assert found.to_frame()["value"].tolist() == [3.0, 4.0, 6.0, 7.0, 6e6, 6e6 + 1]
    assert found.found.diverged == 2


@pytest.mark.parametrize("how", named(LOCAL))
def test_failures_are_results(how, tmp_path):
    found = ns.sweep(failing, {"x": range(1, 7)}, output=tmp_path, **how)
    assert len(found.found.failed) == 2
    text = next(iter(found.errors().values()))
    assert "Traceback" in text
    assert "in failing" in text
    found = ns.sweep(wrong, {"x": [1]}, output=tmp_path / "wrong", **how)
    assert "returns a Record or a dict" in next(iter(found.errors().values()))


@pytest.mark.parametrize("how", named(LOCAL))
def test_a_trial_that_exits_is_a_failed_one(how, tmp_path):
    found = ns.sweep(leaving, {"x": [1, 2]}, output=tmp_path, **how)
    assert len(found.found.done) == 1
    [error] = found.errors().values()
    assert "SystemExit: 7" in error


@pytest.mark.parametrize("how", named(LOCAL))
def test_numbers_that_json_lacks_come_back(how, tmp_path):
    found = ns.sweep(nonfinite, {"x": [0.1]}, output=tmp_path, **how)
    [row] = found.to_frame().to_dict("records")
    assert math.isnan(row["nan"])
    assert row["inf"] == -math.inf
    assert row["x"] == 0.1
    assert "array" not in row


@pytest.mark.parametrize("how", named(LOCAL))
def test_a_trial_has_one_thread(how, tmp_path):
    import torch

    before = torch.get_num_threads()
    with threadpoolctl.threadpool_limits(2):  # as numpy's BLAS has on a machine of two cores
        found = ns.sweep(threads, {"x": [1, 2]}, output=tmp_path, **how)
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {2}
    assert found.to_frame()["threads"].tolist() == [1, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("how", named(CHILDREN))
def test_a_trial_that_kills_its_process_is_recorded_and_the_others_run(how, tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    grid = {"x": range(6), "deadly": 2, "log": str(log)}
    found = ns.sweep(deadly, grid, output=tmp_path / "s", **how)
    assert len(found.found.done) == 5
    [error] = found.errors().values()
    assert "died 3 times" in error
    assert len(list(log.iterdir())) == 5


@pytest.mark.parametrize("how", named(CHILDREN))
def test_a_trial_goes_on_from_its_checkpoint(how, tmp_path):
    found = ns.sweep(remembering, {"x": [1, 2]}, output=tmp_path, **how)
    assert found.to_frame()["attempts"].tolist() == [2, 2]
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_function_that_others_cannot_find_is_refused(tmp_path):
    def local(x):
        return {"x": x}

    with pytest.raises(InputError, match="cannot be given to another process"):
        ns.sweep(local, {"x": [1, 2]}, output=tmp_path, workers=2)
    assert ns.sweep(local, {"x": [1, 2]}, output=tmp_path, workers=1).complete


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_a_function_of_a_notebook_is_refused_before_any_trial(file, tmp_path, monkeypatch):
    """Other processes cannot import it; they would record every trial as failed."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", file, raising=False)
    monkeypatch.setattr(main, "threads", threads, raising=False)
    monkeypatch.setattr(threads, "__module__", "__main__")
    with pytest.raises(InputError, match=r"interactive session.*module"):
        ns.sweep(threads, {"x": [1, 2]}, output=tmp_path, workers=2)
    assert Sweep(tmp_path).missing == 2
    assert ns.sweep(threads, {"x": [1, 2]}, output=tmp_path, workers=1).complete


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"executor": "dask"}, "Unknown executor 'dask'"),
        ({"workers": 0}, "workers must be a whole number from 1"),
        ({"max_failures": 0}, "max_failures must be a whole number from 1"),
        ({"shard": "5/4"}, "i from 1 to n"),
        ({"cpus_per_trial": -1}, "cpus_per_trial must be"),
        ({"gpus_per_trial": -0.5}, "gpus_per_trial must be"),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(options, said, tmp_path):
    with pytest.raises(NormscopeError, match=said):
        ns.sweep(product, {"x": [1]}, output=tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_serial_and_processes_give_the_same_table(tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    grid = {"x": range(7), "log": str(log)}
    tables = [
        ns.sweep(logged, grid, seeds=2, output=tmp_path / str(n), workers=n).to_frame()
        for n in (1, 2)
    ]
    assert tables[0].equals(tables[1])
    assert len(list(log.iterdir())) == 28
    assert Sweep(tmp_path / "2").complete


def test_a_log_that_cannot_be_written_does_not_end_the_sweep(tmp_path, monkeypatch):
    """A night's work is worth more than a line about it."""

    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(live, "EVERY", -1.0)
    monkeypatch.setattr(sys, "stderr", Gone())
    assert ns.sweep(product, {"x": [1.0, 2.0]}, output=tmp_path, workers=1).complete


def test_the_time_of_a_trial_is_its_own(monkeypatch):
    """Not that of the imports of a new process, or one could not tell how long the rest takes."""
    clock, load = [0.0], running.pickle.loads

    def slow(data):
        clock[0] += 100
        return load(data)

    monkeypatch.setattr(running.pickle, "loads", slow)
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    done = running.Task(product).portable()("key", {"x": 1.0})
    assert done.record is not None
    assert done.about["seconds"] == 0
