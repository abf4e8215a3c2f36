"""Eq. (3)-(10) at a minimum: stability limit, Hessian and Fisher matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import normscope as ns
from normscope.experiments.experiment import Experiment, Scale, Table
from normscope.theory import best_lr_range

MOMENTA = (0.0, 0.9)
START = 1e-3  # distance from the minimum at which training begins
WIDTH = 0.02  # of the bisection


def trial(draws: int, seed: int) -> dict[str, Any]:
    """One linear regression and one tanh network, both with an exact minimum."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = normal(20, 5)
    linear = nn.Linear(5, 1, bias=False).double()
    tanh = ns.build(ns.mlp([5, 6, 2], activation="tanh", bias_variance=0.5), seed).double()
    found: dict[str, Any] = {}
    for name, model in (("quadratic", linear), ("tanh network", tanh)):
        targets = model(inputs).detach()  # this network is the minimum
        risk = ns.Risk(model, inputs, targets, loss="mse", statistics="batch")
        hessian, fisher = (f(risk).to_dense().numpy() for f in (ns.hessian, ns.fisher))
        top = float(np.linalg.eigvalsh(hessian)[-1])
        found[f"eq6, {name}"] = float(np.linalg.norm(hessian - fisher) / np.linalg.norm(fisher))
        with torch.no_grad():
            for p in model.parameters():
                p.add_(START * normal(*p.shape))
        for momentum in MOMENTA:
            limit = ns.max_stable_lr(
                model, (inputs, targets), "mse", momentum=momentum, criterion="leaves", steps=50,
                seeds=1, batch_size=len(inputs), tol=WIDTH,
            )  # fmt: skip
            key = f"eq7, {name}, momentum {momentum:g}"
            found[key] = limit.lr / (2 * (1 + momentum) / top)
    return found | _drawn_labels(tanh, inputs, draws, generator)


def _drawn_labels(model: nn.Module, inputs: Any, draws: int, generator: Any) -> dict[str, Any]:
    """The Fisher matrix of the Gaussian model by its definition (3), and as Eq. (10)."""
    jacobian = ns.jacobian(ns.Risk(model, inputs, loss="mse", statistics="batch"))
    rows = jacobian.to_dense().numpy().reshape(len(inputs), -1, jacobian.shape[1])
    product = np.einsum("tkp,tkq->pq", rows, rows) / len(inputs)
    fisher = ns.fisher(ns.Risk(model, inputs, loss="mse", statistics="batch")).to_dense().numpy()
    shape = (draws, *rows.shape[:2])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).numpy()  # y - f
    slopes = np.einsum("dtk,tkp->dtp", noise, rows)  # grad log p of every drawn label
    exact = float(np.square(rows).sum() / len(inputs))
    return {
        "eq10-matrix": float(np.linalg.norm(product - fisher) / np.linalg.norm(fisher)),
        "eq10-trace": float(np.square(slopes).sum(2).mean() / exact),
    }


def observe(table: Table) -> dict[str, Any]:
    """Limits in units of the formula, and the best rate of one mode."""
    names = table.names
    limits = {n.removeprefix("eq7, "): {"values": table(n).tolist()} for n in names if "eq7" in n}
    gaps = [table(n).tolist() for n in names if n.startswith("eq6")]
    momentum, rates = 0.9, np.geomspace(1e-4, 4.0, 4001)  # eta times lambda
    best = min(_radius(rate, momentum) for rate in rates)
    half = _radius(1 + momentum, momentum)  # at half of 2 (1 + momentum)
    low, high = best_lr_range(1.0, momentum=momentum)
    flat = [_radius(rate, momentum) - np.sqrt(momentum) for rate in np.linspace(low, high, 9)[1:-1]]
    return {
        "eq7": {"parts": limits},
        "eq6": {"error": np.ravel(gaps).tolist(), "size": 50},
        "eq10": {"values": table("eq10-trace").tolist()},
        "eq10-matrix": {"error": table("eq10-matrix").tolist(), "size": 50},
        "fn1": {"error": [max(half - best, 0.0)], "size": 2},
        "fn1-flat": {"error": np.abs(flat).tolist(), "size": 2},
    }


def _radius(rate: float, momentum: float) -> float:
    """Factor by which heavy ball shrinks one mode per update."""
    step = np.array([[1 + momentum - rate, -momentum], [1.0, 0.0]])
    return float(np.max(np.abs(np.linalg.eigvals(step))))


EXPERIMENT = Experiment(
    title="A regression and a small tanh network at their minimum",
    trial=trial,
    scales={"smoke": Scale({"draws": 400}, 2, 4.0), "desk": Scale({"draws": 4000}, 6, 30.0)},
    observe=observe,
    own_scale=True,
)
