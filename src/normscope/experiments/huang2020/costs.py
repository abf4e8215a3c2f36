"""Section B: what full, layer-wise and factored conditioning analyses cost."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from normscope.experiments.experiment import Experiment, Scale, Table, curve
from normscope.experiments.huang2020._matrices import small_images, small_mlp
from normscope.measure import conditioning
from normscope.results import ConditioningCost
from normscope.results.panel import Panel

WAYS = {"full": "full", "blocks": "blocks", "factored": None}


def trial(depth: int, width: int, samples: int, data: str, seed: int) -> dict[str, Any]:
    """The arithmetic, and the CPU time of the three ways on one network."""
    cost = ConditioningCost(depth, width, samples)
    d = float(width)
    ratios = {
        "secB-cost-full": (np.divide(cost.full, cost.blocks), (depth, depth**2)),
        "secB-cost-factored": (np.divide(cost.blocks, cost.factored), (d**2, d**3)),
    }
    made = {
        name: {"error": float(np.max(np.abs(found / wanted - 1)))}
        for name, (found, wanted) in ratios.items()
    }
    x, y = small_images(data, samples, seed)
    net = small_mlp(x.shape[1], depth, width, "none", seed)
    seconds = {}
    for name, exact in WAYS.items():
        began = time.process_time()
        conditioning(net, (x, y), "cross_entropy", exact=exact, batch_size=samples)
        seconds[name] = time.process_time() - began
    return made | {f"seconds {name}": value for name, value in seconds.items()}


def observe(table: Table) -> dict[str, Any]:
    """Errors of the arithmetic, and logarithms of ratios of times."""
    made: dict[str, Any] = {
        name: table.rows[0][1][name] for name in ("secB-cost-full", "secB-cost-factored")
    }
    seconds = [np.log10(table(f"seconds {way}")) for way in WAYS]
    parts = {
        "full against blocks": {"values": seconds[0] - seconds[1]},
        "blocks against factored": {"values": seconds[1] - seconds[2]},
    }
    return made | {"secB-cost-timed": {"parts": parts}}


def panels(table: Table) -> list[Panel]:
    """CPU seconds of the three ways."""
    times = [table(f"seconds {way}") for way in WAYS]
    made = curve("CPU time", [*WAYS], times, log=True)
    note = "Kronecker factors cost a small fraction of the full matrix."
    return [
        Panel("Sec. B: cost of the analysis", "matrix", "seconds", (made,), log_y=True, note=note)
    ]


_PAPER = {"depth": 8, "width": 24, "data": "mnist", "samples": 60000}
_SIZE = {"depth": 5, "width": 16, "data": "digits"}
EXPERIMENT = Experiment(
    title="Cost of full, layer-wise and factored conditioning analyses",
    trial=trial,
    scales={
        "smoke": Scale(_SIZE | {"samples": 300, "width": 8}, seeds=2, seconds=1),
        "desk": Scale(_SIZE | {"samples": 1400}, seeds=3, seconds=20),
        "paper": Scale(_PAPER, 3, 500, ("mnist",)),
    },
    observe=observe,
    panels=panels,
)
