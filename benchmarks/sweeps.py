"""Sweeps: what a large store costs to read, what the engine adds to a trial, what workers gain.

``python -m benchmarks sweeps``: ratios are taken in one run, rounds of one worker and of two by
turns; they mean something only while nothing else uses the two cores. ``store`` alone measures the
store, ``--large`` adds one of 100,000 trials.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import normscope as ns
from normscope.sweeps import Store, Sweep, Trial
from normscope.sweeps.plan import make_plan
from normscope.sweeps.store import Journal, line_of
from normscope.train import TRAINING

SETTINGS = {"network": "mlp:784-1000-1000-1000-10", "data": "mnist", "loss": "mse", "epochs": 5}
RECORD = {
    "type": "TrialRun", "diverged": False, "diverged_at": None, "reason": "", "updates": 100,
    "initial_loss": 7.318273544311523, "final_loss": 0.2837462, "test_loss": 0.187273645,
    "test_accuracy": 0.8765, "chance": 0.4499, "learned": True,
}  # fmt: skip
ABOUT = {"host": "machine", "pid": 1234, "seconds": 3.5, "time": 1794985797.5, "deaths": 0,
         "versions": {"normscope": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}}  # fmt: skip


def nothing(x: int) -> dict[str, int]:
    return {"x": x}


def one_second(x: int) -> dict[str, float]:
    """A second of computing on one core."""
    began, total = time.process_time(), 0.0
    while time.process_time() - began < 1.0:
        total += sum(range(1000))
    return {"total": total > 0}


def made_up(folder: Path, trials: int) -> dict[str, Any]:
    """A store whose trials were never run, in eight journals."""
    store, grid = Store(folder), large_grid(trials)
    store.prepare(plan := make_plan(TRAINING, grid))
    record, keys = json.dumps(RECORD), list(plan.trials)
    for part in range(8):
        journal = Journal(store, f"{part + 1}of8")
        mine = keys[part::8]
        journal.write([line_of(key, plan.trials[key], record, None, ABOUT) for key in mine])
        journal.close()
    return grid


def large_grid(trials: int) -> dict[str, Any]:
    rates = [10 ** (-3 + 4 * i / 100) for i in range(100)]
    return SETTINGS | {"lr": rates, "gamma": [0.1 * i for i in range(1, 21)],
                       "seed": list(range(trials // 2000))}  # fmt: skip


def store_costs(trials: int) -> dict[str, float]:
    """Seconds for status, for the decision what to run, for a table; in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "s"
        grid = made_up(folder, trials)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        words = [sys.executable, "-m", "benchmarks.sweeps", str(folder), json.dumps(grid)]
        ran = subprocess.run(words, capture_output=True, text=True, check=True)
        return {"trials": trials, "megabytes": size / 1e6, **json.loads(ran.stdout)}


def timed_store(folder: Path, grid: dict[str, Any]) -> dict[str, float]:
    def seconds(function: Callable[[], Any]) -> float:
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    def decide() -> None:
        store, plan = Store(folder), make_plan(TRAINING, grid)
        store.prepare(plan)
        found = store.union(plan)
        assert not [key for key in plan.trials if key not in found.done]

    status = seconds(lambda: Sweep(folder).summary())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    costs = {"status": status, "status_megabytes": memory, "resume": seconds(decide)}
    return costs | {"export": seconds(lambda: Sweep(folder).to_csv(folder / "t.csv"))}


def wall(trial: Any, settings: Any, **how: Any) -> float:
    """Seconds from the first trial to the last, without the start of the workers."""
    with tempfile.TemporaryDirectory() as name:
        found = ns.sweep(trial, settings, output=Path(name) / "s", **how)
        assert found.complete
        lines = [line["about"] for line in found.lines()]
    begins = [line["time"] - line["seconds"] for line in lines]
    return max(line["time"] for line in lines) - min(begins)


def training_ratio(rounds: int) -> dict[str, float]:
    """Training runs of width 256: time with one worker over time with two."""
    grid = {"network": "mlp:64-256-256-10", "data": "digits", "norm": "batch", "lr": 0.1,
            "steps": 400}  # fmt: skip
    ratios = []
    for _ in range(rounds):
        # one child process against two: a serial sweep has its modules imported already
        one, two = (warm(grid, workers) for workers in (1, 2))
        ratios.append(one / two)
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def warm(grid: dict[str, Any], workers: int, trials: int = 16) -> float:
    """Seconds of all trials but the first of each worker, which imports torch."""
    with tempfile.TemporaryDirectory() as name:
        found = ns.sweep(TRAINING, grid, seeds=trials + workers, output=Path(name) / "s",
                         workers=workers)  # fmt: skip
        lines = sorted((line["about"] for line in found.lines()), key=lambda a: a["time"])
    first: dict[int, float] = {}
    for about in lines:
        first.setdefault(about["pid"], about["time"])
    begin = max(first.values())
    later = [about for about in lines if about["time"] > begin]
    return (later[-1]["time"] - begin) / len(later)


def overhead(trials: int) -> dict[str, float]:
    """Trials of a second: how long a worker waits between two of them, as a share of a trial."""
    found = {}
    for name, workers in (("serial", 1), ("two workers", 2)):
        with tempfile.TemporaryDirectory() as folder:
            grid = {"x": list(range(trials * workers))}
            lines = ns.sweep(one_second, grid, output=Path(folder) / "s", workers=workers).lines()
            abouts = sorted((line["about"] for line in lines), key=lambda about: about["time"])
        gaps, seconds, ended = list[float](), list[float](), dict[int, float]()
        for about in abouts:
            if about["pid"] in ended:
                gaps.append(about["time"] - about["seconds"] - ended[about["pid"]])
                seconds.append(about["seconds"])
            ended[about["pid"]] = about["time"]
        found[name] = sum(gaps) / sum(seconds)
    return found


def per_trial(trials: int) -> dict[str, dict[str, float]]:
    """Milliseconds of an empty trial, to the disk: of the clock, and of the driver's CPU."""
    grid = {"x": list(range(trials))}
    executors: dict[str, dict[str, Any]] = {"serial": {"workers": 1}, "processes": {"workers": 2}}
    executors |= {"ray": {"executor": "ray", "workers": 2}}
    found = {}
    for name, how in executors.items():
        began = time.process_time()
        clock = wall(Trial(nothing), grid, **how)
        driver = time.process_time() - began
        found[name] = {"clock": 1e3 * clock / trials, "driver": 1e3 * driver / trials}
    return found


def journal_costs(lines: int) -> dict[str, float]:
    """Milliseconds to bring one line to the disk, and a hundred at once."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        store = Store(Path(name) / "s")
        store.prepare(make_plan(Trial(nothing), {"x": [1]}))
        journal = Journal(store, "all")
        line = line_of("0" * 20, SETTINGS, json.dumps(RECORD), None, ABOUT)
        costs = {}
        for count in (1, 100):
            began = time.perf_counter()
            for _ in range(lines):
                journal.write([line] * count)
            costs[f"{count} lines"] = 1e3 * (time.perf_counter() - began) / lines
        journal.close()
    return costs


def main(options: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"store": [store_costs(10_000)]}
    if "--large" in options:
        made["store"].append(store_costs(100_000))
    made["milliseconds_of_the_journal"] = journal_costs(200)
    if "store" not in options:
        made["milliseconds_per_empty_trial"] = per_trial(300)
        made["overhead_of_one_second_trials"] = overhead(8)
        made["one_worker_over_two"] = training_ratio(3)
    print(json.dumps(made, indent=1))
    return made


if __name__ == "__main__":
    print(json.dumps(timed_store(Path(sys.argv[1]), json.loads(sys.argv[2]))))
