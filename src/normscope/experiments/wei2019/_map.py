"""Fig. 2 as a heat map: the test loss over gamma and learning rate, by training every cell."""

import math
from itertools import pairwise

import numpy as np

import normscope as ns
from normscope.checks import Array
from normscope.experiments import observing
from normscope.experiments.observing import Curve, Panel, Table, Values, curve, parts
from normscope.experiments.wei2019 import _common as wei
from normscope.experiments.wei2019._common import data_of, named, rate_of, spec_of
from normscope.results.panel import HeatMap
from normscope.results.stability_map import bound_of

CONTROLS = ((0.1, 10.0), (1.0, 0.1))  # each starts as the function of the other gamma
CHANCE = 0.45  # squared loss of the best constant answer to ten classes, (1 - 1/10) / 2
HIGHEST = 10.0  # loss with a colour of its own
GAMMAS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.3, 1.5, 1.7, 1.9, 2.1, 2.3, 2.5, 2.7, 2.9, 3.1)
RATES = [float(f"{rate:.4g}") for rate in np.logspace(-3, 0, 40)]  # of the paper's scale


def trial(network: str, gamma: float | None, readout: float, lr: float, samples: int, test: int,
          seed: int) -> Values:  # fmt: skip
    """Five epochs of one network; a run that diverged has an infinite test loss."""
    spec = spec_of(network, gamma)
    model = ns.build(spec, seed)
    if readout != 1:
        model = ns.apply_transform(model, f"scale-weights:layer{len(spec.layers)}={readout:g}")
    options = {"momentum": wei.MOMENTUM, "epochs": 5, "batch_size": wei.BATCH, "seed": seed}
    run = ns.fit(model, data_of(network, samples), "mse", lr=lr, **options)
    if run.diverged:
        return {"loss": math.inf, "accuracy": math.nan}
    found = ns.evaluate(model, data_of(network, test, "test"), "mse", batch_size=500)
    return {"loss": found.loss if math.isfinite(found.loss) else math.inf,
            "accuracy": found.accuracy}  # fmt: skip


def cells(table: Table, gamma: float | None, readout: float = 1.0) -> tuple[Array, Array, Array]:
    """Growing rates of one network, test losses (rates, seeds), and the limit of every seed."""
    column = table.where(gamma=gamma, readout=readout)
    rates = np.array(sorted(column.values_of("lr")))
    losses = np.stack([column("loss", lr=float(rate)) for rate in rates])
    return rates, losses, bound_of(rates, np.isinf(losses).astype(float), "diverges")[1]


def best(table: Table, gamma: float | None, readout: float) -> Array:
    """log10 of the test losses at the rate with the lowest mean, one for each seed."""
    losses = cells(table, gamma, readout)[1]
    return np.asarray(np.log10(losses[np.argmin(losses.mean(1))]))


def observe(table: Table) -> Values:
    """Where the loss is lowest, in two units; differences of the lowest losses, paired by seed."""
    gammas = [g for g in table.values_of("gamma") if g is not None]
    made: dict[str, Values] = {"band": {}, "band-measured": {}}
    for gamma in gammas:
        rates, losses, limits = cells(table, gamma)
        line = rate_of(spec_of(table.rows[0][0]["network"], gamma), wei.PLOTTED)
        step = np.clip(np.searchsorted(rates, limits), 1, len(rates) - 1)
        half = float(np.log2(rates[step] / rates[step - 1]).max()) / 2  # the limits lie between
        for name, unit, known in (("band", line, 0.0), ("band-measured", limits, half)):
            found = observing.fitted_minimum(rates, losses, unit, ceiling=CHANCE, remainder=known)
            made[name][named(gamma)] = found
    lowest = {arm: best(table, *arm) for arm in _arms(table)}
    pairs = {f"{named(a)} below {b:g}": ((a, 1), (b, 1)) for a, b in pairwise(gammas)}
    plain = {named(g): ((g, 1), (None, 1)) for g in (0.5, 1.0) if g in gammas}
    same = {"function of gamma 1": (CONTROLS[0], (1.0, 1)),
            "function of gamma 0.1": ((0.1, 1), CONTROLS[1])}  # fmt: skip
    groups: dict[str, Values] = {"small-gamma": pairs, "speed": plain}
    for name, chosen in (groups | {"small-gamma-control": same}).items():
        if all(arm in lowest for pair in chosen.values() for arm in pair):
            made[name] = {k: lowest[a] - lowest[b] for k, (a, b) in chosen.items()}
    return {name: parts(found) for name, found in made.items()}


def _arms(table: Table) -> list[tuple[float | None, float]]:
    return list(dict.fromkeys((s["gamma"], s["readout"]) for s, _ in table))


def panels(table: Table, title: str) -> list[Panel]:
    """The heat map with theories and limits, and the loss of every network over the rate."""
    columns = {g: cells(table, g) for g in table.values_of("gamma") if g is not None}
    rows = [(g, float(lr), row.mean()) for g, (rates, losses, _) in columns.items()
            for lr, row in zip(rates, losses, strict=True)]  # fmt: skip
    x, y, loss = zip(*rows, strict=True)
    shown = tuple(float(z if np.isinf(z) else min(z, HIGHEST)) for z in loss)
    grid = np.linspace(min(columns), max(columns), 30).tolist()
    specs = [spec_of(table.rows[0][0]["network"], g) for g in grid]
    star = np.array([rate_of(s, wei.PLOTTED) for s in specs])
    right = [rate_of(s, "corrected", "all") for s in specs]
    limits = [limits for _, _, limits in columns.values()]
    curves: list[Curve] = [HeatMap("log10 test loss", x, y, z=shown),
                           curve("eta* of the paper", grid, star, style="line"),
                           curve("eta* of the paper: half of it", grid, star / 2, style="dashed"),
                           curve("corrected theory", grid, right, style="line"),
                           curve("measured limit", [*columns], limits, log=True)]  # fmt: skip
    note = f"White: a run diverged. Losses above {HIGHEST:g} are shown as {HIGHEST:g}."
    labels = "gamma at the start", "learning rate", "test loss"
    heat = Panel(title, *labels[:2], tuple(curves), log_y=True, note=note)
    every = sorted(table.values_of("lr"))
    curves = [curve("best constant answer", every[:: len(every) - 1], [CHANCE] * 2, style="dashed")]
    for gamma, readout in _arms(table):
        rates, losses, _ = cells(table, gamma, readout)
        stable = np.isfinite(losses).all(1)
        name = named(gamma) + (f", read-out x {readout:g}" if readout != 1 else "")
        curves.append(curve(name, rates[stable], losses[stable], log=True))
    note = "Rates at which no run diverged."
    return [heat, Panel(f"{title}, cell by cell", *labels[1:], tuple(curves), True, True, note)]
