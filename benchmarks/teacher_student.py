"""Luo's Figure 1a at the paper's size, and online SGD, against the times they are meant to take.

python -m benchmarks teacher_student [--inputs N] [--workers W]

OMP_NUM_THREADS=1 with two workers: each core has its own samples.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.theory import Check, print_checks
from benchmarks.timing import timed
from normscope.results import GeneralizationPanel
from normscope.theory import teacher_student as ts

__all__ = ["main"]

LOADS = np.linspace(0.25, 3.0, 12)
PANEL_SECONDS, PATH_SECONDS = 180.0, 60.0  # what they may take


def distances(panel: GeneralizationPanel) -> list[dict[str, Any]]:
    """How far each simulated point lies from its theory, in standard errors."""
    theory = {curve.label: curve for curve in panel.curves}
    found = []
    for part in panel.simulated:
        for index, alpha in enumerate(part.alpha):
            row = {"method": part.label, "alpha": float(alpha), "error": float(part.mean[index])}
            row["standard_error"] = float(part.standard_error[index])
            if part.label in theory:
                curve = theory[part.label]
                row["theory"] = float(curve.error[np.argmin(np.abs(curve.alpha - alpha))])
            found.append(row)
    return found


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks teacher_student")
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(arguments or [])
    data = ts.Data(given.inputs, num_seeds=3)
    panel, cpu, wall = timed(lambda: ts.linear_panel(LOADS, data=data, workers=given.workers))
    start = ts.bn_path(ts.Start(), np.linspace(0, 16, 33), lr=0.5, zeta=0.25)
    path, path_cpu, path_wall = timed(lambda: ts.with_simulation(start, num_inputs=4000))
    where = f"N = {given.inputs}, 12 loads, 3 seeds, {given.workers} workers"
    busy = "the same, CPU s per worker (a busy machine does not change it)"
    online = "online SGD beside its ODE: N = 4000, 64000 steps, 3 runs, wall s"
    checks = [
        Check(f"Figure 1a: {where}, wall s", wall, PANEL_SECONDS),
        Check(busy, cpu / given.workers, PANEL_SECONDS),
        Check(online, path_wall, PATH_SECONDS),
        Check("its largest |R error|", path.max_error["correlation"], 0.01),
    ]
    print_checks(checks)
    print(f"CPU seconds: panel {cpu:.1f}, path {path_cpu:.1f}\n")
    rows = distances(panel)
    for row in rows:
        beside = f" (theory {row['theory']:.4f})" if "theory" in row else ""
        print(
            f"{row['method']:<48} alpha {row['alpha']:<5g} {row['error']:.4f} "
            f"+- {row['standard_error']:.4f}{beside}"
        )
    kept = [{"what": c.what, "found": c.found, "bound": c.bound, "holds": c.holds} for c in checks]
    cpus = {"panel_cpu": cpu, "path_cpu": path_cpu}
    # JSON has no infinity: the theory of least squares at alpha = 1
    points = [{k: ("inf" if v == np.inf else v) for k, v in row.items()} for row in rows]
    return {"results": kept, **cpus, "points": points}
