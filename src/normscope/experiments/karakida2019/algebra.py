"""Identities and misprints of the supplement, on dense matrices of small networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, hessian, jacrev

from normscope.experiments.experiment import Experiment, Scale, Table, every_value
from normscope.experiments.karakida2019 import _common as common
from normscope.measure import Risk, fisher
from normscope.measure import hessian as hessian_operator
from normscope.nn.build import build
from normscope.spec import mlp
from normscope.theory import predict

SAMPLES, OUTPUTS = 6, 4
SIZES, ALPHAS = (5, 20), (10, 15, 20, 12)  # widths of four layers: 10, 15, 20, 12 times the size


def trial(seed: int) -> dict[str, Any]:
    """Every identity as printed, and as corrected where that is something else."""
    parts = (_hessian(seed), _last_norms(seed), _projections(seed), _printed(seed), _theory())
    return {name: value for part in parts for name, value in part.items()}


def _batch(u: Tensor) -> Tensor:
    return (u - u.mean(0)) / u.var(0, correction=0).sqrt()


def _scaled(gain: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda u: gain * _batch(u)


def _layer(u: Tensor) -> Tensor:
    return (u - u.mean(1, keepdim=True)) / u.var(1, keepdim=True, correction=0).sqrt()


def _small(
    outputs: int, samples: int, seed: int
) -> tuple[Callable[[Tensor], Tensor], Tensor, Any, Tensor]:
    """Outputs as a function of the parameter vector, the vector, the model and its inputs."""
    sizes = [4, 5, outputs]
    model = build(mlp(sizes, activation="tanh", bias_variance=0.3), seed, dtype=torch.float64)
    named, x = dict(model.named_parameters()), common.gaussian(samples, 4, seed=seed)

    def run(vector: Tensor) -> Tensor:
        pieces = torch.split(vector, [p.numel() for p in named.values()])
        given = {n: v.view_as(p) for (n, p), v in zip(named.items(), pieces, strict=True)}
        return functional_call(model, given, (x,))

    return run, torch.cat([p.detach().flatten() for p in named.values()]), model, x


def _fim(jacobian: Tensor) -> Tensor:
    return torch.einsum("tkp,tkq->pq", jacobian, jacobian) / len(jacobian)


def _error(found: Any, right: Any, size: int = 100) -> dict[str, Any]:
    """Largest difference relative to the largest entry."""
    a, b = (np.asarray(v, float) for v in (found, right))
    return {"error": float(np.abs(a - b).max() / np.abs(b).max()), "size": size}


def _hessian(seed: int) -> dict[str, Any]:
    run, theta, model, x = _small(2, SAMPLES, seed)
    out, jacobian = run(theta), jacrev(run)(theta)
    y = common.gaussian(SAMPLES, 2, seed=seed, stream="targets")
    second = jacrev(jacrev(run))(theta)
    right = _fim(jacobian) - torch.einsum("tk,tkpq->pq", y - out, second) / SAMPLES
    dense = [
        hessian_operator(Risk(model, x, t, loss="mse", statistics="batch")).to_dense()
        for t in (y, out.detach())
    ]
    auto = hessian(lambda v: (run(v) - y).square().sum() / (2 * SAMPLES))(theta)
    flat = jacobian.reshape(-1, len(theta)).numpy() / math.sqrt(SAMPLES)
    values = [np.linalg.eigvalsh(m)[::-1][: len(flat)] for m in (flat.T @ flat, flat @ flat.T)]
    product = fisher(Risk(model, x, loss="mse", statistics="batch")).to_dense()
    return {
        "eq9": {"parts": {"autograd": _error(auto, right), "operator": _error(dense[0], right)}},
        "eq9-zero": _error(dense[1], product),
        "s3": _error(values[0], values[1]),
    }


def _last_norms(seed: int) -> dict[str, Any]:
    """Norms on the outputs: the matrix forms beside autograd."""
    run, theta, _, _ = _small(OUTPUTS, SAMPLES, seed)
    u, rows = run(theta).numpy(), jacrev(run)(theta).numpy()

    def normed(norm: Callable[[Tensor], Tensor], f: Any = run) -> Any:
        return _fim(jacrev(lambda v: norm(f(v)))(theta)).numpy()

    eye, ubar = np.eye(SAMPLES), u - u.mean(0)
    var, less = (ubar**2).mean(0), rows - rows.mean(0)
    q = [(eye - np.outer(c, c) / (SAMPLES * v)) / v for c, v in zip(ubar.T, var, strict=True)]
    batch = sum(less[:, k].T @ q[k] @ less[:, k] for k in range(OUTPUTS)) / SAMPLES
    scaled = [v * m for v, m in zip(var, q, strict=True)]
    off = np.abs(scaled[0] @ ubar[:, 0]).max()
    centred, rest = u - u.mean(1, keepdims=True), rows - rows.mean(1, keepdims=True)
    sigma2 = (centred**2).mean(1)
    inner = [
        (np.eye(OUTPUTS) - np.outer(c, c) / (OUTPUTS * s)) / s
        for c, s in zip(centred, sigma2, strict=True)
    ]
    layer = sum(r.T @ m @ r for r, m in zip(rest, inner, strict=True)) / SAMPLES
    plain = np.sort(np.linalg.eigvalsh(normed(_batch)))[::-1][:3]
    gains = {
        "equal": torch.full((OUTPUTS,), 3.0).double(),
        "unequal": torch.arange(1.0, OUTPUTS + 1).double(),
    }
    ratios = {
        k: np.sort(np.linalg.eigvalsh(normed(_scaled(g))))[::-1][:3] / plain
        for k, g in gains.items()
    }

    def vanishes(norm: Callable[[Tensor], Tensor], outputs: int, samples: int) -> dict[str, Any]:
        f, point, _, _ = _small(outputs, samples, seed)
        first, second = (_fim(jacrev(g)(point)) for g in (lambda v: norm(f(v)), f))
        scale = float(1 / norm(f(point)).abs().max() ** 2 * second.abs().max())
        spread = f(point).std(0 if norm is _batch else 1).min()
        return {
            "error": float(first.abs().max() / scale),
            "size": 100,
            "condition": float(1 + 1 / spread**4),
        }

    return {
        "s43-47": {"parts": {"matrix form": _error(batch, normed(_batch)),
                             "Q is a projector": _error(q[0] @ q[0], q[0])}},
        "s43-47-corrected": {"parts": {"projector": _error(scaled[0] @ scaled[0], scaled[0]),
                                       "off the outputs": {"error": float(off), "size": 100}}},
        "gamma-scale": {"parts": {k: _error(r, np.full(3, r[0])) for k, r in ratios.items()}},
        "s88-93": _error(layer, normed(_layer)),
        "T2": vanishes(_batch, 2, 2),
        "thm4.1-C2": vanishes(_layer, 2, SAMPLES),
        "C3": vanishes(_layer, 3, SAMPLES),
    }  # fmt: skip


def _projections(seed: int) -> dict[str, Any]:
    """Derivatives of batch norm and layer norm, and products of their projections."""
    wide, u = 7, common.gaussian(SAMPLES, 7, seed=seed, stream="units")
    eye, sigma = torch.eye(wide).double(), u.var(1, correction=0).sqrt()
    n = _layer(u)
    p = eye - 1 / wide - n[:, :, None] * n[:, None, :] / wide
    slope = torch.stack([jacrev(lambda v: _layer(v[None])[0])(row) for row in u])
    s, t = n[0], n[1]
    first = eye - (torch.outer(t, t) + torch.outer(s, s) + 1) / wide
    last = torch.outer(s, t) * (s @ t) / wide**2
    # (S.59) of a network with one more layer: f(t) = w . tanh(norm(u(t)))
    w, z = common.gaussian(wide, seed=seed, stream="weights"), _batch(u)
    q = torch.eye(SAMPLES).double()[:, :, None] - 1 / SAMPLES - z[:, None] * z[None] / SAMPLES
    chain = (1 - z.tanh() ** 2)[:, None] * q / u.std(0, correction=0) * w  # (b, a, i)
    return {
        "s60": _error(chain, jacrev(lambda v: _batch(v).tanh() @ w)(u)),
        "s78": _error(p, slope),
        "s78-corrected": _error(p / sigma[:, None, None], slope),
        "s81": _error(first - last, p[0] @ p[1]),
        "s81-corrected": _error(first + last, p[0] @ p[1]),
    }


def _printed(seed: int) -> dict[str, Any]:
    """Leading matrices of the theory, as printed and as they follow."""
    made: Any = predict(mlp([100, 150, 200, 120, OUTPUTS], bias_variance=0.2))
    alpha, k1, k2, gap = made.alpha, made.kappa1, made.kappa2, made.kappa1 - made.kappa2
    t = 20
    u = common.gaussian(t, OUTPUTS, seed=seed, stream="outputs").numpy()
    ubar, g = u - u.mean(0), np.eye(t) - 1 / t
    c, var = ubar[:, 0], float((ubar[:, 0] ** 2).mean())
    right = (np.eye(t) - np.outer(c, c) / (t * var)) / var @ (gap * g)
    printed = gap / var * (np.eye(t) - (1 - 1 / t) * np.outer(c, c) / (t * var))
    mean = alpha * 100 / t * gap * g  # leading block of (S.21), M = 100
    ratio = np.trace(mean @ mean) / np.trace(mean)
    kernel = np.full((t, t), k2) + gap * np.eye(t)
    out = np.eye(OUTPUTS) - 1 / OUTPUTS
    rest = u - u.mean(1, keepdims=True)
    sigma2 = (rest**2).mean(1)
    b = (out - rest[:, :, None] * rest[:, None] / (OUTPUTS * sigma2[:, None, None])) / sigma2[
        :, None, None
    ]
    trace = sum(np.trace(x) for x in b) / t * k1  # of Q F*_mLN over alpha M
    tilde, hat = (made.order_parameters[k] for k in ("qtilde", "qhat"))
    widths = np.array([100, 150, 200, 120])
    entry = float(np.sum(widths * tilde * hat))
    slipped = float(np.sum(np.array([150, 200, 120, OUTPUTS])[1:] * tilde[1:] * tilde[:-1]))
    whole = np.einsum("kl,st->kslt", out, kernel)
    return {
        "s50": _error(printed, right),
        "s50-corrected": _error(gap / var * (g - np.outer(c, c) / (t * var)), right),
        "s37": _error(gap * 100 / t, ratio),
        "s37-corrected": _error(alpha * gap * 100 / t, ratio),
        "s99-106": {"parts": {
            "(S.99)": _error(slipped, entry),
            "(S.100)": _error(whole * np.eye(OUTPUTS)[:, None, :, None], whole),
            "(S.106)": _error((OUTPUTS - 1) * k1, trace),
        }},
        "s99-106-corrected": {"parts": {
            "(S.99)": _error(entry, made.A1),
            "(S.107)": _error((OUTPUTS - 2) * k1 * np.mean(1 / sigma2), trace),
        }},
        **_last_block(seed), **_integrals(seed),
    }  # fmt: skip


def _last_block(seed: int) -> dict[str, Any]:
    """The last layer's part of the mean direction over alpha_(L-1) M, at two sizes."""
    made, t = {}, 100
    pairs = (1 - 1 / t) * common.arccosine_hat(-1 / (t - 1)) + 0.5 / t
    for unit in SIZES:
        widths = [unit * a for a in ALPHAS]
        model: Any = build(mlp([*widths, 1], norm="batch"), seed, dtype=torch.float64)
        with torch.no_grad():
            h = model[:-1](common.gaussian(t, widths[0], seed=seed))
        made[f"block{unit}"] = float(h.mean(0).square().sum()) / (widths[-1] * pairs)
    return made


def observe(table: Table) -> dict[str, Any]:
    """Values of all trials; the last layer's block at two sizes beside either constant."""
    made = every_value(table)
    values = [made.pop(f"block{unit}")["values"] for unit in SIZES]
    wrong = sum(a * b for a, b in pairwise(ALPHAS)) / 10 / ALPHAS[-1]
    for name, theory in (("s65", wrong), ("s65-corrected", 1.0)):
        made[name] = {"sizes": SIZES, "values": values, "theory": [theory] * len(SIZES)}
    return made


def _integrals(seed: int) -> dict[str, Any]:
    """(S.68)-(S.69) by Monte Carlo for ReLU and T = 8, at two scales of the pre-activations."""
    t = 8
    u = common.gaussian(50_000, t, seed=seed, stream="integrals").numpy()
    centred = u - u.mean(1, keepdims=True)
    made: dict[str, Any] = {}
    for scale in (1.0, 2.0):
        for root, name in ((1.0, "s68"), (0.5, "s68-corrected")):
            d = scale * centred
            h = np.maximum(d / (d**2).mean(1, keepdims=True) ** root, 0)
            own = float((h**2).mean())
            pair = float((h.sum(1) ** 2 - (h**2).sum(1)).mean() / (t * (t - 1)))
            right = 0.5, common.arccosine_hat(-1 / (t - 1))
            made.setdefault(name, {"parts": {}})["parts"] |= {
                f"scale {scale:g}, q-hat{end}": {"values": [v], "expected": e}
                for end, v, e in zip(("", "_st"), (own, pair), right, strict=True)
            }
    return made


def _theory() -> dict[str, Any]:
    """What needs no network: the order of the kappas, and the limit of (S.70)."""
    cases = [(phi, *v) for phi in ("tanh", "sigmoid", "leaky_relu(0.1)", "softplus")
             for v in ((3.0, 0.64), (2.0, 0.1), (1.0, 0.5))]  # fmt: skip
    made: list[Any] = [
        predict(mlp([100, 100, 100, 1], activation=phi, weight_variance=w, bias_variance=b))
        for phi, w, b in [*cases, ("relu", 2.0, 0.0)]
    ]
    off = [abs(common.arccosine_hat(-1 / (10**k - 1)) - 0.5 / math.pi) for k in range(1, 7)]
    return {
        "kappa-order": {"holds": [bool(p.kappa1 > p.kappa2 > 0) for p in made]},
        "wei-consistent": {"holds": [b < a / 5 for a, b in pairwise(off)]},
    }


EXPERIMENT = Experiment(
    title="Dense identities of the supplement, as printed and as corrected",
    trial=trial,
    scales={"smoke": Scale(seeds=2, seconds=3), "desk": Scale(seeds=20, seconds=15)},
    observe=observe,
    own_scale=True,
)
