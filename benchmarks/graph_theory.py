"""Predicted and measured numbers of F = J^T J / T for residual networks, and what predicting costs.

OMP_NUM_THREADS=1 python -m benchmarks graph [width|cause|cifar|stability|cost] [networks...]

``width``: lambda_max over the width on images of 8 x 8, 16 x 16 and 32 x 32. ``cause``: where the
bulk of the spectrum leads, is its excess finite-width noise of the Gram matrix? ``cifar`` and
``stability`` (need NORMSCOPE_DATA): ResNet-20 on CIFAR-10. ``cost``: CPU seconds and memory.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import normscope as ns
from benchmarks.timing import timed
from normscope.experiments.wei2019.resnets import made
from normscope.measure import mean_gradients
from normscope.nn.zoo import cifar_preresnet, cifar_resnet
from normscope.subject.nodes import nodes_and_data
from normscope.theory.graph.answer import planned_cost, predict_graph
from normscope.theory.graph.nodes import Affine, Graph
from normscope.theory.graph.specs import graph_of

WIDTHS = (16, 32, 64)
SIDES = {  # side of the images -> network, samples, networks of each width
    16: {"8-post-A-batch": 6, "8-pre-B-batch": 6, "8-post-B-frozen": 10, "8-pre-A-none": 20},
    32: {"8-post-A-batch": 5, "8-pre-B-batch": 5},
}
SAMPLES = 16


def nodes_of(models: Sequence[torch.nn.Module], x: torch.Tensor, statistics: str) -> Any:
    """The nodes of networks that differ by seed, with their mean variances, and the data."""
    reads = [nodes_and_data(model, (x, None), statistics=statistics) for model in models]
    nodes = []
    for same in zip(*(read.graph.nodes for read, _ in reads), strict=True):
        node = same[0]
        if isinstance(node, Affine):
            variance = float(np.mean([n.weight_variance for n in same]))
            node = replace(node, weight_variance=variance)
        nodes.append(node)
    return Graph(tuple(nodes)), reads[0][1]


def measured(model: torch.nn.Module, x: torch.Tensor, statistics: str) -> tuple[float, float]:
    """lambda_max and the mean direction of one network."""
    risk = ns.Risk(model, x, loss="mse", statistics=statistics)
    top = float(ns.top_eigenvalues(ns.fisher(risk), tol=3e-3).values[0])
    return top, float(mean_gradients(risk).double().square().sum(1).mean())


def told(name: str, values: Sequence[float], predicted: float) -> dict[str, float]:
    """Measured over predicted, in percent, with its standard error."""
    ratio = np.asarray(values) / predicted
    error = ratio.std(ddof=1) / np.sqrt(len(ratio)) if len(ratio) > 1 else np.nan
    return {f"{name} %": 100 * (ratio.mean() - 1), f"{name} error %": 100 * error}


def width(names: Sequence[str]) -> list[dict[str, Any]]:
    """The excess of lambda_max and of the mean direction at each width."""
    rows = []
    for side, networks in SIDES.items():
        x = torch.randn(SAMPLES, 3, side, side, generator=torch.Generator().manual_seed(side))
        for net, count in networks.items():
            if names and f"{net}@{side}" not in names:
                continue
            wide = [made(net, WIDTHS[-1], seed, classes=1)[0] for seed in range(count)]
            statistics = made(net, 4, 0)[1]
            graph, data = nodes_of(wide, x, statistics)
            theory, seconds, _ = timed(
                partial(predict_graph, graph, data=data, statistics=statistics)
            )
            del wide
            for n in WIDTHS:
                one = theory.scaled(width=n / WIDTHS[-1])
                found = [
                    measured(made(net, n, seed, classes=1)[0], x, statistics)
                    for seed in range(count)
                ]
                tops, means = zip(*found, strict=True)
                rows.append(
                    {"net": net, "side": side, "width": n, "networks": count}
                    | {"predicted": one.lambda_max, "predicted mean": one.mean_direction}
                    | told("top", tops, one.lambda_max)
                    | told("mean", means, one.mean_direction)
                    | {"seconds of predicting": seconds}
                )
                print(rows[-1], flush=True)
    return rows


def gram_of(model: torch.nn.Module, x: torch.Tensor) -> np.ndarray:
    """Theta of one output, all pairs of samples."""
    parameters = list(model.parameters())
    outputs = model.train()(x)[:, 0]
    rows = [
        torch.cat([g.reshape(-1) for g in torch.autograd.grad(y, parameters, retain_graph=True)])
        for y in outputs
    ]
    jacobian = torch.stack(rows).double()
    return (jacobian @ jacobian.T).numpy()


def cause(names: Sequence[str]) -> list[dict[str, Any]]:
    """lambda_max of Theta averaged over several networks, and with weights +-1 at the read-out.

    One output: Theta = sum_i w_i^2 Theta_i over the channels that enter the read-out. If finite
    width spreads the eigenvalues of Theta around their limit, the mean over m networks of width n
    has the excess of one network of width m n, and equal w_i^2 lower it at every width.
    """
    net, count, rows = "20-pre-B-batch", 64, []
    x = torch.randn(SAMPLES, 3, 8, 8, generator=torch.Generator().manual_seed(12))
    for n in map(int, names or (8, 16, 32)):
        networks = count if n < 32 else count // 2
        wide = [made(net, n, seed, classes=1)[0] for seed in range(networks)]
        graph, data = nodes_of(wide, x, "batch")
        limits = {
            level: predict_graph(graph, data=data, level=level).lambda_max
            for level in (("positions", "gram") if n == 32 else ("positions",))
        }
        for read_out in ("Gaussian", "signs"):
            grams = []
            for model in wide:
                if read_out == "signs":
                    with torch.no_grad():
                        weight = model.fc.weight  # type: ignore[union-attr]
                        weight.copy_(weight.sign() * (2 / weight.shape[1]) ** 0.5)  # type: ignore
                grams.append(gram_of(model, x) / len(x))
            for m in (1, 2, 4, 8, 16, 32):
                means = [np.mean(grams[i : i + m], 0) for i in range(0, networks - m + 1, m)]
                tops = [float(np.linalg.eigvalsh(g)[-1]) for g in means]
                spread = np.std(tops, ddof=1) / len(tops) ** 0.5 if len(tops) > 1 else np.nan
                row: dict[str, Any] = {
                    "width": n,
                    "read-out": read_out,
                    "averaged": m,
                    "groups": len(tops),
                }
                row |= {"lambda_max": float(np.mean(tops)), "error": float(spread)}
                rows.append(row | {"trace": float(np.trace(np.mean(means, 0)))} | limits)
                print(rows[-1], flush=True)
    return rows


def images(count: int) -> ns.DataSet:
    """Training images of CIFAR-10, standardized by channel."""
    return ns.load_data("cifar10").subset(count)


def resnet20(init: str, seed: int) -> torch.nn.Module:
    return cifar_resnet(20, init=init, seed=seed)


def cifar(names: Sequence[str]) -> list[dict[str, Any]]:
    """ResNet-20 with batch norm in train mode on real images, ten outputs."""
    rows = []
    for name in names or ("64-he-5", "64-xavier-5", "128-he-5", "128-xavier-5"):
        batch, init, count = name.split("-")
        x = images(int(batch)).images
        models = [resnet20(init, seed) for seed in range(int(count))]
        found = []
        for model in models:
            value, seconds, _ = timed(partial(measured, model, x, "batch"))
            found.append(value)
            print(name, "measured", value, f"{seconds:.1f} s", flush=True)
        tops, means = np.array(found).T
        graph, data = nodes_of(models, x, "batch")
        row: dict[str, Any] = {
            "batch": batch,
            "init": init,
            "networks": count,
            "measured": float(tops.mean()),
        }
        row |= {"measured error": float(tops.std(ddof=1) / len(tops) ** 0.5)}
        row |= {"measured mean": float(means.mean()), "least": tops.min(), "most": tops.max()}
        print(row, flush=True)
        theory, seconds, _ = timed(partial(predict_graph, graph, data=data))
        row |= {"predicted": theory.lambda_max, "split": theory.lambda_max_split}
        row |= {"predicted mean": theory.mean_direction, "level": theory.level}
        rows.append(row | {"seconds of predicting": seconds})
        print(rows[-1], "\n", theory.flags, theory.assumptions, flush=True)
    return rows


def stability(names: Sequence[str]) -> list[dict[str, Any]]:
    """Where gradient descent on one batch of 64 images diverges, and where it does not learn."""
    rows = []
    for init in names or ("he", "xavier"):
        model, data = resnet20(init, 0), images(64)
        top, mean = measured(model, data.images, "batch")
        limit = ns.max_stable_lr(
            model, data, "mse", steps=20, seeds=1, batch_size=64, tol=0.2, max_seconds=600
        )
        rows.append({"init": init, "2 / lambda_max": 2 / top, "2 / mean direction": 2 / mean})
        print(rows[-1], "\n", limit.summary(), flush=True)
    return rows


COSTS = {
    "homogeneous, ResNet-110, pre-activation": ("pre", 110, 32, "homogeneous"),
    "homogeneous, ResNet-110, post-activation": ("post", 110, 32, "homogeneous"),
    "positions, ResNet-20 at 16 x 16, pre-activation": ("pre", 20, 16, "positions"),
    "positions, ResNet-20 at 16 x 16, post-activation": ("post", 20, 16, "positions"),
    "positions, ResNet-20 at 32 x 32, pre-activation": ("pre", 20, 32, "positions"),
    "positions, ResNet-20 at 28 x 28, post-activation": ("post", 20, 28, "positions"),
    "positions, ResNet-20 at 32 x 32, post-activation": ("post", 20, 32, "positions"),
    "gram, MLP 784-1000-1000-1000-10 with batch norm, 256 samples": ("mlp", 4, 0, "gram"),
}


def cost(names: Sequence[str]) -> list[dict[str, Any]]:
    """Each case in a process of its own: CPU seconds, memory of the theory and of all, and what was
    said beforehand.
    """
    for number in map(int, names or range(len(COSTS))):
        code = f"from benchmarks.graph_theory import one_cost; one_cost({number})"
        subprocess.run([sys.executable, "-c", code], check=True)
    return []


def one_cost(number: int) -> None:
    name, (kind, depth, side, level) = list(COSTS.items())[number]
    rng = np.random.default_rng(0)
    if kind == "mlp":
        spec = ns.mlp([784, 1000, 1000, 1000, 10], norm="batch")
        graph, data = graph_of(spec, parameters="all"), rng.standard_normal((256, 784))
    else:
        net = {"pre": cifar_preresnet, "post": cifar_resnet}[kind](depth)
        x = torch.as_tensor(rng.standard_normal((64, 3, side, side)), dtype=torch.float32)
        read, data = nodes_and_data(net, (x, None))
        graph = read.graph
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    _, seconds, _ = timed(partial(predict_graph, graph, data=data, level=level))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    said = planned_cost(graph, len(data), level=level)
    memory = f"{peak - before:.0f} of {peak:.0f} MB"
    print(f"| {name} | {seconds:.2f} s | {memory} | {said} |", flush=True)


PARTS = {"width": width, "cause": cause, "cifar": cifar, "stability": stability, "cost": cost}


def main(options: list[str] | None = None) -> dict[str, Any]:
    given = options or []
    chosen = given[:1] or [part for part in PARTS if part not in ("cifar", "stability")]
    return {name: PARTS[name](given[1:]) for name in chosen}
