"""Fig. S.1: how fast a backward order parameter converges with the width."""

from typing import Any

import numpy as np
import torch

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Curve, Panel, Panels, Table, Values, curve, parts
from normscope.results.rules import fitted_slope

NETS = ("relu", "tanh")


def trial(network: str, width: int, seed: int) -> Values:
    """q-tilde^1 of one pair of samples; ``fresh`` propagates back through other weights."""
    of = common.spec(network, [width] * 3 + [1])
    first, second = (common.built(of, s) for s in (seed, seed + 1_000_000))
    x = common.gaussian(2, width, seed=seed)
    u1 = first.layer1(x)
    u2 = first.layer2(first.act1(u1))
    slopes = [torch.func.jvp(first.act1, (u,), (torch.ones_like(u),))[1] for u in (u1, u2)]

    def overlap(model: Any) -> float:
        delta = slopes[1] * model.layer3.weight
        delta = slopes[0] * (delta @ model.layer2.weight)
        return float((delta[0] * delta[1]).sum())

    with torch.no_grad():
        return {"pair": overlap(first), "fresh": overlap(second)}


def observe(table: Table) -> Values:
    """The exponent of the standard deviation over networks."""
    made = {f"figS1-{n}": _exponent(table, "pair", n) for n in NETS}
    return made | {"lemmaB2": parts({n: _exponent(table, "fresh", n) for n in NETS})}


def _exponent(table: Table, name: str, network: str) -> Values:
    widths = table.values_of("width")
    squares = [_squares(table(name, width=w, network=network)) for w in widths]
    found = fitted_slope(widths, squares)  # of the variance: twice that of the deviation
    return found | {"mean": found["mean"] / 2, "se": found["se"] / 2}


def _squares(values: Any) -> Any:
    return (values - values.mean()) ** 2 * len(values) / (len(values) - 1)


def panels(table: Table) -> Panels:
    """Fig. S.1: standard deviation over networks against the width."""
    widths = table.values_of("width")
    for network in NETS:
        squares = [_squares(table("pair", width=w, network=network)) for w in widths]
        sd = np.sqrt([s.mean() for s in squares])
        half = [s.std(ddof=1) / np.sqrt(len(s)) / d for s, d in zip(squares, sd, strict=True)]
        ends = (tuple(sd - half), tuple(sd + half))  # two standard errors of the deviation
        line = [sd[0] * (widths[0] / w) ** 0.5 for w in widths]
        curves = (Curve("measured", tuple(map(float, widths)), tuple(sd), *ends),
                  curve("M^(-1/2)", widths, line, style="dashed"))  # fmt: skip
        label = "standard deviation of q-tilde of layer 1, one pair"
        note = "The deviation falls like one over the root of the width."
        yield Panel(f"Fig. S.1: {network}", "width M", label, curves, True, True, note)
