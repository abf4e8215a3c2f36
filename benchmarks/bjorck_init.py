"""All of Bjorck's figures at initialization: ResNet-110, CIFAR-10, batch of 128, with and without.

OMP_NUM_THREADS=1 NORMSCOPE_DATA=DIR python -m benchmarks bjorck

Each network is measured in a fresh process with one thread: one forward pass, one backward pass
and ten masked partial backward passes. CPU seconds are those of the measurement; memory is the
peak of the whole process, data and network included.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.theory import Check, print_checks
from normscope.data import load_data
from normscope.measure.probes.signals import Signals, signals
from normscope.nn import network

__all__ = ["main", "measured"]

SECONDS, GIGABYTES = 20.0, 3.5
BATCH, DEPTH, CLASS_LAYER = 128, 110, 52
TABLE_LAYERS = (18, 19, 54, 55, 90, 91)


def network_numbers(found: Signals) -> dict[str, Any]:
    """The numbers of section 3 and the appendices."""
    forward, back = found.activations, found.gradients
    favoured = back.outputs.favoured
    return {
        "loss": back.loss,
        "table_1": {
            n: [back[n].t1, back[n].t2, back[n].t3, back[n].t4, back[n].alignment]
            for n in TABLE_LAYERS
        },
        "fig2": {"std": back[55].std, "kurtosis": back[55].kurtosis},
        "fig3": {g.which: [g.slope, g.error] for g in forward.growth}
        | {"largest_mean": max(float(abs(s.mean).max()) for s in forward.outputs)},
        "fig4": {
            "favoured": favoured,
            "predicted": float(back.outputs.predicted[favoured]),
            "std": float(back.outputs.std[favoured]),
            "alignment": back.outputs.alignment,
        },
        "fig7": {
            name: getattr(back[45], name)
            for name in ("max_over_median", "rank_one", "rank_one_signed", "column_cv", "row_cv")
        },
        "fig18": {"r": back[35].mean_correlation, "max_over_min": back[35].channel_ratio},
        "fig21": {
            "top_over_median": back.classes.top_over_median,
            "dominant": back.classes.dominant,
            "sum_error": back.classes.sum_error,
        },
        "fig23": {"r": back[54].term_correlation, "median": back[54].median_alignment},
        "dying": sum(int(s.dying.sum()) for s in forward.rectified),
        "full": sum(int(s.full.sum()) for s in forward.rectified),
    }


def one_network(norm: str, seed: int) -> None:
    """In a process of its own: print numbers, CPU seconds and peak memory as JSON."""
    torch.set_num_threads(1)
    model = network(f"resnet{DEPTH}:norm={norm}", init="xavier", seed=seed).float()
    images = load_data("cifar10").subset(BATCH, seed=seed)
    start = time.process_time()
    found = signals(
        model,
        images,
        "cross_entropy",
        batch_size=BATCH,
        quantities=("alignment", "classes"),
        class_layer=CLASS_LAYER,
        seed=seed,
    )
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({**network_numbers(found), "cpu_seconds": seconds, "gigabytes": peak}))


def measured(norm: str, seed: int) -> dict[str, Any]:
    """Numbers of one network from a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.bjorck_init", norm, str(seed)]
    root = Path(__file__).parents[1]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=root
    )
    return json.loads(run.stdout.splitlines()[-1])


def main(options: list[str] | None = None) -> dict[str, Any]:
    seeds = [int(option) for option in options or ()] or [0]
    results, checks = [], []
    for seed in seeds:
        for norm in ("none", "batch"):
            found = measured(norm, seed)
            results.append({"norm": norm, "seed": seed, **found})
            name = f"ResNet-{DEPTH}, norm {norm}, seed {seed}"
            checks.append(Check(f"{name}: CPU s", found["cpu_seconds"], SECONDS))
            checks.append(Check(f"{name}: peak GB", found["gigabytes"], GIGABYTES))
    print_checks(checks)
    return {"results": results}


if __name__ == "__main__":
    one_network(sys.argv[1], int(sys.argv[2]))
