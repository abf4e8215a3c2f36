"""One process of one contestant: ``PYTHON -m benchmarks.findings.child ORDERS``.

``ORDERS`` is a file of JSON: the contestant, the modules with set-ups, the jobs (name, seed) and
the file to which one line is added for each job that is done. It runs in the contestant's own
environment, with one thread.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.findings.contestants import adapter
from benchmarks.findings.setup import Setup, collected, plain_updates
from benchmarks.timing import version

__all__ = ["HARM", "row_of"]

HARM = "harm"  # the contestant that trains


def row_of(contestant: str, setup: Setup, seed: int, updates: int) -> dict[str, Any]:
    """What the contestant says of one set-up, or why it says nothing."""
    row: dict[str, Any] = {"contestant": contestant, "setup": setup.name, "seed": seed}
    began = time.perf_counter()
    try:
        torch.manual_seed(1000 + seed)
        parts = setup.make(seed)
        if contestant == HARM:
            if updates and parts.train is not None:
                parts.train(parts)
            elif updates:
                plain_updates(parts, updates)
            found: dict[str, Any] = {"updates": updates, "score": float(parts.score(parts.model))}
        else:
            found = adapter(contestant)(parts, updates)
    except Exception as error:
        found = {"failure": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    name = contestant.partition(" ")[0]
    return {**row, "version": version(name), "took": time.perf_counter() - began, **found}


def main(orders: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    setups = collected(orders["modules"])
    with Path(orders["results"]).open("a") as results:
        for name, seed, updates in orders["jobs"]:
            row = row_of(orders["contestant"], setups[name][1], seed, updates)
            print(json.dumps(row), file=results, flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
