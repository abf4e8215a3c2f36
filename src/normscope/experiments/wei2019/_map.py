"""Fig. 2 as a heat map: the test loss over gamma and learning rate, by training every cell."""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import normscope as ns
from normscope.checks import Array
from normscope.experiments import observing
from normscope.experiments.observing import Curve, Experiment, Panel, Scale, Table, curve, parts
from normscope.experiments.wei2019 import _common as wei
from normscope.experiments.wei2019._common import data_of, named, rate_of, spec_of
from normscope.results.panel import HeatMap
from normscope.results.stability_map import bound_of

# limits that earlier runs found, around which rates are chosen: by gamma and factor of the read-out
LIMITS: dict[str, dict[tuple[float | None, float], float]] = {
    "mnist-fc": {(None, 1.0): 0.0033, (0.1, 1.0): 0.83, (0.5, 1.0): 0.121, (1.0, 1.0): 0.0263,
                 (2.0, 1.0): 0.0061, (3.0, 1.0): 0.0027, (0.1, 10.0): 0.16, (1.0, 0.1): 0.027},
    "cifar-narrow": {(0.1, 1.0): 0.925, (0.5, 1.0): 0.295, (1.0, 1.0): 0.106},
    "cifar-cnn": {(None, 1.0): 0.0091, (0.1, 1.0): 0.527, (0.5, 1.0): 0.138, (1.0, 1.0): 0.045},
    "digits-fc": {(None, 1.0): 0.06, (0.1, 1.0): 1.5, (1.0, 1.0): 0.4, (0.1, 10.0): 0.4,
                  (1.0, 0.1): 0.4},
    "digits-cnn": {(None, 1.0): 0.08, (0.1, 1.0): 1.5, (1.0, 1.0): 0.8},
}  # fmt: skip
# rates, log2 in units of the limit: fine around it, where a cell that diverges costs nothing
OCTAVES = (-2.5, -1.75, -1.25, -0.75, -0.375, -0.125, 0, 0.125, 0.25, 0.375, 0.5, 1)
CONTROLS = ((0.1, 10.0), (1.0, 0.1))  # each starts as the function of the other gamma
CHANCE = 0.45  # squared loss of the best constant answer to ten classes, (1 - 1/10) / 2
HIGHEST = 10.0  # loss with a colour of its own
FINE = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.3, 1.5, 1.7, 1.9, 2.1, 2.3, 2.5, 2.7, 2.9, 3.1)


def trial(
    network: str, gamma: float | None, readout: float, lr: float, samples: int, test: int, seed: int
) -> dict[str, Any]:
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


def best(table: Table, *arm: Any) -> Array:
    """log10 of the test losses at the rate with the lowest mean, one for each seed."""
    losses = cells(table, *arm)[1]
    return np.asarray(np.log10(losses[np.argmin(losses.mean(1))]))


def observe(table: Table) -> dict[str, Any]:
    """Where the loss is lowest, in two units; differences of the lowest losses, paired by seed."""
    gammas = [g for g in table.values_of("gamma") if g is not None]
    made: dict[str, dict[str, Any]] = {"band": {}, "band-measured": {}}
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
    groups: dict[str, dict[str, Any]] = {"small-gamma": pairs, "speed": plain}
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


def settings(network: str, samples: int, octaves: Any, test: int = 2000) -> list[dict[str, Any]]:
    """A row for each network and each rate around its limit."""
    return [
        {"network": network, "gamma": gamma, "readout": readout, "samples": samples, "test": test,
         "lr": float(f"{limit * 2.0**octave:.4g}")}
        for (gamma, readout), limit in LIMITS[network].items() for octave in octaves
    ]  # fmt: skip


def experiment(letter: str, words: str, networks: Any, samples: Any, seconds: Any) -> Experiment:
    """The heat map behind a panel; training samples and costs at desk and paper scale."""
    data = wei.SHAPES[networks[1]][:1]
    arms = [(None, 1.0), *((g, 1.0) for g in FINE), *(CONTROLS if letter == "a" else ())]
    cell = {"network": networks[2], "samples": samples[1], "test": 10000}
    rates = [float(f"{rate:.4g}") for rate in np.logspace(-3, 0, 40)]
    many = [cell | {"gamma": g, "readout": k, "lr": lr} for g, k in arms for lr in rates]
    few = settings(networks[0], 256, range(-3, 3), 100)
    desk = settings(networks[1], samples[0], OCTAVES)
    scales = {"smoke": Scale(few, 2, 2.5), "desk": Scale(desk, 5, seconds[0], data)}
    scales["paper"] = Scale(many, 5, seconds[1], data)
    title = f"Test loss over gamma and learning rate: {words}"
    draw = partial(panels, title=f"Fig. 2{letter}: {words}")
    return Experiment(title, trial, scales, observe, draw)
