"""Theorem 4.1: layer norm in all layers."""

from typing import Any

import numpy as np
import torch

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts
from normscope.theory import output_norm_bounds, output_norm_statistics

SAMPLES = 60
NETS = ("relu-layer", "tanh")


def trial(network: str, outputs: int, width: int, seed: int) -> Values:
    """Spectrum, bounds and order parameters of one network, on the outputs that it has."""
    widths = [width] * 3 + [outputs]
    bare = common.spec(network, widths, norm="layer")
    x, before = common.gaussian(SAMPLES, width, seed=seed), common.built(bare, seed)
    with torch.no_grad():
        u1 = before.layer1(x)
        u2 = before.layer2(before.act1(before.norm1(u1)))
        out = before(x).numpy()
    of = common.spec(network, widths, norm="layer", last_norm="layer")
    found: Values = common.spectrum(common.gram(of, SAMPLES, seed))
    made: Any = common.prediction(network, width, SAMPLES, outputs, norm="layer")
    etas = output_norm_statistics(out)
    sizes: Values = {"samples": SAMPLES, "outputs": outputs}
    _, lower, upper = output_norm_bounds(made.A1, made.A2, etas=etas, **sizes)
    # eta_3 as printed: the mean of g / (sigma sigma'), a product of two means over samples
    rest = out - out.mean(1, keepdims=True)
    mean = np.mean(rest / np.mean(rest**2, 1, keepdims=True), 0)
    eta3 = float(mean @ mean) / outputs
    _, _, printed = output_norm_bounds(made.A1, made.A2, etas=(*etas[:2], eta3), **sizes)
    top = found["top"]
    found["ratio"] = found["trace"] / ((outputs - 2) * etas[0] * made.A1)
    found |= {"lower": top / lower - 1, "upper": 1 - top / upper, "printed": 1 - top / printed}
    found |= {f"mu{k}": float(u.mean(1).square().mean()) for k, u in ((1, u1), (2, u2))}
    found |= {f"var{k}": float(u.var(1, correction=0).mean()) for k, u in ((1, u1), (2, u2))}
    return found | common.order_values(before, x)


def observe(table: Table) -> Values:
    """Ratios to the theory at all widths, distances from the bounds, order parameters."""
    most = table.values_of("outputs")[0]
    wide: dict[str, Values] = {net: {"network": net, "outputs": most} for net in NETS}

    def theory(net: str, name: str, layer: int) -> float:
        made: Any = common.prediction(net, 100, SAMPLES, norm="layer")
        return float(made.order_parameters[name][layer])

    def part(net: str, name: str, layer: int, factor: float = 1.0) -> Values:
        expected = factor * theory(net, name, layer)
        return common.column(table, name, layer, expected, **wide[net])

    def slip(net: str) -> float:
        """What the printed denominator of (S.87) makes of q-tilde of layer 2."""
        _, weights, biases = common.NETWORKS[net]
        return (weights * theory(net, "qhat", 1) + biases) / (
            weights * theory(net, "qtilde", 0) + biases)  # fmt: skip

    def moment(net: str, name: str, k: int) -> Values:
        expected = theory(net, "q", k - 1) if name == "var" else 0.0
        return common.over_widths(table, f"{name}{k}", expected, **wide[net])

    def each(make: Any) -> Values:
        return parts({net: make(net) for net in NETS})

    cells = [(n, c, s) for n in NETS for c in table.where(network=n).values_of("outputs")
             for s in ("lower", "upper")]  # fmt: skip
    signals = [("qhat", 2), ("qhat_st", 2), ("qtilde", 0), ("qtilde", 1), ("qtilde_st", 0),
               ("qtilde_st", 1)]  # fmt: skip
    return {
        "thm4.1-trace": each(lambda n: common.over_widths(table, "ratio", 1.0, **wide[n])),
        "thm4.1-bounds": parts({f"{n}, C={c}, {s}": table(s, network=n, outputs=c)
                                for n, c, s in cells}),
        "thm4.1-eta3": each(lambda n: table("printed", network=n, outputs=3)),
        "thm4.1-order": each(lambda n: common.order(table, "top", **wide[n])),
        "s71": parts({f"{n}, {m}{k}": moment(n, m, k)
                      for n in NETS for k in (1, 2) for m in ("mu", "var")}),
        "s74-87": each(lambda n: part(n, "qtilde", 1, slip(n))),
        "s74-87-corrected": parts({f"{n}, {q}, {k}": part(n, q, k)
                                   for n in NETS for q, k in signals})}  # fmt: skip
