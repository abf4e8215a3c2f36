"""Where training diverges, by bisection: one network, gamma, loss and seed at a time."""

import math
from functools import partial
from typing import Any

import numpy as np
from torch import nn

import normscope as ns
from normscope.experiments.observing import Curve, Panel, Panels, Table, Values, curve, parts
from normscope.experiments.wei2019 import _common as common
from normscope.experiments.wei2019._common import critical, lambda_of, named, rate_of, spec_of

GAMMAS = (0.1, 0.5, 1.0, 2.0, 3.0)
TRAINED = {"weights": ["freeze:norm*", "freeze:*.bias"], "weights+biases": ["freeze:norm*"]}
CRITERIA = {"diverges": "diverges", "learns": "does not learn"}


def rows(network: str, loss: str, gammas: Any, **more: Any) -> list[Values]:
    """Settings of the trials for several gammas; None is the network without batch norm."""
    return [{"network": network, "loss": loss, "gamma": gamma, **more} for gamma in gammas]


def trial(network: str, gamma: float | None, loss: str, seed: int, samples: int = 2560,
          steps: int = 30, batch_size: int = common.BATCH,
          trained: str = "all") -> Values:  # fmt: skip
    """Both limits of one network, and the curvature of its first batch before training."""
    spec, data = spec_of(network, gamma), common.data_of(network, samples)

    def make(seed: int) -> nn.Module:
        model = ns.build(spec, seed)
        return ns.apply_transform(model, TRAINED[trained]) if trained in TRAINED else model

    squared = loss == "mse"
    line = rate_of(spec, "corrected", "all")
    limit = ns.max_stable_lr(make, data, loss, momentum=common.MOMENTUM, steps=steps, seeds=[seed],
                             batch_size=batch_size, tol=0.1 if squared else 0.25,
                             bracket=(line / 8, line * 32) if squared else None)  # fmt: skip
    images, labels = data.batches(common.BATCH, seed=seed)[0]
    risk = ns.Risk(make(seed), images, labels, loss=loss, statistics="batch")
    diverges, learns = limit.diverges, limit.does_not_learn
    return {"diverges": [diverges.low, diverges.high], "learns": [learns.low, learns.high],
            "interleaved": diverges.interleaved,
            "lambda": float(ns.top_eigenvalues(ns.fisher(risk)).values[0])}  # fmt: skip


def normed(table: Table) -> list[float]:
    """The gammas of networks with batch norm."""
    return [g for g in table.values_of("gamma") if g is not None]


def usual(table: Table) -> Table:
    """The networks whose parameters are all trained."""
    return Table([row for row in table if row[0].get("trained", "all") == "all"])


def against(table: Table, line: Any, criterion: str = "diverges", gammas: Any = None,
            **where: Any) -> Values:  # fmt: skip
    """The boundary beside ``line(spec)``, or with None beside the curvature that was measured."""
    chosen = table.where(**where)
    network = chosen.values_of("network")[0]
    made = {}
    for gamma in gammas or normed(chosen):
        own = float(np.exp(np.mean(np.log(chosen("lambda", gamma=gamma)))))
        rate = critical(own) if line is None else line(spec_of(network, gamma))
        made[named(gamma)] = {"intervals": chosen(criterion, gamma=gamma), "line": rate}
    return parts(made)


def middles(table: Table, gamma: float | None, criterion: str = "diverges", **where: Any) -> Any:
    """log10 of the middle of every seed's interval."""
    with np.errstate(divide="ignore"):
        return np.log10(table(criterion, gamma=gamma, **where)).mean(1)


def observe(table: Table) -> Values:
    """The boundary of every loss and criterion beside every theory; vanilla apart."""
    found: Values = {}
    lines = {t: partial(rate_of, theory=t, parameters=p) for t, p in common.THEORIES.items()}
    for loss in table.values_of("loss"):
        one = usual(table).where(loss=loss)
        for criterion in CRITERIA:
            for theory, line in (lines | {"measured": None}).items():
                found[f"{loss}-{criterion}-{theory}"] = against(one, line, criterion)
        found[f"{loss}-vanilla"] = against(one, lines["corrected"], gammas=[None])
        gains = [g for g in (0.5, 1.0) if g in one.values_of("gamma")]
        found[f"{loss}-gain"] = parts({named(g): middles(one, g) - middles(one, None)
                                       for g in gains})  # fmt: skip
        found[f"{loss}-phases"] = {"holds": [not row[1]["interleaved"] for row in one]}
        found |= _decades(one, loss)
    return found


def _decades(table: Table, loss: str) -> Values:
    """By how many decades the boundary falls from the smallest to the largest gamma."""
    ends = min(normed(table)), max(normed(table))
    halves = [np.diff(np.log10(table("diverges", gamma=g)), axis=1).mean() / 2 for g in ends]
    found = {"values": middles(table, ends[0]) - middles(table, ends[1]), "remainder": sum(halves)}
    network, made = table.values_of("network")[0], {}
    for theory, which in common.THEORIES.items():
        low, high = (lambda_of(spec_of(network, g), theory, which) for g in ends)
        made[f"{loss}-decades-{theory}"] = found | {"expected": math.log10(high / low)}
    return made


def panels(table: Table, title: str) -> Panels:
    """Boundary against gamma for each loss: measured intervals, and the theories as lines."""
    network = table.values_of("network")[0]
    for loss in table.values_of("loss"):
        one, curves = usual(table).where(loss=loss), []
        for criterion, words in CRITERIA.items():
            ends = [(g, one(criterion, gamma=g)) for g in normed(one)]
            known = [(g, e) for g, e in ends if np.all(np.isfinite(e) & (e > 0))]
            if known and (criterion == "diverges" or loss != "mse"):
                curves.append(Curve(f"measured: {words}", tuple(g for g, _ in known),
                                    tuple(float(np.exp(np.log(e).mean())) for _, e in known),
                                    tuple(float(e.min()) for _, e in known),
                                    tuple(float(e.max()) for _, e in known)))  # fmt: skip
        grid = np.linspace(0.1, 3.1, 31)
        for theory, which in common.THEORIES.items():
            if theory == common.PLOTTED and not network.endswith("cnn"):
                continue  # the same as printed
            specs = [spec_of(network, float(g)) for g in grid]
            line = [rate_of(s, theory, which) for s in specs]
            style = "line" if theory == "corrected" else "dashed"
            curves.append(curve(common.SHOWN[theory], grid, line, style=style))
        words = "squared loss" if loss == "mse" else "cross-entropy"
        yield Panel(
            f"{title}, {words}", "gamma at the start", "learning rate", tuple(curves), log_y=True,
            note="Bars span the intervals of all seeds; training is stable below them.",
        )  # fmt: skip
