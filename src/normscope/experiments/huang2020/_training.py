"""Training runs with second moments of every layer on fixed images, as in Figs V to XI and XV."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

import normscope as ns
from normscope.data import DataSet, load_data
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, columns, curve
from normscope.sweeps.panels import training_panel
from normscope.train import SecondMoments, TrainingRun, fit

NET = f"mlp:784-{'256-' * 19}10:bias=false"  # of 20 layers
SHARES = (0.5, 0.8, 1.0)
CHANCE = math.log(10)
DIVERGED = 1e3
NORMS = {"none": "Plain", "batch": "BN"}
LABELS = {"lambda_x": "lambda_max of layer inputs", "lambda_g": "lambda_max of output gradients"}
MOMENTS = tuple(LABELS)


def trial(net: str, seed: int, *, norm: str = "none", init: str = "lecun-uniform",
          data: str = "digits", images: int = 0, shrink: int = 1, measured: int = 256,
          at: str = "0", steps: int = 1, batch: int = 64, lr: float = 0.1, optimizer: str = "sgd",
          momentum: float = 0.0, layers: str = "", counted: int = 0, weights: bool = False,
          freeze: str = "") -> Values:  # fmt: skip
    """Train one network and measure it after the updates that ``at`` lists.

    ``measured`` and ``counted`` are the images of the second moments and of dying units.
    """
    chosen = images_of(data, "train", images, seed, shrink)
    flat = net.startswith("mlp")
    options: Values = {} if flat else {"channels": chosen.images.shape[1]}
    chosen = chosen.flat() if flat else chosen
    named = None if norm == "none" else norm
    model = ns.network(net, norm=named, init=init, seed=seed, **options)
    model = ns.apply_transform(model, f"freeze:{freeze}") if freeze else model
    more: Values = {"counted": counted, "layers": layers or None, "weights": weights}
    moments = second_moments(model, chosen, at, measured, **more)
    run = fit(model, chosen, "cross_entropy", lr=lr, optimizer=optimizer, momentum=momentum,
              steps=steps, batch_size=batch, seed=seed, callbacks=[moments],
              drop_last=True)  # fmt: skip
    losses = np.full(steps, np.nan)
    losses[: len(run.losses)] = run.losses[:steps]
    return {"losses": losses, "late": late(run), "diverged": run.diverged} | moments.result()


def images_of(data: str, split: str, count: int, seed: int, shrink: int) -> DataSet:
    """So many images that a seed draws, 0 for all; means of ``shrink`` x ``shrink`` pixels."""
    part = load_data(data, split)
    part = part.subset(count, seed) if count else part
    return part.downsample(shrink) if shrink > 1 else part


def second_moments(model: nn.Module, data: DataSet, at: str, measured: int, **more: Any) -> Any:
    """The callback that measures after the updates that ``at`` lists."""
    return SecondMoments(model, data, [int(k) for k in at.split()], measured, SHARES, **more)


def late(run: TrainingRun) -> float:
    """Mean of the last tenth of the losses, at least five; infinite if the training diverged."""
    last = max(5, len(run.losses) // 10)
    return math.inf if run.diverged else float(np.mean(run.losses[-last:]))


def steps_of(table: Table) -> list[int]:
    """The steps at which the networks were measured."""
    return [int(step) for step in table.rows[0][0]["at"].split()]


def late_of(table: Table, **arm: Any) -> Array:
    """Late losses of an arm, by seed; a training that diverged counts as 1000."""
    return np.minimum(table("late", **arm), DIVERGED)


def log_median(table: Table, name: str, share: float, **arm: Any) -> Array:
    """log10 of the median over layers of kappa_p: seeds first, then steps.

    The input of the first layer is left out: it is the same in every network.
    """
    kappa = table(name, **arm)[:, :, SHARES.index(share), int(name == "kappa_x") :]
    return np.asarray(np.log10(np.median(kappa, -1)))


def kappa_parts(table: Table, name: str, shares: Sequence[float], plain: Values,
                bn: Values) -> Values:  # fmt: skip
    """log10 of kappa_p of BN over Plain at each step and p."""
    ratios = [log_median(table, name, p, **bn) - log_median(table, name, p, **plain)
              for p in shares]  # fmt: skip
    names = [f"step {s} ({p:.0%})" for p in shares for s in steps_of(table)]
    return columns(np.concatenate(ratios, 1), names)


def decades(table: Table, name: str, **arm: Any) -> Array:
    """log10 of largest over smallest lambda_max of layers from 2 on and of all steps, by seed."""
    values = np.log10(table(name, **arm)[:, :, 1:])
    return np.asarray(np.nanmax(values, (1, 2)) - np.nanmin(values, (1, 2)))


def step_panels(table: Table, figure: str, arms: Mapping[str, Values], share: float = 0.8,
                note: str = "") -> list[Panel]:  # fmt: skip
    """kappa_p of inputs and gradients over training (median over layers), and the training loss."""
    made, steps = [], [s + 1 for s in steps_of(table)]
    for name, shown in (("kappa_x", "layer inputs"), ("kappa_g", "output gradients")):
        lines = [curve(title, steps, 10 ** log_median(table, name, share, **arm).T, log=True)
                 for title, arm in arms.items()]  # fmt: skip
        label = f"kappa_p at p = {share:.0%}, median over layers"
        made.append(Panel(f"{figure}: {shown}", "updates made, plus 1", label, tuple(lines),
                          log_x=True, log_y=True, note=note))  # fmt: skip
    return [*made, loss_panel(table, figure, arms)]


def loss_panel(table: Table, figure: str, arms: Mapping[str, Values]) -> Panel:
    """The training loss over the updates."""
    return training_panel(table, f"{figure}: training loss", arms)


def layer_panels(table: Table, figure: str, arms: Mapping[str, Values], names: Mapping[str, str],
                 note: str = "") -> Panels:  # fmt: skip
    """A number by layer, for each arm at the first and the last step measured."""
    for name, label in names.items():
        lines = []
        for title, arm in arms.items():
            values = table(name, **arm)
            for k in (0, -1):
                layers = range(1, values.shape[-1] + 1)
                shown = f"{title}, {steps_of(table)[k]} updates"
                lines.append(curve(shown, layers, values[:, k].T, log=True))
        shown = f"{figure}: {label}"
        yield Panel(shown, "layer", label, tuple(lines), log_y=True, note=note)
