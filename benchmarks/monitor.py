"""What a monitor costs a training: at its default cadence, and on every step.

OMP_NUM_THREADS=1 python -m benchmarks monitor
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import normscope as ns
from benchmarks.timing import Times, timed
from normscope.train.monitor import Monitor

__all__ = ["main"]

BOUND = 0.05  # of the training time, at the default cadence
EVERY = inspect.signature(Monitor).parameters["every"].default


def mlp() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((784, 256), (256, 256), (256, 256)):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


# name -> network, shape of an input, batch, rounds
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "MLP 784-256x3-10, batch 128": (mlp, (1, 28, 28), 128, 15),
    "ResNet-20, 32 x 32, batch 32": (lambda: ns.network("resnet20"), (3, 32, 32), 32, 3),
}


class Training:
    """One network under training by plain SGD; the data are made once."""

    def __init__(self, make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int) -> None:
        torch.manual_seed(0)
        self.model = make().train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs = torch.randn(batch, *shape)
        self.labels: Tensor = torch.randint(10, (batch,))

    def run(self, steps: int, every: int | None = None) -> None:
        monitor = None if every is None else Monitor(self.model, every)
        for _ in range(steps):
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self.inputs), self.labels).backward()
            self.optimizer.step()
        if monitor is not None:
            monitor.close()


def overhead(name: str) -> dict[str, Any]:
    """Extra share of CPU time: rounds of training without, with, and with it on every step."""
    make, shape, batch, rounds = NETWORKS[name]
    training = Training(make, shape, batch)
    training.run(5)
    plain, watched, dense = Times(), Times(), Times()
    few = max(EVERY // 10, 1)
    for turn in range(rounds):
        jobs = [(plain, EVERY, None), (watched, EVERY, EVERY), (dense, few, 1)]
        for times, steps, every in jobs[:: 1 if turn % 2 else -1]:  # no one is always first
            _, cpu, wall = timed(lambda steps=steps, every=every: training.run(steps, every))
            times.add(cpu / steps, wall / steps)
    ratios = [b / a - 1 for a, b in zip(plain.cpu, watched.cpu, strict=True)]
    step = statistics.median(plain.cpu)
    recorded = statistics.median(dense.cpu) / step - 1
    return {
        "network": name,
        "every": EVERY,
        "step_ms": 1e3 * step,
        "overhead_direct": statistics.median(ratios),
        "overhead_rounds": ratios,
        "recorded_step": recorded,  # extra share of a step that is recorded
        "overhead_from_recorded": recorded / EVERY,
        "bound": BOUND,
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = [overhead(name) for name in NETWORKS]
    print(
        f"| network | step, ms | a recorded step takes more by | share at every = {EVERY} "
        f"| the same, timed directly | bound |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        print(
            f"| {row['network']} | {row['step_ms']:.3g} | {row['recorded_step']:.1%} "
            f"| {row['overhead_from_recorded']:.2%} | {row['overhead_direct']:+.2%} | {BOUND:.0%} |"
        )
    return {"results": rows}
