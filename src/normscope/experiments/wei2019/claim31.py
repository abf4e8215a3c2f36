"""Claim 3.1: lambda_max of random networks, layer by layer and by kind of parameter."""

import math
from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Table, Values, over_sizes, parts
from normscope.experiments.wei2019._common import PLOTTED, cnn, mlp, named
from normscope.measure import mean_gradients

TOPS = 4  # networks whose lambda_max is measured


def spec(kind: str, width: int, gamma: float | None) -> ns.NetworkSpec:
    """The networks of the claim by kind; ``width`` is that of a layer or of the first channels."""
    if kind == "resnet":
        return ns.residual_mlp([width] * 5 + [1], weight_variance=2.0, bias_variance=0.1)
    if kind == "mean":
        return mlp([width, width, width, 1], gamma)
    if kind == "pairs":
        return mlp([width] * 4 + [2], gamma)
    if kind == "cnn":
        return cnn((3, 32, 32), gamma, channels=[width, 2 * width, 3 * width])
    return mlp([784 if width == 1000 else width, width, width, width, 10], gamma)


def trial(kind: str, width: int, samples: int, gamma: float | None, seed: int) -> Values:
    """Mean gradients of one network by layer and kind; its lambda_max where it is asked for."""
    made = spec(kind, width, gamma)
    generator = torch.Generator().manual_seed(0 if kind == "mean" else seed)
    inputs = torch.randn(samples, *made.input_shape, generator=generator)
    model = ns.build(made, seed)
    if kind == "mean":
        return _mean_matrix(made, inputs, seed)

    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]

    def squares(statistics: str) -> dict[str, float]:
        """|E_t grad f|^2 of every parameter, the mean over outputs."""
        risk = ns.Risk(model, inputs, loss="mse", statistics=statistics)
        blocks = mean_gradients(risk).double().split(sizes, 1)
        return {n: float(b.square().sum(1).mean()) for n, b in zip(names, blocks, strict=True)}

    weights = [n for n, p in model.named_parameters() if p.ndim > 1]
    terms = squares("batch")
    found: Values = {"layers": [terms[n] for n in weights], "all": sum(terms.values())}
    found["mean"] = sum(found["layers"])
    if kind in ("fc", "cnn"):
        held = squares("frozen") if gamma else terms
        found["frozen"] = sum(held[n] for n in weights)
        risk = ns.Risk(model, inputs, loss="mse", statistics="batch", parameters="weights")
        known = seed < TOPS  # the most expensive part
        found["lambda"] = float(ns.top_eigenvalues(ns.fisher(risk)).values[0]) if known else -1.0
    return found


def _mean_matrix(made: ns.NetworkSpec, inputs: torch.Tensor, seed: int) -> Any:
    """lambda_max of the mean Fisher matrix of many networks, and the mean of theirs."""
    nets = 3 * made.layers[0].outputs
    total, tops = 0.0, []
    for number in range(nets * seed, nets * (seed + 1)):
        model = ns.build(made, number).double()
        risk = ns.Risk(model, inputs.double(), loss="mse", statistics="batch", parameters="weights")
        matrix = ns.fisher(risk).to_dense().numpy()
        total = total + matrix / nets
        tops.append(float(np.linalg.eigvalsh(matrix)[-1]))
    return {"of-mean": float(np.linalg.eigvalsh(total)[-1]), "mean-of": float(np.mean(tops))}


def predicted(made: ns.NetworkSpec, theory: str = "corrected", **options: Any) -> float:
    """lambda_max of a theory; NaN if it has none."""
    return float(ns.predict(made, theory=theory, **options).lambda_max or math.nan)


def observe(table: Table) -> Values:
    """Measured values beside the printed theory and the corrected one."""
    found: Values = {}
    for kind in ("fc", "cnn"):
        made: dict[str, Values] = {}
        for gamma in table.where(kind=kind).values_of("gamma"):
            one = table.where(kind=kind, gamma=gamma)
            sizes = one.values_of("width")
            specs = [spec(kind, n, gamma) for n in sizes]
            counts = [one.where(width=n).values_of("samples")[0] for n in sizes]
            theory = [predicted(s, samples=t) for s, t in zip(specs, counts, strict=True)]
            last = one.where(width=sizes[-1])
            top = last("lambda")[last("lambda") > 0]
            for key, value in {
                "printed": {"values": top / predicted(specs[-1], theory="wei2019") - 1},
                "plotted": {"values": top / predicted(specs[-1], theory=PLOTTED) - 1},
                "right": {"values": top / theory[-1] - 1},
                "form": over_sizes(sizes, [one("mean", width=n) for n in sizes], theory),
                "frozen": {"values": np.log10(last("frozen") / last("mean")), "expected": 0.0},
                "share": {"values": 1 - last("mean") / last("all")},
            }.items():
                if gamma is not None or key not in ("frozen", "share"):
                    made.setdefault(key, {})[named(gamma)] = value
        found |= {f"{kind}-{key}": parts(value) for key, value in made.items()}
    found |= _pairs(table.where(kind="pairs"))
    rows = table.where(kind="mean")
    samples, width = rows.values_of("samples")[0], rows.values_of("width")[0]
    formula = predicted(spec("mean", width, None), samples=samples)
    found["eq8-printed"] = {"values": rows("of-mean"), "expected": formula}
    found["eq8-right"] = {"values": rows("mean-of") / formula - 1}
    one = table.where(kind="resnet")
    sizes, samples = one.values_of("width"), one.values_of("samples")[0]
    theory = [predicted(spec("resnet", n, None), samples=samples) for n in sizes]
    found["sec5-resnet"] = over_sizes(sizes, [one("mean", width=n) for n in sizes], theory)
    return found


def _pairs(one: Table) -> Values:
    """Eq. (153) layer by layer: the mean of products over pairs, or the product of means."""
    sizes, samples = one.values_of("width"), one.values_of("samples")[0]
    printed: Values = {}
    right: Values = {}
    for layer in range(4):
        values = [one("layers", width=n)[:, layer] for n in sizes]
        formulas = []
        for n in sizes:
            order = ns.predict(spec("pairs", n, None), theory="corrected").order_parameters
            pair = [[order[f"{k}{end}"][layer] for end in ("", "_st")] for k in ("qhat", "qtilde")]
            own, two = (1 / samples, 1 - 1 / samples)
            (hat, hat_st), (tilde, tilde_st) = pair
            exact = own * hat * tilde + two * hat_st * tilde_st
            product = (own * hat + two * hat_st) * (own * tilde + two * tilde_st)
            formulas.append((float(n * product), float(n * exact)))
        for made, theory in zip((printed, right), zip(*formulas, strict=True), strict=True):
            made[f"layer {layer + 1}"] = over_sizes(sizes, values, theory)
    return {"eq153-printed": parts(printed), "eq153-right": parts(right)}
