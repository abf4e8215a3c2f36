"""Eqs (3)-(10) and footnote 1: Hessian, Fisher matrix and heavy ball at a minimum."""

from typing import Any

import numpy as np
import torch
from torch import nn

import normscope as ns
from normscope.experiments.observing import Table, Values
from normscope.experiments.wei2019._common import at_minimum
from normscope.theory import best_lr_range


def trial(draws: int, seed: int) -> Values:
    """One linear regression and one tanh network, both with an exact minimum."""
    generator = torch.Generator().manual_seed(seed)
    found, model, inputs = Values(), nn.Module(), torch.empty(0)
    for name, (model, inputs, targets) in at_minimum(seed, generator).items():
        risk = ns.Risk(model, inputs, targets, loss="mse", statistics="batch")
        hessian, fisher = (f(risk).to_dense().numpy() for f in (ns.hessian, ns.fisher))
        found[f"eq6, {name}"] = float(np.linalg.norm(hessian - fisher) / np.linalg.norm(fisher))
    return found | _drawn_labels(model, inputs, draws, generator)  # of the tanh network


def _drawn_labels(model: nn.Module, inputs: Any, draws: int, generator: Any) -> Values:
    """The Fisher matrix of the Gaussian model by its definition (3), and as Eq. (10)."""
    jacobian = ns.jacobian(ns.Risk(model, inputs, loss="mse", statistics="batch"))
    rows = jacobian.to_dense().numpy().reshape(len(inputs), -1, jacobian.shape[1])
    product = np.einsum("tkp,tkq->pq", rows, rows) / len(inputs)
    fisher = ns.fisher(ns.Risk(model, inputs, loss="mse", statistics="batch")).to_dense().numpy()
    shape = (draws, *rows.shape[:2])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64).numpy()  # y - f
    slopes = np.einsum("dtk,tkp->dtp", noise, rows)  # grad log p of every drawn label
    exact = float(np.square(rows).sum() / len(inputs))
    return {"eq10-matrix": float(np.linalg.norm(product - fisher) / np.linalg.norm(fisher)),
            "eq10-trace": float(np.square(slopes).sum(2).mean() / exact)}  # fmt: skip


def observe(table: Table) -> Values:
    """Gaps between the matrices, and the best rate of one mode."""
    gaps = [table(name) for name in table.names if name.startswith("eq6")]
    momentum, rates = 0.9, np.geomspace(1e-4, 4.0, 4001)  # eta times lambda
    best = min(_radius(rate, momentum) for rate in rates)
    half = _radius(1 + momentum, momentum)  # at half of 2 (1 + momentum)
    low, high = best_lr_range(1.0, momentum=momentum)
    flat = [_radius(rate, momentum) - np.sqrt(momentum) for rate in np.linspace(low, high, 9)[1:-1]]
    return {"eq6": {"error": np.ravel(gaps), "size": 50}, "eq10": {"values": table("eq10-trace")},
            "eq10-matrix": {"error": table("eq10-matrix"), "size": 50},
            "fn1": {"error": [max(half - best, 0.0)], "size": 2},
            "fn1-flat": {"error": np.abs(flat), "size": 2}}  # fmt: skip


def _radius(rate: float, momentum: float) -> float:
    """Factor by which heavy ball shrinks one mode per update."""
    step = np.array([[1 + momentum - rate, -momentum], [1.0, 0.0]])
    return float(np.max(np.abs(np.linalg.eigvals(step))))
