"""`examine` on ResNet-20, CIFAR-10, batches of 256, with and without batch norm.

NORMSCOPE_DATA=DIR python -m benchmarks examine

Each examination runs in a fresh process with all cores; memory is the peak of the whole process,
data and network included. The bounds hold on two cores.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.theory import Check, print_checks
from normscope import examine, load_data, network

__all__ = ["main"]

SECONDS = {"fast": 15.0, "standard": 90.0}
GIGABYTES = 4.0


def one_network(norm: str, preset: str) -> None:
    """In a process of its own: print seconds and peak memory as JSON."""
    data = load_data("cifar10").subset(1024).batches(256)
    model = network(f"resnet20:norm={norm}")
    start = time.monotonic()
    found = examine(model, data, lr=0.1, momentum=0.9, preset=preset)
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    missing = [step.name for step in found.missing]
    print(json.dumps({"seconds": seconds, "gigabytes": peak, "missing": missing}))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    results, checks = [], []
    for norm in ("none", "batch"):
        for preset, bound in SECONDS.items():
            command = [sys.executable, "-m", "benchmarks.examine", norm, preset]
            run = subprocess.run(command, check=True, capture_output=True, text=True,
                                 cwd=Path(__file__).parents[1])  # fmt: skip
            found = json.loads(run.stdout.splitlines()[-1])
            assert not found["missing"], found
            results.append({"norm": norm, "preset": preset, **found})
            name = f"ResNet-20, norm {norm}, {preset}"
            checks.append(Check(f"{name}: s", found["seconds"], bound))
            checks.append(Check(f"{name}: peak GB", found["gigabytes"], GIGABYTES))
    print_checks(checks)
    return {"results": results}


if __name__ == "__main__":
    one_network(*sys.argv[1:])
