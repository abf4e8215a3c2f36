"""Predictions, phase diagrams and start-up, against the times they are meant to take.

OMP_NUM_THREADS=1 python -m benchmarks theory
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq

import normscope as ns
from benchmarks.timing import interleaved

__all__ = ["main"]

REPEATS = 5
GRID = 100
SAMPLED = 40  # points of the grid that the loops solve; the rest is in proportion


@dataclass(frozen=True)
class Check:
    """One number and its bound."""

    what: str
    found: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def line(self) -> str:
        sign, mark = (">=" if self.at_least else "<="), "holds" if self.holds else "**missed**"
        return f"| {self.what} | {self.found:.3g} | {sign} {self.bound:g} | {mark} |"


def print_checks(checks: list[Check]) -> None:
    """A Markdown table."""
    print("| what | measured | bound | |\n|---|---|---|---|")
    print("\n".join(check.line() for check in checks))


def figure_one() -> Callable[[], Any]:
    """Two architectures x 41 values of gamma x three theories, in one call."""
    gammas = np.geomspace(0.1, 10, 41)
    specs = [
        ns.mlp(widths, weight_variance=2.0, bias_variance=0.5, norm=ns.NormSpec("batch", gamma=g))
        for widths in ([784, 1000, 1000, 1000, 10], [784, 500, 500, 500, 500, 500, 10])
        for g in gammas
    ]
    theories = ("corrected", "frozen", "wei2019")
    return lambda: ns.predict(specs, theory=theories)


def grid() -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(0.5, 4.0, GRID), np.linspace(0.01, 0.5, GRID)


def sampled_points() -> list[tuple[float, float]]:
    weights, biases = grid()
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(GRID, size=SAMPLED), rng.integers(GRID, size=SAMPLED)
    return [(weights[c], biases[r]) for r, c in zip(rows, columns, strict=True)]


def own_loop() -> None:
    """normscope itself, one point at a time."""
    for weight, bias in sampled_points():
        ns.phase_diagram("tanh", [weight], [bias])


def scipy_loop() -> None:
    """What a reader of the paper would write: adaptive quadrature inside a root finder."""
    for weight, bias in sampled_points():
        scalar_point(weight, bias)


def scalar_point(weight: float, bias: float) -> tuple[float, float, float]:
    """q*, chi_1 and xi_c of tanh at one point, by scipy."""

    def normal(f: Callable[[float], float]) -> float:
        density = lambda z: f(z) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)  # noqa: E731
        return quad(density, -8, 8, epsabs=1e-10)[0]

    def length(q: float) -> float:
        return weight * normal(lambda z: np.tanh(np.sqrt(q) * z) ** 2) + bias - q

    q = brentq(length, 1e-12, weight + bias + 1, xtol=1e-10)
    chi = weight * normal(lambda z: (1 - np.tanh(np.sqrt(q) * z) ** 2) ** 2)

    def mixed(c: float, f: Callable[[float], float]) -> float:
        rest = np.sqrt(max(1 - c * c, 0.0))
        inner = lambda z: normal(  # noqa: E731
            lambda y: f(np.sqrt(q) * (c * z + rest * y))
        )
        return normal(lambda z: f(np.sqrt(q) * z) * inner(z))

    if chi <= 1:
        return q, chi, -1 / np.log(chi)
    gap = lambda c: (weight * mixed(c, np.tanh) + bias) / q - c  # noqa: E731
    c = brentq(gap, 0.0, 1 - 1e-4, xtol=1e-6)
    slope = weight * mixed(c, lambda h: 1 - np.tanh(h) ** 2)
    return q, chi, -1 / np.log(slope)


def best_start(*command: str) -> float:
    """Wall seconds of the fastest of five fresh processes."""

    def start() -> None:
        subprocess.run([sys.executable, *command], check=True, capture_output=True)

    times = interleaved({"start": (start, REPEATS)})["start"]
    return min(times.wall)


def measured() -> list[Check]:
    weights, biases = grid()
    predict = figure_one()
    predict()  # quadrature nodes are made once
    times = interleaved(
        {
            "figure 1": (predict, REPEATS),
            "diagram": (lambda: ns.phase_diagram("tanh", weights, biases), REPEATS),
            "own loop": (own_loop, REPEATS),
            "scipy loop": (scipy_loop, 1),
        }
    )
    cpu = {name: t.summary()["cpu"] for name, t in times.items()}
    scale = GRID**2 / SAMPLED
    empty, imported = best_start("-c", "pass"), best_start("-c", "import normscope")
    return [
        Check("Figure 1: 2 networks x 41 gammas x 3 theories, s", cpu["figure 1"], 0.5),
        Check("phase diagram tanh 100 x 100, one core, s", cpu["diagram"], 10.0),
        Check(
            f"the same point by point with normscope, times (from {SAMPLED} points)",
            cpu["own loop"] * scale / cpu["diagram"],
            20.0,
            at_least=True,
        ),
        Check(
            f"the same point by point with scipy, times (from {SAMPLED} points)",
            cpu["scipy loop"] * scale / cpu["diagram"],
            20.0,
            at_least=True,
        ),
        Check(f"import normscope, s (python alone {empty:.3f})", imported, 0.3),
        Check("normscope --help, s", best_start("-m", "normscope", "--help"), 0.3),
    ]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    checks = measured()
    print_checks(checks)
    rows = [{"what": c.what, "found": c.found, "bound": c.bound, "holds": c.holds} for c in checks]
    return {"results": rows}
