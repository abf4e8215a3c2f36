"""Healthy and broken set-ups x normscope and its rivals: false alarms and misses.

python -m benchmarks findings [--presets fast,standard,full] [--rivals NAMES] [--peers DIR]
                              [--setups NAME ...] [--modules MODULE ...] [--seeds 0,1]
                              [--file FILE] [--page FILE] [--label TEXT] [--no-harm]

Every contestant runs in processes of its own, with one thread. A rival needs an environment with
itself and what normscope needs: ``DIR/NAME/bin/python``, where ``DIR`` is ``--peers`` or the
variable ``NORMSCOPE_PEERS``. Rivals without one are left out, with a note. Rows are added to
``--file`` one by one; what is there is not run again. ``--page`` writes the tables into that file,
below its own text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from benchmarks.findings.child import HARM
from benchmarks.findings.contestants import NORMSCOPE, RIVALS
from benchmarks.findings.matching import corrections
from benchmarks.findings.setup import Setup, collected
from benchmarks.findings.table import page, with_tables
from normscope.files import write_atomically

__all__ = ["main", "measured"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 3600.0  # the longest time for one set-up; a contestant that needs more has failed
Row = dict[str, Any]
Job = tuple[str, int, int]  # name of the set-up, seed, updates


def modules() -> list[str]:
    """All modules here that hold set-ups."""
    return [f"benchmarks.findings.{file.stem}" for file in sorted(HERE.glob("setups_*.py"))]


def jobs_of(contestant: str, setups: Iterable[Setup], seeds: Iterable[int]) -> list[Job]:
    """What a contestant has to do; to show harm, every defect and its twin, trained alike."""
    if contestant != HARM:
        return [(s.name, seed, s.updates) for s in setups for seed in seeds]
    wanted = [(name, s.updates) for s in setups for name in (s.name, s.twin) if s.defect]
    wanted += [(s.name, s.updates) for s in setups if not s.defect]
    return [(name, seed, updates) for name, updates in dict.fromkeys(wanted) for seed in seeds]


def measured(
    contestant: str, python: str, names: list[str], jobs: list[Job], seconds: float = SECONDS
) -> Iterator[Row]:
    """The rows of these jobs; a process that dies or hangs costs the set-up that it was at."""
    left = list(jobs)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            orders, results = Path(folder, "orders.json"), Path(folder, "results.jsonl")
            given = {"contestant": contestant, "modules": names, "jobs": left}
            orders.write_text(json.dumps({**given, "results": str(results)}))
            results.touch()
            ended = ""
            with started(python, orders) as process, results.open() as lines:
                since = time.monotonic()
                try:
                    while left and not ended:
                        if process.poll() is not None:
                            ended = f"The process ended with code {process.returncode}."
                        elif time.monotonic() - since > seconds:
                            ended = f"It took longer than {seconds:g} s."
                        else:
                            time.sleep(0.1)
                        for line in whole_lines(lines):
                            yield json.loads(line)
                            del left[0]
                            since = time.monotonic()
                finally:
                    process.kill()
        if left:
            (name, seed, _), left = left[0], left[1:]
            yield {"contestant": contestant, "setup": name, "seed": seed, "failure": ended}


def started(python: str, orders: Path) -> subprocess.Popen[bytes]:
    """The process of a contestant: one thread, and normscope as it is here."""
    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return subprocess.Popen(
        [python, "-W", "ignore", "-m", "benchmarks.findings.child", str(orders)],
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        cwd=orders.parent,  # some tools leave files where they run
        stdout=subprocess.DEVNULL,
    )


def whole_lines(file: TextIO) -> Iterator[str]:
    """The lines that are written to their end by now."""
    while True:
        place, line = file.tell(), file.readline()
        if not line.endswith("\n"):
            file.seek(place)
            return
        yield line


def contestants(presets: list[str], rivals: list[str], peers: str, label: str) -> dict[str, str]:
    """The Python of each contestant that can run; those that cannot are named."""
    found = {f"{NORMSCOPE} {preset}{f' ({label})' if label else ''}": sys.executable
             for preset in presets}  # fmt: skip
    for name in rivals:
        python = Path(peers, name, "bin", "python") if peers else None
        if python is not None and python.exists():
            found[name] = str(python)
        else:
            print(f"left out: {name} (no {python or 'folder in NORMSCOPE_PEERS'})")
    return found


def listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks findings")
    parser.add_argument("--presets", type=listed, default=["fast", "standard"])
    parser.add_argument("--rivals", type=listed, default=list(RIVALS))
    parser.add_argument("--peers", default=os.environ.get("NORMSCOPE_PEERS", ""))
    parser.add_argument("--setups", nargs="+", default=[], help="only these")
    parser.add_argument("--modules", nargs="+", default=modules(), help="modules with SETUPS")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in listed(text)],
                        default=[0, 1])  # fmt: skip
    parser.add_argument("--file", type=Path, help="keep rows here, and go on from there")
    parser.add_argument("--page", type=Path, help="write the tables into this Markdown file")
    parser.add_argument("--label", default="", help="tells this state of normscope from others")
    parser.add_argument("--no-harm", action="store_true", help="train nothing")
    given = parser.parse_args(arguments or [])
    known = collected(given.modules)
    chosen = [s for _, s in known.values() if not given.setups or s.name in given.setups]
    if unknown := set(given.setups) - set(known):
        parser.error(f"there is no set-up {', '.join(sorted(unknown))}")
    file: Path | None = given.file
    rows: list[Row] = json.loads(file.read_text()) if file is not None and file.exists() else []
    done = {(row["contestant"], row["setup"], row["seed"], row.get("updates")) for row in rows}
    run = contestants(given.presets, given.rivals, given.peers, given.label)
    run |= {} if given.no_harm else {HARM: sys.executable}
    for name, python in run.items():
        jobs = [
            job for job in jobs_of(name, chosen, given.seeds)
            if (name, job[0], job[1], job[2] if name == HARM else None) not in done
        ]  # fmt: skip
        for row in measured(name, python, given.modules, jobs):
            rows.append(row)
            print(line(row), flush=True)
            if file is not None:
                write_atomically(file, json.dumps(rows, indent=None))
    text = page(rows, {n: found for n, found in known.items() if found[1] in chosen}, corrections())
    print(text)
    if given.page is not None:
        given.page.write_text(with_tables(given.page.read_text(), text))
    return {"rows": rows}


def line(row: Row) -> str:
    """One row, while the others are still being made."""
    severe = [t["title"] for t in row.get("told", ()) if t["severity"] in ("warning", "problem")]
    said = row.get("failure") or (f"score {row['score']:.3g}" if "score" in row else severe[:2])
    return f"{row['contestant']:20s} {row['setup']:34s} {row['seed']} {said}"
