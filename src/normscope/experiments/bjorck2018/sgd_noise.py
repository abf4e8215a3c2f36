"""The noise of stochastic gradients: Eq. (2)."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional

import normscope as ns
from normscope.experiments.bjorck2018._common import images
from normscope.experiments.observing import Panel, Table, Values, columns, curve
from normscope.measure.layer_signals import layer_signals
from normscope.seeds import numpy_generator

SIZES, COUPLED = (1, 8, 64, 512), (8, 32, 128)


def trial(seed: int, data: str, samples: int, draws: int, coupled: int) -> Values:
    """Noise of simulated batches over the formula, for one network with one hidden layer."""
    drawn = images(data, samples, seed).flat()
    net: Any = ns.network(f"mlp:{drawn.images.shape[1]}-32-10", norm=None, seed=seed).double()
    drawn = drawn.to(dtype=torch.float64)
    gram = _gram(net, drawn)
    sizes = [b for b in SIZES if 2 * b <= samples]
    exact = ns.gradient_noise(net, drawn, "cross_entropy", batch_sizes=sizes)
    formulas = (exact.with_replacement[0], exact.without_replacement[0])
    rng = numpy_generator(seed, "batches")
    made: Values = {"sizes": sizes, "unbiased": [], "ratio": [], "ratio_without": []}
    for i, size in enumerate(sizes):
        counts = rng.multinomial(size, np.full(samples, 1 / samples), draws)
        others = np.array([np.isin(np.arange(samples), rng.permutation(samples)[:size])
                           for _ in range(draws)])  # fmt: skip
        noise, without = (_noise(gram, w / size - 1 / samples) for w in (counts, others))
        mean = counts.mean(0) / size - 1 / samples
        made["ratio"].append(noise.mean() / formulas[0][i])
        made["ratio_without"].append(without.mean() / formulas[1][i])
        made["unbiased"].append(float(mean @ gram @ mean) * draws / formulas[0][i])
    return made | {"coupled": _coupled(seed, data, coupled)}


def _gram(net: Any, data: Any) -> Any:
    """Products of the centred gradients of all samples, from inputs and gradients of layers."""
    found = layer_signals(
        net, data.images, lambda out: functional.cross_entropy(out, data.labels, reduction="sum")
    )
    layers = zip(found["x"], found["dh"], strict=True)
    gram = np.asarray(sum((z.detach() @ z.detach().T + 1) * (g @ g.T) for z, g in layers))
    gram = gram - gram.mean(0)
    return gram - gram.mean(1, keepdims=True)


def _noise(gram: Any, weights: Any) -> Any:
    return np.einsum("ij,ij->i", weights @ gram, weights)


def _coupled(seed: int, data: str, samples: int) -> list[float]:
    """Batch size times noise of a network with batch norm, as of independent samples."""
    drawn = images(data, samples, seed)
    net: Any = ns.network("resnet8", width=4, channels=drawn.images.shape[1], seed=seed)
    sizes = [b for b in COUPLED if 4 * b <= samples]
    found = ns.gradient_noise(net, drawn, "cross_entropy", batch_sizes=sizes, draws=64, seed=seed)
    b = np.array(sizes)
    return list(found.without_replacement[0] * b * (samples - 1) / (samples - b))


def observe(table: Table) -> Values:
    """What the claims read; a part for each batch size."""
    names = [f"B = {b}" for b in table.rows[0][1]["sizes"]]
    coupled = table("coupled")
    return {"eq2-unbiased": columns(table("unbiased"), names),
            "eq2-noise": columns(table("ratio"), names),
            "eq2-without": columns(table("ratio_without"), names),
            "eq2-bn": {"values": np.log10(coupled[:, -1] / coupled[:, 0])}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Simulated noise over the formula."""
    sizes = table.rows[0][1]["sizes"]
    shown = {"with replacement": "ratio", "without, factor (N - B) / (N - 1)": "ratio_without",
             "mean error, squared": "unbiased"}  # fmt: skip
    curves = [curve(name, sizes, table(key).T) for name, key in shown.items()]
    curves.append(curve("Eq. (2)", sizes, np.ones(len(sizes)), style="line"))
    return [Panel("Eq. (2): noise of a batch", "batch size", "simulated / formula", tuple(curves),
                  log_x=True)]  # fmt: skip
