"""W1-W7: normscope beside its peers, in one process, interleaved, at equal accuracy.

    OMP_NUM_THREADS=1 python -m benchmarks peers [--full] [--only W1 W4] [--repeats 5]

One thread. Before the clock runs, each peer gets the loosest setting (Lanczos steps, tolerance)
whose error is within 1e-3 of a converged float64 reference, which it could not know; normscope
stops by itself at tol=1e-3. A row passes only if its error is within 1e-3. Times are medians and
include all set-up; a contestant that needs five times the CPU time of the fastest runs once.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.contestants import CONTESTANTS, TOL, Contestant, start_vector
from benchmarks.timing import Times, interleaved, timed, version
from benchmarks.workloads import WORKLOADS, Workload, gauss_newton, reference

__all__ = ["main", "race", "table"]

SLOW = 5.0  # times the fastest: timed once
TOLERANCES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
Row = dict[str, Any]


def error_of(work: Workload, found: np.ndarray, exact: np.ndarray) -> float | None:
    """Largest relative error; of a whole spectrum relative to its largest value."""
    if work.task == "density":
        return None
    full = np.zeros(len(exact))
    full[: len(found)] = found
    scale = exact[0] if work.task == "gram" else exact
    return float(np.max(np.abs(full - exact) / scale))


def settings_of(contestant: Contestant, work: Workload) -> list[float | None]:
    if work.task != "eigenvalues" or contestant.settings == "none":
        return [None]
    if contestant.settings == "tol":
        return list(TOLERANCES)
    least = fewest_steps(work) - (1 if contestant.own_start else 0)
    return [float(steps) for steps in range(max(least, work.k + 1), least + 20)]


@functools.cache
def fewest_steps(work: Workload) -> int:
    """Lanczos steps from the common start vector after which all k Ritz values are within 1e-3."""
    product, size = gauss_newton(work, torch.float32)
    exact, basis = reference(work), [unit(start_vector(size))]
    images: list[np.ndarray] = []
    for steps in range(1, 100):
        images.append(product(basis[-1]))
        if steps >= work.k:
            projected = np.array(basis) @ np.array(images).T
            found = np.linalg.eigvalsh((projected + projected.T) / 2)[::-1][: work.k]
            if (error_of(work, found, exact) or 0.0) <= TOL:
                return steps
        rest = images[-1]
        for _ in range(2):
            rest = rest - np.array(basis).T @ (np.array(basis) @ rest)
        basis.append(unit(rest))
    raise RuntimeError(f"{work.name}: Lanczos does not reach {TOL:g} in 100 steps")


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


class Entry:
    """One contestant at one workload: its setting, its error, its times."""

    def __init__(self, contestant: Contestant, work: Workload, exact: np.ndarray) -> None:
        self._solve, self._work, self._exact = contestant.solvers[work.task], work, exact
        self.name = contestant.name
        self.setting: float | None = None
        self.error: float | None = math.inf
        self.failure: str | None = None
        self.seconds, self.wall = math.inf, math.inf
        self._contestant = contestant

    def calibrate(self) -> None:
        """The loosest setting that reaches the accuracy; the first call also warms up."""
        for setting in settings_of(self._contestant, self._work):
            self.setting = setting
            try:
                found, self.seconds, self.wall = timed(self.run)
            except Exception as error:
                self.failure = " ".join(f"{type(error).__name__}: {error}".split())[:100]
                return
            before, self.error = self.error, error_of(self._work, found, self._exact)
            if self.error is None or self.error <= TOL:
                return
            stuck = self.error > 0.1 and abs(self.error - (before or 0)) <= 1e-2 * self.error
            if self._contestant.settings == "tol" and stuck:
                return  # converged to the answer of another question

    def run(self) -> np.ndarray:
        return self._solve(self._work, self.setting)

    @property
    def passes(self) -> bool:
        return self.failure is None and (self.error is None or self.error <= TOL)

    def row(self, times: dict[str, float] | None, unit: float) -> Row:
        base: Row = {"work": self._work.name, "contestant": self.name, "passes": self.passes}
        if times is None:
            return {**base, "failure": self.failure}
        products = {"steps": "products", "tol": "tol"}.get(self._contestant.settings)
        detail = {products: self.setting} if products and self.setting is not None else {}
        return {**base, **times, "gradients": times["cpu"] / unit, "error": self.error, **detail}


def race(work: Workload, repeats: int) -> list[Row]:
    """All contestants at one workload, fastest first."""
    exact = reference(work)
    entries = []
    for contestant in CONTESTANTS:
        if work.task in contestant.solvers and contestant.missing is None:
            entries.append(Entry(contestant, work, exact))
            entries[-1].calibrate()
    able = [entry for entry in entries if entry.failure is None]
    limit = SLOW * min(entry.seconds for entry in able)
    jobs: dict[str, tuple[Callable[[], Any], int]] = {"gradient": (work.gradient, repeats)}
    jobs |= {entry.name: (entry.run, repeats) for entry in able if entry.seconds < limit}
    times = {name: t.summary() for name, t in interleaved(jobs).items()}
    for entry in able:
        if entry.name not in times:
            times[entry.name] = Times([entry.seconds], [entry.wall]).summary()
    unit = times.pop("gradient")["cpu"]
    rows = [entry.row(times.get(entry.name), unit) for entry in entries]
    return sorted(rows, key=lambda row: (not row["passes"], row.get("cpu", math.inf)))


def table(results: list[Row]) -> str:
    """The rows of all workloads as a table in Markdown."""
    lines = []
    for result in results:
        lines += [f"\n**{result['work']}** {result['question']}\n"]
        lines += ["| contestant | CPU s (least-most) | wall s | gradients | of best peer | error |"]
        lines += ["|---|---|---|---|---|---|"]
        rows = result["rows"]
        best = best_peer(rows)
        lines += [_line(row, best) for row in rows]
    return "\n".join(lines)


def best_peer(rows: list[Row]) -> float:
    others = [r["cpu"] for r in rows if r["passes"] and r["contestant"] != "normscope"]
    return min(others, default=math.nan)


def _line(row: Row, best: float) -> str:
    if "cpu" not in row:
        return f"| {row['contestant']} | fails: {row['failure']} | | | | |"
    spread = f"{row['cpu']:.3g} ({row['cpu_least']:.3g}-{row['cpu_most']:.3g})"
    spread += "" if row["repeats"] > 1 else ", once"
    error = "fixed work" if row["error"] is None else f"{row['error']:.1e}"
    if not row["passes"]:
        error += " **wrong**" if row["error"] > 0.01 else " misses 1e-3"
    if "products" in row:
        error += f", {row['products']:.0f} products"
    cells = [row["contestant"], spread, f"{row['wall']:.3g}", f"{row['gradients']:.1f}"]
    return f"| {' | '.join(cells)} | {row['cpu'] / best:.2f} | {error} |"


def main(arguments: list[str] | None = None) -> Row:
    parser = argparse.ArgumentParser(prog="benchmarks peers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="the large batches (half an hour)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    missing = {c.name: c.missing for c in CONTESTANTS if c.missing is not None}
    present = {c.name: version(c.distribution) for c in CONTESTANTS if c.name not in missing}
    print("contestants:", ", ".join(f"{name} {v}" for name, v in present.items()))
    for name, reason in missing.items():
        print(f"missing: {name} ({reason})")
    results = []
    for name in options.only:
        torch.manual_seed(0)
        work = WORKLOADS[name](options.full)
        rows = race(work, options.repeats)
        results.append({"work": name, "question": work.question, "rows": rows})
        print(table(results[-1:]), flush=True)
    return {"contestants": present, "missing": missing, "results": results}
