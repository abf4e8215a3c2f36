"""Is the advice about learning rates right? A roster of networks, under both losses.

python -m benchmarks advice [--only TEXT] [--losses mse] [--development] [--file FILE]

For each network and loss, ``suggest_lr`` is asked once, with seed 0. Then, with three other orders
of the samples, copies are trained for 200 updates at the recommended rate, at each of 12 rates a
factor 2 apart (from 1/512 to 4 times the upper end of the interval where the network no longer
learns), and at the rate that torch-lr-finder suggests (with its own defaults). The loss reached is
the mean over the last 20 mini-batches and the three orders. At 4 times either bisected limit three
trainings are made as those of the bisection. Needs MNIST, Fashion-MNIST and CIFAR-10 in
``NORMSCOPE_DATA``; torch-lr-finder is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.advice_roster import DEVELOPMENT, ROSTER, Entry
from normscope.diagnose._training_runs import TrainingRuns
from normscope.diagnose.learning_rate import suggest_lr
from normscope.diagnose.subject import as_subject
from normscope.results import StabilityBound
from normscope.results.learning_rate import LRAdvice
from normscope.train import fit

__all__ = ["main"]

LOSSES = ("cross_entropy", "mse")
STEPS, LAST, SEEDS = 200, 20, (101, 102, 103)
OCTAVES = range(-9, 3)  # the 12 points of the grid
FAR = 4.0  # times the bisected limit
CLOSE = 1.25  # times the best loss
FINDER = "torch_lr_finder"


def reached(entry: Entry, model: nn.Module, loss: str, lr: float) -> float:
    """Mean of the last losses over three trainings; infinite if one of them diverged."""
    found = []
    for seed in SEEDS:
        run = fit(
            copy.deepcopy(model),
            entry.data,
            loss,
            lr=lr,
            optimizer=entry.optimizer,
            momentum=entry.momentum,
            steps=STEPS,
            batch_size=entry.batch_size,
            seed=seed,
        )
        found.append(math.inf if run.diverged else float(run.losses[-LAST:].mean()))
    return float(np.mean(found))


def fails_far_above(entry: Entry, model: nn.Module, loss: str, bound: StabilityBound) -> list[bool]:
    """Whether trainings at 4 times the limit fail its criterion; empty if there is no limit."""
    if bound.high == math.inf:
        return []
    subject = as_subject(
        model, entry.data, loss, optimizer=entry.optimizer, momentum=entry.momentum,
        batch_size=entry.batch_size,
    )  # fmt: skip
    bench = TrainingRuns(subject, 50, (0,), 0.2).bench(steps=50, tick=lambda: None)
    for seed in SEEDS:
        bench.run(FAR * bound.high, seed)
    if bound.criterion == "diverges":
        return [trial.diverged for trial in bench.trials]
    return [not trial.learned for trial in bench.trials]


def finder_suggestion(entry: Entry, model: nn.Module, loss: str) -> float | None:
    """What torch-lr-finder suggests with its defaults, from 1e-7 to 10; None if nothing."""
    import matplotlib

    matplotlib.use("Agg")
    from torch_lr_finder import LRFinder

    twin, data = copy.deepcopy(model), entry.data
    targets = data.labels if loss == "cross_entropy" else data.one_hot()
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        TensorDataset(data.images, targets), entry.batch_size, shuffle=True, generator=order
    )
    criterion: Any = nn.CrossEntropyLoss() if loss == "cross_entropy" else _half_squares
    optimizers = {
        "sgd": functools.partial(torch.optim.SGD, momentum=entry.momentum),
        "adam": torch.optim.Adam,
    }
    finder = LRFinder(
        twin, optimizers[entry.optimizer](twin.parameters(), lr=1e-7), criterion, device="cpu"
    )
    finder.range_test(loader, end_lr=10, num_iter=100)
    try:
        _, lr = finder.plot(suggest_lr=True)
    except RuntimeError:  # too few points before its own divergence rule
        return None
    return float(lr)


def _half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(1).mean()


def judged(entry: Entry, loss: str) -> dict[str, Any]:
    """All that is asked of one network under one loss."""
    began, model = time.perf_counter(), entry.make()
    advice: LRAdvice = suggest_lr(
        model, entry.data, loss, entry.optimizer, momentum=entry.momentum,
        batch_size=entry.batch_size,
    )  # fmt: skip
    took = time.perf_counter() - began
    limit = advice.limit
    anchor = min(limit.does_not_learn.high, limit.diverges.high)
    if anchor == math.inf:
        anchor = 8 * advice.lr
    grid = {anchor * 2.0**k: 0.0 for k in OCTAVES}
    grid = {lr: reached(entry, model, loss, lr) for lr in grid}
    best_lr = min(grid, key=lambda lr: grid[lr])
    row: dict[str, Any] = {
        "network": entry.name, "data": entry.source, "loss": loss, "lr": advice.lr,
        "low": advice.low, "high": advice.high, "best_lr": best_lr, "best": grid[best_lr],
        "reached": reached(entry, model, loss, advice.lr) if advice.ok else math.inf,
        "updates": advice.updates, "suggest_seconds": took, "reason": advice.reason,
        "bounds": {b.name: [b.low, b.lr, b.high] for b in advice.bounds},
        "far": {b.criterion: fails_far_above(entry, model, loss, b)
                for b in (limit.diverges, limit.does_not_learn)},
        "grid": list(grid.items()),
    }  # fmt: skip
    if importlib.util.find_spec(FINDER):
        rival = finder_suggestion(entry, model, loss)
        row["finder_lr"] = rival
        row["finder_reached"] = (
            math.inf if rival is None else reached(entry, model, loss, rival)
        )  # fmt: skip
    return row | {"seconds": time.perf_counter() - began}


def verdict(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The claims, counted."""
    close = sum(row["reached"] <= CLOSE * row["best"] for row in rows)
    far = [failed for row in rows for found in row["far"].values() for failed in found]
    rivals = [row for row in rows if "finder_lr" in row]
    nearer = sum(row["reached"] < row["finder_reached"] for row in rivals)
    in_lr = sum(
        row["finder_lr"] is None
        or abs(math.log(row["lr"] / row["best_lr"]))
        < abs(math.log(row["finder_lr"] / row["best_lr"]))
        for row in rivals
    )
    return {
        "networks": len(rows),
        "diverged": sum(math.isinf(row["reached"]) for row in rows),
        f"at most {CLOSE:g} x the best loss": close,
        "nearer in loss than torch-lr-finder": f"{nearer} of {len(rivals)}",
        "nearer in log-lr than torch-lr-finder": f"{in_lr} of {len(rivals)}",
        f"trainings at {FAR:g} x a limit that fail": f"{sum(far)} of {len(far)}",
        "updates of suggest_lr, median": float(np.median([row["updates"] for row in rows])),
    }


def line(row: dict[str, Any]) -> str:
    """One row, while the others are still being made."""
    return (
        f"{row['loss']:14s} {row['data']:14s} {row['network']:32s} lr {row['lr']:.3g} (best "
        f"{row['best_lr']:.3g}), loss / best {row['reached'] / row['best']:.2f}, lr-finder "
        f"{row.get('finder_lr')}, {row['seconds']:.0f} s"
    )


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = ["network", "data", "theory", "threshold", "no longer learns", "diverges",
            "**lr**", "best of grid", "loss", "/ best", "lr-finder", "its / best"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        bounds = row["bounds"]
        cells = [row["network"], row["data"], _three(bounds["theory"][1])]
        cells += [_three(bounds["threshold"][1])]
        cells += [_ends(bounds[name]) for name in ("does-not-learn", "diverges")]
        cells += [f"**{_three(row['lr'])}**", _three(row["best_lr"]), _three(row["reached"])]
        cells.append(f"{row['reached'] / row['best']:.2f}")
        if "finder_lr" in row:
            ratio = row["finder_reached"] / row["best"]
            cells += [_three(row["finder_lr"]), "diverged" if math.isinf(ratio) else f"{ratio:.2f}"]
        else:
            cells += ["not installed", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _three(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"


def _ends(bound: list[float]) -> str:
    low, _, high = bound
    if low == 0:  # nothing learned within 50 updates
        return "none learned"
    if high == math.inf:
        return f"above {low:.2g}"
    return f"{low:.2g} to {high:.2g}"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks advice")
    parser.add_argument("--only", default="", help="networks whose name or data contains this")
    parser.add_argument("--losses", nargs="+", default=list(LOSSES))
    parser.add_argument("--development", action="store_true", help="the networks of the rule")
    parser.add_argument("--file", type=Path, help="keep rows here, and go on from there")
    given = parser.parse_args(arguments or [])
    torch.set_num_threads(1)
    chosen = DEVELOPMENT if given.development else ROSTER
    rows: list[dict[str, Any]] = []
    if given.file is not None and given.file.exists():
        rows = json.loads(given.file.read_text())
    known = {(row["network"], row["data"], row["loss"]) for row in rows}
    for loss in given.losses:
        for entry in chosen:
            fits = given.only in f"{entry.name} {entry.source}"
            if not fits or (entry.name, entry.source, loss) in known:
                continue
            row = judged(entry, loss)
            rows.append(row)
            print(line(row), flush=True)
            if given.file is not None:
                given.file.write_text(json.dumps(rows))
    verdicts = {}
    for loss in given.losses:
        part = [row for row in rows if row["loss"] == loss]
        if not part:
            continue
        verdicts[loss] = verdict(part)
        print(f"\n### {loss}\n\n{table(part)}\n")
        print("\n".join(f"- {name}: {value}" for name, value in verdicts[loss].items()))
    return {"rows": rows, "verdicts": verdicts}
