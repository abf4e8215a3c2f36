"""``python -m benchmarks [part] [options]``: all parts, or one of them.

Parts: ``products`` (cost of one product), ``solvers`` (products per eigenvalue, beside ARPACK),
``theory`` (predictions, phase diagrams, start-up), ``randmat`` (products of random matrices),
``teacher_student`` (Luo's Figure 1a, online SGD), ``monitor`` (what watching a training costs),
``bjorck`` (ResNet-110 at initialization; needs NORMSCOPE_DATA), ``peers`` (workloads W1-W7
beside other packages), ``examine`` (ResNet-20; needs NORMSCOPE_DATA), ``findings`` (false
alarms and misses on healthy and broken set-ups, beside other tools); and, only if asked for,
``what_if`` (changes of norms) and ``advice`` (recommended learning rates put to the test; both
need NORMSCOPE_DATA), ``graph`` (theory of residual networks beside what is measured; an hour) and
``sweeps`` (large stores, overhead, workers; needs Ray and idle cores).
Results of the last twelve are written to benchmarks/results as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import (
    advice,
    bjorck_init,
    examine,
    graph_theory,
    monitor,
    peers,
    products,
    randmat,
    spectral_matvecs,
    sweeps,
    teacher_student,
    theory,
    what_if,
)
from benchmarks.findings import harness as findings
from benchmarks.timing import machine

RESULTS = Path(__file__).parent / "results"


def _products(options: list[str]) -> None:
    products.main()


PARTS: dict[str, Any] = {
    "products": _products,
    "solvers": spectral_matvecs.main,
    "theory": theory.main,
    "randmat": randmat.main,
    "teacher_student": teacher_student.main,
    "monitor": monitor.main,
    "bjorck": bjorck_init.main,
    "peers": peers.main,
    "examine": examine.main,
    "findings": findings.main,
    "what_if": what_if.main,
    "advice": advice.main,
    "graph": graph_theory.main,
    "sweeps": sweeps.main,
}
# need real data, half an hour or Ray: only if asked for
APART = ("what_if", "advice", "graph", "sweeps")


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] not in PARTS:
        print(__doc__)
        sys.exit(0 if arguments[0] in ("-h", "--help") else 2)
    chosen = arguments[:1] or [part for part in PARTS if part not in APART]
    about = machine()
    print("  ".join(f"{name}: {value}" for name, value in about.items()))
    for name in chosen:
        print(f"\n== {name}", flush=True)
        made = PARTS[name](arguments[1:])
        if made is not None:
            RESULTS.mkdir(exist_ok=True)
            file = RESULTS / f"{name}.json"
            file.write_text(json.dumps({"machine": about, **made}, indent=1))
            print(f"written: {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
