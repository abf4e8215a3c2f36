"""Order parameters of random networks beside the recursions of Sec. 3 and of the supplement."""

import math
from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, over_sizes, parts
from normscope.experiments.wei2019._common import VARIANCES, cnn, mlp

WEIGHT, BIAS = VARIANCES["weight_variance"], VARIANCES["bias_variance"]
NETS = 4  # networks of a trial
NAMES = ("q", "q_st", "qhat", "qhat_st", "qtilde", "qtilde_st")
LAST = {"qhat": -1, "qhat_st": -1, "q": -2, "q_st": -2, "qtilde": 0, "qtilde_st": 0}


def spec(kind: str, width: int, gamma: float | None) -> ns.NetworkSpec:
    """Four layers: dense ones of one width, or convolutions of 1, 2, 3 times that many channels."""
    if kind == "fc":
        return mlp([width] * 4 + [4], gamma)
    return cnn((3, 32, 32), gamma, channels=[width, 2 * width, 3 * width], outputs=4)


def trial(kind: str, width: int, samples: int, gamma: float | None, seed: int) -> Values:
    """A few networks on Gaussian inputs of their own; batch norm with statistics held constant."""
    found: dict[str, list[Any]] = {}
    for number in range(NETS * seed, NETS * (seed + 1)):
        made = spec(kind, width, gamma)
        model = ns.build(made, number)
        generator = torch.Generator().manual_seed(number)
        inputs = torch.randn(samples, *made.input_shape, generator=generator)
        units: list[torch.Tensor] = []
        model.act3.register_forward_hook(lambda m, x, y, kept=units: kept.append(x[0].detach()))
        profile = ns.order_parameters(model, [(inputs, None)], statistics="frozen")
        rows = {name: profile.measured[name] for name in NAMES}
        rows |= {f"{name}_ab": profile.across[name] for name in NAMES} if kind == "cnn" else {}
        u = units[0].flatten(1).double() / (gamma or 1.0)
        overlap = (u.sum(0).square() - u.square().sum(0)).mean() / (samples * (samples - 1))
        rows |= {"skewness": (u**3).mean(), "kurtosis": (u**4).mean() - 3, "overlap": overlap}
        for name, value in rows.items():
            found.setdefault(name, []).append(np.asarray(value, float))
    return {name: np.array(rows) for name, rows in found.items()}


def observe(table: Table) -> Values:
    """Every order parameter at the end of its recursion, for several widths."""

    def seen(name: str, layer: int | None, theory: Any, factor: float = 1.0, **where: Any) -> Any:
        one = table.where(**where)
        sizes = one.values_of("width")
        values = [np.concatenate(one(name, width=n)) for n in sizes]
        chosen = [factor * (v if layer is None else v[:, layer]) for v in values]
        return over_sizes(sizes, chosen, theory)

    def order(kind: str, gamma: float | None) -> Values:
        size = table.where(kind=kind).values_of("width")[-1]
        return ns.predict(spec(kind, size, gamma), theory="corrected").order_parameters

    fc: Values = {"kind": "fc", "gamma": None}
    dense = order("fc", None)
    widest = table.where(kind="fc").values_of("width")[-1]
    found: Values = {"base-printed": {"parts": {}}, "base-right": {"parts": {}}}
    for n, base in (("qhat", (0.0, 1.0)), ("qhat_st", (1.0, 0.0))):
        values = np.concatenate(table(n, width=widest, **fc))[:, 0]
        for one, expected in zip(found.values(), base, strict=True):
            one["parts"][n] = {"values": values, "expected": expected}
    found["eq20"] = parts({n: seen(n, i, dense[n][i], **fc) for n, i in LAST.items()})
    forward, stray, printed, right, units = {}, {}, {}, {}, {}
    for gamma in (g for g in table.where(kind="fc").values_of("gamma") if g is not None):
        where, half, name = {"kind": "fc", "gamma": gamma}, gamma**2 / 2, f"gamma {gamma:g}"
        forward[f"qhat, {name}"] = seen("qhat", -1, half, **where)
        forward[f"qhat_xy, {name}"] = seen("qhat_st", -1, half / math.pi, **where)
        stray[name] = seen("qhat", -1, WEIGHT * half, **where)
        step = _step(seen("qtilde", 1, 1.0, **where), seen("qtilde", 2, 1.0, **where))
        q, spread = WEIGHT * half + BIAS, WEIGHT * half * (1 - 1 / math.pi)
        printed[name], right[name] = (over_sizes(*step, WEIGHT * half / w) for w in (q, spread))
        for what in ("skewness", "kurtosis"):
            units[f"{what}, {name}"] = seen(what, None, 0.0, **where)
    maps: Values = {"kind": "cnn", "gamma": 1.0}
    plain = maps | {"gamma": None}
    free = order("cnn", None)
    shape = spec("cnn", 30, None)
    places = shape.positions
    found |= {"eq23-fwd": parts(forward), "eq52": parts(stray), "eq25-printed": parts(printed),
              "eq25-right": parts(right), "eq53-gauss": parts(units)}  # fmt: skip
    normed = [row for row in table if row[0]["kind"] == "fc" and row[0]["gamma"]]
    gaps = [np.abs(np.array(v["overlap"]) * (s["samples"] - 1) + 1).max() for s, v in normed]
    size = max(s["samples"] for s, _ in normed)
    found["eq53-overlap"] = {"error": gaps, "size": size, "precision": "float32"}
    hats = ("qhat", "qhat_st", "qhat_st_ab")
    normed_hats = zip(hats, (0.5, 0.5 / math.pi, 0.5 / math.pi), strict=True)
    found["claim6.3"] = parts({n: seen(n, 2, t, **maps) for n, t in normed_hats})
    free_hats = {n: seen(n, 2, free[n.removesuffix("_ab")][2], **plain) for n in hats}
    found["claim6.5"] = parts(free_hats)
    sums, means, across = {}, {}, {}
    for layer in (1, 2, 3):
        expected, pairs = free["qtilde_st"][layer - 1], places[layer] * (places[layer] - 1)
        name = f"layer {layer}"
        sums[name] = seen("qtilde_st", layer - 1, expected, **plain)
        means[name] = seen("qtilde_st", layer - 1, expected, 1 / places[layer], **plain)
        across[name] = seen("qtilde_st_ab", layer - 1, expected, 1 / pairs, **plain)
    found |= {"claim6.6-sums": parts(sums), "claim6.6-means": parts(means),
              "claim6.6-across": parts(across)}  # fmt: skip
    found["sec6.2-ex"] = {"holds": [shape.positions[:2] == (1024, 225), shape.fan_ins[0] == 27]}
    return found


def _step(lower: Values, upper: Values) -> tuple[Any, Any]:
    """One step of the backward recursion, network by network, at every size."""
    pairs = zip(lower["values"], upper["values"], strict=True)
    return lower["sizes"], [np.divide(a, b) for a, b in pairs]


def panels(table: Table) -> Panels:
    """Order parameters by layer, for the network without and with batch norm."""
    words = "batch norm, gamma 1, statistics held constant"
    for gamma, title in ((None, "without batch norm"), (1.0, words)):
        width = table.where(kind="fc").values_of("width")[-1]
        theory = ns.predict(spec("fc", width, gamma), theory="frozen").order_parameters
        one = table.where(kind="fc", gamma=gamma, width=width)
        curves = []
        for name in ("qhat", "qhat_st", "qtilde", "qtilde_st"):
            label = name.replace("_st", ", two samples")
            curves.append(curve(label, range(1, 5), np.concatenate(one(name)).T))
            curves.append(curve(f"{label}: theory", range(1, 5), theory[name], style="dashed"))
        shown = f"Recursions (20)-(25): {title}"
        yield Panel(shown, "layer", "order parameter", tuple(curves))
