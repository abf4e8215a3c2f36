"""What one curvature product costs, in units of one loss gradient of the same network and batch.

    OMP_NUM_THREADS=1 python benchmarks/products.py

One thread, CPU time, best of five. "first" is making the operator and its first product, which
records the pass that later products replay. A loss gradient is forward, loss and backward as a
training step does it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import normscope as ns

REPEATS = 5


class Block(nn.Module):
    """Residual block of the CIFAR networks, zero-padded shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=not norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=not norm)
        self.norm1 = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(outputs) if norm else nn.Identity()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.extra:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return functional.relu(x + y)


def resnet20(norm: bool) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=not norm)]
    layers += [nn.BatchNorm2d(16) if norm else nn.Identity(), nn.ReLU()]
    width = 16
    for stage, outputs in enumerate((16, 32, 64)):
        for index in range(3):
            layers.append(Block(width, outputs, 2 if stage and not index else 1, norm))
            width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def mlp(norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in ((784, 1000), (1000, 1000), (1000, 1000)):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1000, 10))


def cases() -> Iterator[tuple[str, nn.Module, Tensor]]:
    torch.manual_seed(0)
    yield "MLP 784-1000^3-10, T=1024", mlp(False), torch.randn(1024, 784)
    yield "the same, batch norm (train)", mlp(True), torch.randn(1024, 784)
    yield "ResNet-20 without norms, T=128", resnet20(False), torch.randn(128, 3, 32, 32)
    yield "ResNet-20, batch norm (train), T=128", resnet20(True), torch.randn(128, 3, 32, 32)


def seconds(function: Callable[[], object], repeats: int = REPEATS) -> float:
    """CPU seconds of the fastest of ``repeats`` calls, after one for warming up."""
    if repeats > 1:
        function()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def row(name: str, model: nn.Module, x: Tensor) -> str:
    y = torch.randint(10, (len(x),))

    def gradient() -> object:
        return torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))

    unit = seconds(gradient)
    model_loss = {"loss": "cross_entropy", "statistics": "batch"}
    made = time.process_time()
    risk = ns.Risk(model, x, y, **model_loss)
    made = time.process_time() - made
    v = torch.randn(risk.num_parameters)
    start = time.process_time()
    fisher = ns.fisher(risk)
    fisher @ v
    first = time.process_time() - start
    product = seconds(lambda: fisher @ v)
    dual = fisher.dual
    u = torch.randn(dual.shape[0])
    gram = seconds(lambda: dual @ u)
    fisher.close()
    start = time.process_time()
    hessian = ns.hessian(risk)
    hessian @ v
    first_hessian = time.process_time() - start
    second = seconds(lambda: hessian @ v)
    costs = [made, first, product, gram, first_hessian, second]
    return f"{name:<38}{unit:8.3f} s" + "".join(f"{c / unit:9.2f}" for c in costs)


def main() -> None:
    torch.set_num_threads(1)
    heads = ["risk", "first F", "F v", "dual", "first H", "H v"]
    print(f"{'':<38}{'gradient':>10}" + "".join(f"{h:>9}" for h in heads))
    for name, model, x in cases():
        print(row(name, model, x), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak:.2f} GB, torch {torch.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
