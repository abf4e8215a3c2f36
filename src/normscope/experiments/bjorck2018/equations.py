"""Identities, and least squares: Eqs (1), (3), (4), (11), (12) and Sec. 4."""

import itertools
from bisect import bisect_left
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import normscope as ns
from normscope.experiments.observing import Array, Panel, Table, Values, columns, curve
from normscope.measure.layer_signals import layer_signals
from normscope.seeds import numpy_generator
from normscope.theory import randmat

KAPPAS = (3, 10, 30, 100)
MOST = 10**6  # steps of gradient descent
SIZE, DEPTH = 20, 6  # of least squares; of the products that are compared
DRAWS: Values = {"Gaussian": lambda rng, n: rng.standard_normal((n, n)),
                         "uniform": lambda rng, n: rng.uniform(-(3**0.5), 3**0.5, (n, n)),
                         "sign": lambda rng, n: rng.choice([-1.0, 1.0], (n, n))}  # fmt: skip


def trial(seed: int, size: int, sparse: int) -> Values:
    """All of it for one draw."""
    rng = numpy_generator(seed, "equations")
    torch.manual_seed(seed)
    steps, limits, ratios = zip(*(_descent(rng, kappa) for kappa in KAPPAS), strict=True)
    products = {name: [draw(rng, size) / size**0.5 for _ in range(DEPTH)]
                for name, draw in DRAWS.items()}  # fmt: skip
    mask = (rng.random((sparse, sparse)) < 1 / sparse).astype(float)
    filled = mask[mask.any(1)][:, mask.any(0)]  # of the same rank
    return {"steps": list(steps), "limit": list(limits), "ratio": list(ratios),
            "condition": [_condition(factors) for factors in products.values()],
            "sec4-scale-free": _scaled(products["Gaussian"]),
            "rank": int(np.linalg.matrix_rank(filled)) / sparse,
            "second_moment": float(sparse * (mask**2).mean())} | _identities()  # fmt: skip


def _descent(rng: Any, kappa: float) -> tuple[int, float, float]:
    """Gradient descent on |A x - y|^2 / 2 at the rate 1 / lambda_max, from 0.

    Steps until the loss is 1e-6 of its start, the largest stable rate, and largest over median
    component of the first gradient along the singular vectors. Along eigenvector k of A'A each step
    multiplies the error by 1 - lambda_k / lambda_max.
    """
    u, v = (np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0] for _ in range(2))
    a = u * np.geomspace(kappa**0.5, kappa**-0.5, SIZE) @ v.T  # geometric mean 1
    values, vectors = np.linalg.eigh(a.T @ a)
    solution = rng.standard_normal(SIZE)
    squares, top = values * (vectors.T @ solution) ** 2, float(values[-1])
    first = np.abs(v.T @ (a.T @ (a @ solution)))

    def small(steps: int) -> bool:
        return bool((1 - values / top) ** (2 * steps) @ squares <= 1e-6 * squares.sum())

    count = bisect_left(range(MOST), True, key=small)
    return count, 2 / top, float(first.max() / np.median(first))


def _condition(factors: list[Array]) -> float:
    """log10 of the condition number of a product."""
    return float(randmat.product_conditioning(factors).log10_condition[0, -1])


def _scaled(factors: list[Array]) -> Values:
    """What scaling the factors by 0.3 changes in the condition number."""
    change = _condition(factors) - _condition([0.3 * f for f in factors])
    worst = max(float(np.linalg.cond(f)) for f in factors)
    return {"error": abs(10**change - 1), "size": len(factors[0]), "condition": worst}


def _identities() -> Values:
    """Eq. (1) against torch's layer; Eqs (4) and (11) against autograd."""
    x = torch.randn(8, 3, 5, 5).double()
    ours, torchs = ns.BatchNorm(3).double(), nn.BatchNorm2d(3).double()
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    written = (x - mean) / (var + torchs.eps).sqrt()
    errors = [_relative(f, torchs(x)) for f in (ours(x), written)]
    summed = (x - x.sum((0, 2, 3), keepdim=True)) / (var + torchs.eps).sqrt()
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, padding=1),
                        nn.Flatten(), nn.Linear(125, 4)).double()  # fmt: skip
    labels = torch.randint(4, (8,))
    found = ns.gradients(net, (x, labels), "cross_entropy")
    loss: Any = functional.cross_entropy(net(x), labels)
    loss.backward()
    terms, order = [], []
    for layer in found.layers[:2]:
        weight: Any = net.get_submodule(layer.name).weight
        terms.append(abs(layer.t4 * 8 * 25 / float(weight.grad.abs().mean()) - 1))
        order.append(max(layer.t4 / min(layer.t2, layer.t3), max(layer.t2, layer.t3) / layer.t1))
    return {"eq1": {"error": float(_relative(summed, torchs(x))), "size": 200},
            "eq1-corrected": {"error": [float(e) for e in errors], "size": 200},
            "eq34": {"error": terms, "size": 200}, "order": max(order),
            "eq11-12": {"error": _single_sample(), "size": 12}}  # fmt: skip


def _relative(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a - b).norm() / b.norm()).detach()


def _single_sample() -> list[float]:
    """dL/dw_ij = z_i dL/dz_j in both layers of a small network, for one sample."""
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5)).double()
    label = torch.tensor([1])
    found = layer_signals(
        net, torch.randn(1, 8).double(), lambda out: functional.cross_entropy(out, label)
    )
    layers = zip(found["dh"], found["x"], found["dw"], strict=True)
    return [float(_relative(slope.T @ z.detach(), grad)) for slope, z, grad in layers]


def observe(table: Table) -> Values:
    """What the claims read."""

    def rises(name: str, sign: float = 1.0) -> Values:
        logs = sign * np.log10(table(name).astype(float))
        names = [f"kappa {a} to {b}" for a, b in itertools.pairwise(KAPPAS)]
        return columns(np.diff(logs), names)

    others = [f"{name} against Gaussian" for name in [*DRAWS][1:]]
    moment, rank = table("second_moment"), table("rank")
    joined = {}
    for name in ("eq1", "eq1-corrected", "eq34", "eq11-12", "sec4-scale-free"):
        rows = table(name)
        errors = np.concatenate([np.atleast_1d(row["error"]) for row in rows])
        joined[name] = rows[0] | {"error": errors}
    worst = max(row["condition"] for row in table("sec4-scale-free"))
    joined["sec4-scale-free"]["condition"] = worst
    return joined | {
        "eq34-order": {"holds": table("order") <= 1}, "sec4-kappa-slow": rises("steps"),
        "sec4-kappa-lr": {"holds": np.all(np.diff(table("limit")) < 0, 1)},
        "sec4-kappa-ratio": rises("ratio"),
        "sec4-universality": columns(table("condition")[:, 1:] - table("condition")[:, :1], others),
        "sec4-pathological": {"holds": (rank < 1) & (np.abs(moment - 1) < 0.2)}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Least squares by condition number."""
    shown: dict[str, Array] = {
        "steps to 1e-6": table("steps"), "largest stable rate": table("limit"),
        "gradient: largest / median component": table("ratio")}  # fmt: skip
    curves = [curve(name, KAPPAS, rows.T, log=True) for name, rows in shown.items()]
    return [Panel("Sec. 4: gradient descent on |A x - y|^2", "condition number of A", "number",
                  tuple(curves), log_x=True, log_y=True)]  # fmt: skip
