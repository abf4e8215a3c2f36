"""Sec. 2.1: whether training moves lambda_max and the distribution of the parameters."""

import math

import numpy as np
from scipy import stats

import normscope as ns
from normscope.experiments.observing import Array, Panel, Table, Values, curve, parts
from normscope.experiments.wei2019._common import BATCH, MOMENTUM, data_of, named, rate_of, spec_of


def trial(network: str, gamma: float | None, share: float, samples: int, seed: int) -> Values:
    """Five epochs at a share of the critical rate: the curvature and every tensor before, after."""
    spec, data = spec_of(network, gamma), data_of(network, samples)
    model = ns.build(spec, seed)
    images, labels = data.batches(BATCH, seed=seed)[0]
    before = {n: p.detach().clone().flatten().numpy() for n, p in model.named_parameters()}

    def sharpness() -> float:
        risk = ns.Risk(model, images, labels, loss="mse", statistics="batch")
        return float(ns.top_eigenvalues(ns.fisher(risk)).values[0])

    first, lr = sharpness(), share * rate_of(spec, "corrected", "all")
    run = ns.fit(model, data, "mse", lr=lr, momentum=MOMENTUM, epochs=5, batch_size=BATCH,
                 seed=seed)  # fmt: skip
    found: Values = {"move": math.log10(sharpness() / first), "outcome": run.outcome}
    for kind, ending in (("weights", "weight"), ("biases", "bias")):
        after = {n: p.detach().flatten().numpy() for n, p in model.named_parameters()
                 if n.startswith("layer") and n.endswith(ending)}  # fmt: skip
        found[kind] = [
            float(stats.ks_2samp(before[n], p, method="asymp").statistic * math.sqrt(len(p) / 2))
            for n, p in after.items()]  # fmt: skip
    return found


def observe(table: Table) -> Values:
    """Moves of lambda_max in decades; Kolmogorov-Smirnov distances of the tensors."""
    moves: Values = {}
    tensors: Values = {}
    for share in table.values_of("share"):
        for gamma in table.values_of("gamma"):
            one = {"gamma": gamma, "share": share}
            name = f"{named(gamma)}, {share:g} eta*"
            moves[name] = {"values": table("move", **one), "expected": 0.0}
            weights, biases = (_distances(table, kind, **one) for kind in ("weights", "biases"))
            tensors |= {f"hidden weights, {name}": weights[:, :-1].max(1),
                        f"read-out weights, {name}": weights[:, -1],
                        f"hidden biases, {name}": biases[:, :-1].max(1)}  # fmt: skip
    return {"sec2-heuristic": parts(moves), "sec2-weights": parts(tensors)}


def _distances(table: Table, kind: str, **where: object) -> Array:
    """Kolmogorov-Smirnov distances by seed and layer; a trial keeps them times sqrt(n / 2)."""
    spec = spec_of(table.rows[0][0]["network"], None)
    sizes = np.array([layer.outputs for layer in spec.layers])
    sizes = sizes * spec.fan_ins if kind == "weights" else sizes
    return np.asarray(table(kind, **where) / np.sqrt(sizes / 2))


def panels(table: Table) -> list[Panel]:
    """Distances of the weights by layer, at the largest rate."""
    share = table.values_of("share")[-1]
    curves = []
    for gamma in table.values_of("gamma"):
        rows = _distances(table, "weights", gamma=gamma, share=share).T
        curves.append(curve(named(gamma), list(range(1, len(rows) + 1)), rows))
    words = f"weights after five epochs at {share:g} of the critical rate"
    note = "Hidden layers keep their distribution; with batch norm the read-out does not."
    label = "Kolmogorov-Smirnov distance"
    return [Panel(f"Sec. 2.1: {words}", "layer", label, tuple(curves), log_y=True, note=note)]
