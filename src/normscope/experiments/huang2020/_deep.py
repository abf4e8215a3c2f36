"""Figure XI: gradient explosion and weight domination in deep networks with BN."""

import math

import numpy as np

from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.huang2020.mlp_training import slopes
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, parts

LOW, DOMINATED = 20, 0.01
NET = f"mlp:784-{'256-' * 99}10:bias=false"
SLOPE = -math.log10(math.pi / (math.pi - 1))  # of mean field


def observe(table: Table) -> Values:
    """Slopes at initialization, and what the first update does to the low layers."""
    fisher = table("lambda_x") * table("lambda_g")
    logs, weights, ratio = (np.log10(v) for v in (fisher, table("weight"), table("domination")))
    low = min(LOW, logs.shape[2] // 4)
    change, growth = logs[:, 1] - logs[:, 0], weights[:, 1] - weights[:, 0]
    power = [np.polyfit(g[:low], c[:low], 1)[0] for g, c in zip(growth, change, strict=True)]
    border = np.log10(DOMINATED)
    return {"explosion": {"values": slopes(fisher[:, 0, 1:-1])},
            "weights": {"values": slopes(10 ** growth[:, : growth.shape[1] // 2])},
            "collapse": {"values": change[:, :low].max(-1)}, "power": {"values": power},
            "domination": parts({"above before": ratio[:, 0, :low].min(-1) - border,
                                 "below after": border - ratio[:, 1, :low].max(-1)})}  # fmt: skip


def panels(table: Table, figure: str, *, theory: bool = False) -> Panels:
    """The sub-FIM and the weights of every layer after each update, perhaps beside theory."""
    fisher, weight = table("lambda_x") * table("lambda_g"), table("weight")
    layers = range(1, fisher.shape[2] + 1)
    for name, v in (("lambda_max of the sub-FIM", fisher), ("sigma_max of the weight", weight)):
        lines = [curve(f"Iter{s}", layers, v[:, k].T, log=True)
                 for k, s in enumerate(runs.steps_of(table))]  # fmt: skip
        if theory and v is fisher:
            middle = len(layers) // 2
            line = lines[0].y[middle] * 10 ** (SLOPE * (np.arange(len(layers)) - middle))
            lines.append(curve("mean field, slope at Iter0", layers, line, style="dashed"))
        note = "Claimed: one update makes low layers' weights huge and their gradients tiny."
        yield Panel(f"{figure}: {name}", "layer", name, tuple(lines), log_y=True, note=note)


trial = runs.trial
