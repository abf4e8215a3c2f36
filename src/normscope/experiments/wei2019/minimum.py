"""Eq. (7): the rate at which training leaves a minimum."""

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Table, Values, parts
from normscope.experiments.wei2019._common import at_minimum

MOMENTA = (0.0, 0.9)
START = 1e-3  # distance from the minimum at which training begins
WIDTH = 0.02  # of the bisection


def trial(seed: int) -> Values:
    """Limits of a linear regression and a tanh network, in units of the formula."""
    generator = torch.Generator().manual_seed(seed)
    found: Values = {}
    for name, (model, inputs, targets) in at_minimum(seed, generator).items():
        risk = ns.Risk(model, inputs, targets, loss="mse", statistics="batch")
        top = float(np.linalg.eigvalsh(ns.hessian(risk).to_dense().numpy())[-1])
        with torch.no_grad():
            for p in model.parameters():
                p.add_(START * torch.randn(p.shape, generator=generator, dtype=torch.float64))
        for momentum in MOMENTA:
            limit = ns.max_stable_lr(model, (inputs, targets), "mse", momentum=momentum,
                                     criterion="leaves", steps=50, seeds=1, batch_size=len(inputs),
                                     tol=WIDTH)  # fmt: skip
            found[f"{name}, momentum {momentum:g}"] = limit.lr / (2 * (1 + momentum) / top)
    return found


def observe(table: Table) -> Values:
    """Limits in units of the formula."""
    return {"eq7": parts({name: table(name) for name in table.names})}
