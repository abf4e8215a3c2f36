"""Sec. 5: residual networks, predicted node by node and measured, over their width."""

import math
from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Table, Values, over_sizes, parts, slopes
from normscope.measure import mean_gradients
from normscope.nn.zoo import cifar_preresnet, cifar_resnet

MAKERS = {"post": cifar_resnet, "pre": cifar_preresnet}
SHORTCUTS = {"A": "pad", "B": "projection"}
BULK = ("8-post-B", "8-pre-A", "20")  # where the theory says that it is a lower estimate
MANY = 16  # samples from which lambda_max is measured without the rest of the spectrum


def made(net: str, width: int, seed: int, **options: Any) -> tuple[torch.nn.Module, str]:
    """A network by name, such as ``"8-post-A-batch"``, and what its batch norms do."""
    depth, order, shortcut, norm = net.split("-")
    options |= {"shortcut": SHORTCUTS[shortcut], "norm": None if norm == "none" else "batch"}
    model = MAKERS[order](int(depth), width=width, seed=seed, **options)
    return model, "frozen" if norm == "frozen" else "batch"


def compared(model: torch.nn.Module, inputs: torch.Tensor, statistics: str) -> Values:
    """Numbers of F of one network by the theory, and measured numbers in units of them."""
    theory: Any = ns.predict(model, (inputs, None), statistics=statistics)
    risk = ns.Risk(model, inputs, loss="mse", statistics=statistics)
    mean = mean_gradients(risk).double().square().sum(1).mean()
    predicted, along = theory.lambda_max_split or math.nan, theory.mean_direction or math.nan
    found: Values = {"theory": predicted, "theory mean": along, "mean": float(mean) / along}
    if len(inputs) > MANY:
        return found | {"lambda": ns.top_eigenvalues(ns.fisher(risk)).values[0] / predicted}
    spectrum = ns.gram_spectrum(risk)
    return found | {"lambda": spectrum.largest / predicted, "trace": spectrum.trace / theory.trace}


def trial(net: str, width: int, samples: int, draw: int, seed: int) -> Values:
    """One network of one output on Gaussian images of 8 x 8."""
    number = 1000 * draw + seed
    images = torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(number))
    model, statistics = made(net, width, number, classes=1)
    return {"trace": -1.0} | compared(model, images, statistics)


def observe(table: Table) -> Values:
    """Measured over predicted at every width, by norm; apart where the bulk may lead."""
    found: Values = {}
    for samples in table.values_of("samples"):
        for net in table.where(samples=samples).values_of("net"):
            one, norm = table.where(net=net, samples=samples), net.split("-")[3]
            sizes, few = one.values_of("width"), norm == "batch" and samples <= MANY
            for name in ("lambda", "mean", "trace"):
                values = [one(name, width=n) for n in sizes]
                if name == "lambda" and few and net.startswith(BULK):
                    excess = np.stack(values) - 1
                    found.setdefault("bulk", {})[net] = excess[-1]
                    found.setdefault("bulk-falls", {})[net] = slopes(np.log2(sizes), excess.T)
                elif min(v.min() for v in values) > 0:
                    key = norm if name == "lambda" else f"{norm}-{name}"
                    place = f"{net}, T = {samples}"
                    found.setdefault(key, {})[place] = over_sizes(sizes, values, 1.0)
    return {f"resnet-{key}": parts(value) for key, value in found.items()}
