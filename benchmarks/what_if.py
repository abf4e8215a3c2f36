"""What changes of norms do to three networks: curvature and trainings side by side.

OMP_NUM_THREADS=1 NORMSCOPE_DATA=DIR python -m benchmarks what_if

Limits by bisection to 20 %, two orders of the samples. Prints the tables of docs/results/advice.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.advice_roster import DEVELOPMENT, ROSTER, Entry
from normscope import build, cnn, what_if
from normscope.results import StabilityBound, Variant, WhatIf

__all__ = ["main"]

NORMED = cnn((3, 16, 16), channels=[8, 16, 32], stride=2, padding=1, head="pool", norm="batch")
BY_NAME = {entry.name: entry for entry in (*DEVELOPMENT, *ROSTER)}
CASES: dict[str, tuple[Entry, str, list[str]]] = {
    "Nine-layer MLP with batch norm, digits, cross-entropy": (
        BY_NAME["MLP of 9 layers, batch"], "cross_entropy",
        ["gamma=0.1", "norm-before-last", "norm-output", "remove-norms"],
    ),
    "MLP with batch norm, gamma 2 and biases, MNIST, squared loss": (
        BY_NAME["MLP, batch, gamma 2, biases"], "mse",
        ["gamma=0.1", "gamma=1", "norm-output", "remove-norms"],
    ),
    "CNN with batch norm, CIFAR-10, cross-entropy": (
        Entry("CNN, batch", "cifar10", lambda: build(NORMED, 0)), "cross_entropy",
        ["gamma=0.1", "norm-before-last", "replace:batch->group", "remove-norms"],
    ),
}  # fmt: skip
HEAD = ("change", "lambda_max", "threshold", "no longer learns", "diverges", "loss reached",
        "by curvature", "by training", "apart")  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    torch.set_num_threads(1)
    found = {}
    for title, (entry, loss, changes) in CASES.items():
        result = what_if(entry.make(), entry.data, changes, loss, batch_size=entry.batch_size,
                         num_seeds=2, tol=0.2)  # fmt: skip
        best = result.best
        print(f"\n{title}; best: {best.change if best else 'none'}; {result.seconds:.0f} s\n")
        print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
        for variant in result:
            print("| " + " | ".join(_cells(result, variant)) + " |", flush=True)
        found[title] = result.to_dict()
    return found


def _cells(result: WhatIf, variant: Variant) -> list[str]:
    cells = [variant.change, *(f"{v:.3g}" for v in (variant.lambda_max, variant.threshold))]
    cells += [_ends(variant.does_not_learn), _ends(variant.diverges), f"{variant.reached:.3g}"]
    if variant is result.before:
        return [*cells, "1", "1", ""]
    gain, low, high = result.limit_ratio(variant)
    known = not math.isnan(gain)
    cells.append(f"{result.curvature_ratio(variant):.3g}")
    cells.append(f"{gain:.2g} ({low:.2g} to {high:.2g})" if known else "-")
    return [*cells, f"{result.disagreement(variant):.2g}" if known else ""]


def _ends(bound: StabilityBound | None) -> str:
    if bound is None:
        return "-"
    if bound.low == 0:
        return "none learned"
    if bound.high == math.inf:
        return f"above {bound.low:.2g}"
    return f"{bound.low:.2g} to {bound.high:.2g}"
