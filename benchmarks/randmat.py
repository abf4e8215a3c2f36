"""Products of Gaussian matrices, against the times they are meant to take.

OMP_NUM_THREADS=1 python -m benchmarks randmat
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy.linalg import svdvals

from benchmarks.theory import Check, print_checks
from benchmarks.timing import timed
from normscope.theory import randmat

__all__ = ["main"]

DEPTH, SIZE, RUNS = 30, 1000, 5
POINTS = 100_000


def one_svd_per_depth() -> None:
    """What Figure 11 was made with: explicit products, which saturate at 1e17."""
    product = np.eye(SIZE)
    for factor in randmat.gaussian_factors(DEPTH, SIZE):
        product = factor @ product
        svdvals(product)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    made, cpu, wall = timed(lambda: randmat.conditioning_by_depth(DEPTH, SIZE, runs=RUNS))
    _, naive_cpu, _ = timed(one_svd_per_depth)
    spectrum, spectrum_cpu, _ = timed(lambda: randmat.product_spectrum(7, SIZE, runs=RUNS))
    grid = np.linspace(0, randmat.squared_edge(7), POINTS + 1)[1:]
    _, density_cpu, _ = timed(lambda: randmat.squared_density(grid, 7))
    shares = np.linspace(0, 1, POINTS)
    _, quantile_cpu, _ = timed(lambda: randmat.squared_quantile(shares, 7))
    what, gain = f"N = {SIZE}, M = 1..{DEPTH}, {RUNS} runs", RUNS * naive_cpu / cpu
    checks = [
        Check(f"condition numbers, {what}, CPU s (wall {wall:.1f} s)", cpu, 60.0),
        Check("the same by one SVD per depth, which saturates, times", gain, 1.0, at_least=True),
        Check(f"singular values of {RUNS} products of 7, N = {SIZE}, CPU s", spectrum_cpu, 20.0),
        Check("KS distance to the law, largest of them", float(spectrum.distance.max()), 0.005),
        Check(f"density at {POINTS:,} points, M = 7, CPU s", density_cpu, 2.0),
        Check(f"quantiles at {POINTS:,} points, M = 7, CPU s", quantile_cpu, 4.0),
    ]
    print_checks(checks)
    print("\n" + made.summary())
    rows = [{"what": c.what, "found": c.found, "bound": c.bound, "holds": c.holds} for c in checks]
    frame = made.to_frame()
    return {
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "results": rows,
        "figures 11 and 12": {
            "factors": [int(m) for m in frame.index],
            **{name: [round(float(v), 5) for v in frame[name]] for name in frame.columns},
        },
    }
