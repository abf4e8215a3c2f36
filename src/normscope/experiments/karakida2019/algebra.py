"""Identities and misprints of the supplement, on dense matrices of small networks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, hessian, jacrev

from normscope.checks import Array
from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Scale, Table, every_value, over_sizes
from normscope.measure import Risk, fisher
from normscope.measure import hessian as hessian_operator
from normscope.nn.build import build
from normscope.spec import mlp
from normscope.theory import predict

SAMPLES, OUTPUTS = 6, 4
SIZES, ALPHAS = (5, 20), (10, 15, 20, 12)  # widths of four layers: 10, 15, 20, 12 times the size
CLOSED = ("kappa-order", "wei-consistent", "s37-corrected")  # closed forms


def trial(seed: int) -> dict[str, Any]:
    """Every identity as printed, and as corrected where that is something else."""
    parts = (_hessian(seed), _last_norms(seed), _projections(seed), _printed(seed), _theory())
    return {name: value for part in parts for name, value in part.items()}


def _batch(u: Tensor, gain: Any = 1.0) -> Tensor:
    return gain * (u - u.mean(0)) / u.var(0, correction=0).sqrt()


def _layer(u: Tensor) -> Tensor:
    return (u - u.mean(1, keepdim=True)) / u.var(1, keepdim=True, correction=0).sqrt()


def _off(rows: Array) -> Array:
    """(I - v v' / (n s^2)) / s^2 for every row v, with s^2 its mean square."""
    s2 = (rows**2).mean(1)[:, None, None]
    outer = rows[:, :, None] * rows[:, None] / rows.shape[1]
    return np.asarray((np.eye(rows.shape[1]) - outer / s2) / s2)


def _small(outputs: int, samples: int, seed: int) -> tuple[Any, Tensor, Any, Tensor]:
    """Outputs as a function of the parameter vector, the vector, the model and its inputs."""
    of = mlp([4, 5, outputs], activation="tanh", bias_variance=0.3)
    model, x = build(of, seed, dtype=torch.float64), common.gaussian(samples, 4, seed=seed)
    named = dict(model.named_parameters())

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
    second = torch.einsum("tk,tkpq->pq", y - out, jacrev(jacrev(run))(theta)) / SAMPLES
    right = _fim(jacobian) - second
    at, zero = (Risk(model, x, t, loss="mse", statistics="batch") for t in (y, out.detach()))
    auto = hessian(lambda v: (run(v) - y).square().sum() / (2 * SAMPLES))(theta)
    flat = jacobian.reshape(-1, len(theta)).numpy()
    values = [np.linalg.eigvalsh(m)[::-1][: len(flat)] for m in (flat.T @ flat, flat @ flat.T)]
    parts = {"autograd": auto, "operator": hessian_operator(at).to_dense()}
    return {
        "eq9": {"parts": {name: _error(found, right) for name, found in parts.items()}},
        "eq9-zero": _error(hessian_operator(zero).to_dense(), fisher(zero).to_dense()),
        "s3": _error(values[0], values[1]),
    }


def _last_norms(seed: int) -> dict[str, Any]:
    """Norms on the outputs: the matrix forms beside autograd."""
    run, theta, _, _ = _small(OUTPUTS, SAMPLES, seed)
    u, rows = run(theta).numpy(), jacrev(run)(theta).numpy()

    def normed(norm: Any, f: Any = run, at: Tensor = theta) -> Any:
        return _fim(jacrev(lambda v: norm(f(v)))(at)).numpy()

    def ratios(gain: Tensor) -> dict[str, Any]:
        tops = [np.linalg.eigvalsh(normed(n))[-3:] for n in (lambda v: _batch(v, gain), _batch)]
        return _error(tops[0] / tops[1], np.full(3, tops[0][-1] / tops[1][-1]))

    def vanishes(norm: Any, outputs: int, samples: int) -> dict[str, Any]:
        f, at, _, _ = _small(outputs, samples, seed)
        plain, found = (np.abs(normed(n, f, at)).max() for n in (lambda v: v, norm))
        return {"error": float(found / plain), "size": 100}

    ubar, less = u - u.mean(0), rows - rows.mean(0)
    q, centred = _off(ubar.T), u - u.mean(1, keepdims=True)
    rest = rows - rows.mean(1, keepdims=True)
    batch = np.einsum("skp,kst,tkq->pq", less, q, less) / SAMPLES
    layer = np.einsum("tkp,tkl,tlq->pq", rest, _off(centred), rest) / SAMPLES
    one = q[0] * (ubar[:, 0] ** 2).mean()
    gains = {"equal": torch.full((OUTPUTS,), 3.0), "unequal": torch.arange(1.0, OUTPUTS + 1)}
    form, projector = _error(batch, normed(_batch)), _error(q[0] @ q[0], q[0])
    orthogonal = {"error": float(np.abs(one @ ubar[:, 0]).max()), "size": 100}
    return {
        "s43-47": {"parts": {"matrix form": form, "Q is a projector": projector}},
        "s43-47-corrected": {"parts": {"projector": _error(one @ one, one), "off": orthogonal}},
        "gamma-scale": {"parts": {name: ratios(gain.double()) for name, gain in gains.items()}},
        "s88-93": _error(layer, normed(_layer)),
        "T2": vanishes(_batch, 2, 2),
        "thm4.1-C2": vanishes(_layer, 2, SAMPLES),
        "C3": vanishes(_layer, 3, SAMPLES),
    }


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
    """Leading matrices of the theory for M = 100, as printed and as they follow."""
    widths, t = np.array([100, 150, 200, 120, OUTPUTS]), 20
    made: Any = predict(mlp(widths.tolist(), bias_variance=0.2), theory="corrected")
    k1, gap, g = made.kappa1, made.kappa1 - made.kappa2, np.eye(t) - 1 / t
    u = common.gaussian(t, OUTPUTS, seed=seed, stream="outputs").numpy()
    c, rest = u[:, 0] - u[:, 0].mean(), u - u.mean(1, keepdims=True)
    var, sigma2 = float((c**2).mean()), (rest**2).mean(1)
    right, outer = _off(c[None])[0] @ (gap * g), np.outer(c, c) / (t * var)
    mean = made.alpha * 100 / t * gap * g  # leading block of (S.21)
    ratio = np.trace(mean @ mean) / np.trace(mean)
    whole = np.einsum("kl,st->kslt", np.eye(OUTPUTS) - 1 / OUTPUTS, made.kappa2 + gap * np.eye(t))
    blocks = np.trace(_off(rest), axis1=1, axis2=2) - 1 / sigma2
    trace = float(blocks.mean()) * k1  # of Q F*_mLN over alpha M
    tilde, hat = (made.order_parameters[k] for k in ("qtilde", "qhat"))
    entry = float(np.sum(widths[:-1] * tilde * hat))
    slips = {
        "(S.99)": _error(np.sum(widths[2:] * tilde[1:] * tilde[:-1]), entry),
        "(S.100)": _error(whole * np.eye(OUTPUTS)[:, None, :, None], whole),
        "(S.106)": _error((OUTPUTS - 1) * k1, trace),
    }
    right_trace = _error((OUTPUTS - 2) * k1 * np.mean(1 / sigma2), trace)
    return {
        "s50": _error(gap / var * (np.eye(t) - (1 - 1 / t) * outer), right),
        "s50-corrected": _error(gap / var * (g - outer), right),
        "s37": _error(gap * 100 / t, ratio),
        "s37-corrected": _error(made.alpha * gap * 100 / t, ratio),
        "s99-106": {"parts": slips},
        "s99-106-corrected": {"parts": {"(S.99)": _error(entry, made.A1), "(S.107)": right_trace}},
        **_last_block(seed),
        **_integrals(seed),
    }


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
    for name in CLOSED:  # the same in every trial
        made[name] = table.rows[0][1][name]
    split = made["s43-47"]["parts"]
    made |= {"s43-47": split["matrix form"], "s43-47-wording": split["Q is a projector"]}
    values = [made.pop(f"block{unit}")["values"] for unit in SIZES]
    wrong = sum(a * b for a, b in pairwise(ALPHAS)) / 10 / ALPHAS[-1]
    for name, theory in (("s65", wrong), ("s65-corrected", 1.0)):
        made[name] = over_sizes(SIZES, values, theory)
    return made


def _integrals(seed: int) -> dict[str, Any]:
    """(S.68)-(S.69) by Monte Carlo for ReLU and T = 8, at two scales of the pre-activations."""
    t, right = 8, {"q-hat": 0.5, "q-hat_st": common.arccosine_hat(-1 / 7)}
    u = common.gaussian(50_000, t, seed=seed, stream="integrals").numpy()
    made: dict[str, Any] = {"s68": {"parts": {}}, "s68-corrected": {"parts": {}}}
    for scale in (1, 2):
        d = scale * (u - u.mean(1, keepdims=True))
        for root, name in ((1.0, "s68"), (0.5, "s68-corrected")):
            h = np.maximum(d / (d**2).mean(1, keepdims=True) ** root, 0)
            squares = (h**2).sum(1).mean()
            found = squares / t, ((h.sum(1) ** 2).mean() - squares) / (t * (t - 1))
            for (key, expected), value in zip(right.items(), found, strict=True):
                part = {"values": [float(value)], "expected": expected}
                made[name]["parts"][f"scale {scale}, {key}"] = part
    return made


def _theory() -> dict[str, Any]:
    """What needs no network: the order of the kappas, and the limit of (S.70)."""
    names = ("tanh", "sigmoid", "leaky_relu(0.1)", "softplus")
    cases = [(n, *v) for n in names for v in ((3.0, 0.64), (2.0, 0.1), (1.0, 0.5))]
    of = [
        mlp([100, 100, 100, 1], activation=n, weight_variance=w, bias_variance=b)
        for n, w, b in [*cases, ("relu", 2.0, 0.0)]
    ]
    made: Any = predict(of, theory="corrected")
    off = [abs(common.arccosine_hat(-1 / (10**k - 1)) - 0.5 / math.pi) for k in range(1, 7)]
    return {
        "kappa-order": {"holds": [bool(p.kappa1 > p.kappa2 > 0) for p in made]},
        "wei-consistent": {"holds": [b < a / 5 for a, b in pairwise(off)]},
    }


TITLE = "Dense identities of the supplement, as printed and as corrected"
VERSION = 2
SMOKE = Scale(seeds=2, seconds=2)
DESK = PAPER = Scale(seeds=20, seconds=5)
