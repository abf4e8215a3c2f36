"""Figures V, VI and XIII: a 20-layer MLP under SGD, Plain and BN, two initializations."""

import numpy as np
from scipy import stats

from normscope.experiments import observing
from normscope.experiments.huang2020 import _training as runs
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts

INITS = {"lecun-uniform": "random init", "he": "He init"}


def slopes(values: Array) -> Array:
    """Slope of log10 over layers, by network."""
    return observing.slopes(range(values.shape[1]), np.log10(values))


def observe(table: Table) -> Values:
    """Observations of Figs V, VI and XIII."""
    random, he = ({n: {"init": init, "norm": n} for n in runs.NORMS} for init in INITS)
    plain, bn = random["none"], random["batch"]
    late = {(i, n): runs.late_of(table, init=i, norm=n) for i in INITS for n in runs.NORMS}
    stuck, trained = (late["lecun-uniform", n] for n in runs.NORMS)
    he_plain, he_bn = (late["he", n] for n in runs.NORMS)
    inputs, gradients = (table(name, **plain) for name in runs.MOMENTS)
    moved = np.abs(np.log10(inputs[:, -1]) - np.log10(inputs[:, 0]))
    level = np.log10(table("lambda_g", **bn))
    spread, names = level.max(-1) - level.min(-1), [f"step {s}" for s in runs.steps_of(table)]
    made: Values = {
        "fig5-a-plain": {"values": slopes(inputs[:, 0, 1:])},
        "fig5-a-plain-kept": {"values": moved.max(-1), "threshold": 1.0},
        "fig5-a-bn": {"values": runs.decades(table, "lambda_x", **bn), "threshold": 1.0},
        "fig5-b-plain": {"values": slopes(gradients[:, 0, 1:-1])},
        "fig5-b-bn": observing.columns(spread, names, threshold=2.0),
        "fig5-c": parts({"Plain at ln 10": 0.01 - np.abs(stuck - runs.CHANCE),
                         "BN below 1": 1 - trained}),
        "fig5-f": parts({"Plain trains": runs.CHANCE - he_plain, "BN trains": runs.CHANCE - he_bn,
                         "BN is faster": he_plain - he_bn})}  # fmt: skip
    for name, moment in zip(("fig5-d", "fig5-e"), runs.MOMENTS, strict=True):
        ranges = [runs.decades(table, moment, **he[norm]) for norm in runs.NORMS]
        made[name] = {"values": ranges[0] - ranges[1]}
    for name, side, arms in (("fig6-a", "x", random), ("fig6-b", "g", random),
                             ("fig6-d", "x", he), ("fig6-e", "g", he)):  # fmt: skip
        made[name] = runs.kappa_parts(table, f"kappa_{side}", (0.5, 0.8), *arms.values())
    return made | _units(table)


def _units(table: Table) -> Values:
    """Dying and full units of the He-initialized networks."""
    if "dying" not in table.names:
        return {}
    counts = {n: table(n, init="he", norm="none") for n in ("dying", "full")}
    rows = {n: [stats.spearmanr(range(v.shape[2]), row[0]).statistic for row in v]
            for n, v in counts.items()}  # fmt: skip
    bn = [table(n, init="he", norm="batch") for n in counts]
    return {f"fig13-{n}": {"values": rho} for n, rho in rows.items()} | {
        "fig13-bn": {"holds": [not np.any(seed) for seed in bn[0] + bn[1]]},
        "fig13-training": parts({n: v[:, -1].sum(-1) for n, v in counts.items()})}  # fmt: skip


def panels(table: Table) -> Panels:
    """Figs V and VI for both initializations, and Fig. XIII."""
    for init, words in INITS.items():
        arms = {title: {"init": init, "norm": norm} for norm, title in runs.NORMS.items()}
        yield from runs.layer_panels(table, f"Fig. V, {words}", arms, runs.LABELS)
        yield runs.loss_panel(table, f"Fig. V, {words}", arms)
        yield from runs.step_panels(table, f"Fig. VI, {words}", arms, 0.5)[:2]
    if "dying" in table.names:
        for n in ("dying", "full"):
            lines = []
            for norm, title in runs.NORMS.items():
                v = table(n, init="he", norm=norm)
                for k in (0, -1):
                    shown = f"{title}, {runs.steps_of(table)[k]} updates"
                    lines.append(curve(shown, range(1, v.shape[2] + 1), v[:, k].T))
            yield Panel(f"Fig. XIII: {n} neurons", "layer", f"{n} units", tuple(lines))


NET, trial = runs.NET, runs.trial
