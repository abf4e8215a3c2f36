"""Eq. (19): mean, variance and both in a batch norm on the outputs."""

import torch

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts
from normscope.measure.gram import gram_spectrum
from normscope.theory import last_batch_norm_bounds

ARMS = {None: "none", "variance": "variance", "mean": "mean", "batch": "both"}
OUTPUTS = 5


def trial(network: str, width: int, seed: int) -> Values:
    """Spectra of one network with T = M under four norms on its outputs."""
    risk = common.risk(common.spec(network, [width] * 3 + [OUTPUTS]), width, seed)
    spectra = gram_spectrum(risk, last_norm=tuple(ARMS))
    with torch.no_grad():
        outputs = risk.model(risk.batches[0].inputs)
    made = common.prediction(network, width, width, OUTPUTS)
    sizes = {"samples": width, "variances": outputs.var(0, correction=0).numpy()}
    _, _, trace, lower, upper = last_batch_norm_bounds(made.A1, made.A2, **sizes)
    both = spectra[-1]
    found = {name: s.largest for name, s in zip(ARMS.values(), spectra, strict=True)}
    ratio = both.trace / (trace * (width - 2) / width)
    inside = {"lower": both.largest / lower - 1, "upper": 1 - both.largest / upper}
    return found | inside | {"trace": ratio}


def observe(table: Table) -> Values:
    """The trace, the bounds and the orders, with the variances that the network had."""
    nets = table.values_of("network")
    made: Values = {}
    for net in nets:
        trace = common.limit(common.over_widths(table, "trace", 1.0, network=net))
        # an equality as two inequalities, so that one rule judges all
        made |= {f"{net}, trace not below": trace,
                 f"{net}, trace not above": trace | {"mean": -trace["mean"]}}  # fmt: skip
        made |= {f"{net}, {s}": table(s, network=net) for s in ("lower", "upper")}
    sides = {"none": "above", "variance": "above", "mean": "below", "both": "below"}
    orders = {f"{net}, {arm}": common.order(table, arm, network=net, **{side: 0.5})
              for net in nets for arm, side in sides.items()}  # fmt: skip
    return {"eq19": parts(made), "var-const": parts(orders)}
