"""Fig. 1a: generalization error of linear students over the load P / N."""

import numpy as np

from normscope.experiments.luo2019._training import by_load
from normscope.experiments.observing import Array, Panel, Table, Values, curve, parts
from normscope.theory import teacher_student as ts

NOISE, BATCH, BEST = 0.25, 32, 0.25
ZETA = 1 / (2 * BATCH)
NAMES = ("vanilla", "best", "decay")  # least squares, ridge .25, weight norm with gamma decay
LOADS = [0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0]
SIDES = {"P < N": (0.0, 1.0), "P > N": (1.0, np.inf)}


def trial(alpha: float, inputs: int, steps: list[int], seed: int) -> Values:
    """Errors of all students on one sample."""
    solved = ts.LinearSolutions(lam=(BEST,), zeta=(ZETA,))
    trained = ts.BatchNormSgd("linear", batch_size=BATCH, num_steps=steps)
    data = ts.Data(inputs, NOISE, num_seeds=1, seed=seed)
    found = ts.simulated_errors([solved, trained], alpha, data)
    names = (*NAMES, *(f"bn{number}" for number in steps))
    return {name: float(one.errors[0, 0]) for name, one in zip(names, found, strict=True)}


def observe(table: Table) -> Values:
    """Relative distances from theory, and paired differences of students on the same samples."""
    loads, (before, last) = table.values_of("alpha"), table.names[-2:]
    theories = {
        "vanilla": lambda a: ts.least_squares_error(a, noise_variance=NOISE),
        "printed": lambda a: ts.ridge_error(a, lam=ZETA, noise_variance=NOISE),
        "decay": lambda a: ts.weight_norm_error(a, zeta=ZETA, noise_variance=NOISE)}  # fmt: skip

    def off(name: str, theory: str, alpha: float) -> Array:
        return table(name, alpha=alpha) / theories[theory](alpha).error[0] - 1

    def sides(name: str, theory: str) -> Values:
        found = {side: np.concatenate([off(name, theory, a) for a in loads if low < a < high])
                 for side, (low, high) in SIDES.items()}  # fmt: skip
        return parts(found, expected=0.0)

    def differences(first: str, second: str) -> Values:
        near = [a for a in loads if 0.85 < a < 1.15]
        return by_load({a: table(first, alpha=a) - table(second, alpha=a) for a in near})

    others = [name for name in table.names if name != "best"]
    return {
        "fig1a-vanilla": sides("vanilla", "vanilla"), "fig1a-zeta": sides("decay", "printed"),
        "fig1a-zeta-corrected": sides("decay", "decay"),
        "fig1a-optimal": parts({name: np.log10(table("best") / table(name)) for name in others}),
        "fig1a-below": differences("decay", "vanilla"),
        "fig1a-bn": by_load({a: off(last, "decay", a) for a in loads}),
        "fig1a-bn-steps": differences(last, before)}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """The paper's panel: lines of theory, points of students."""
    loads, fine = table.values_of("alpha"), np.linspace(0.05, max(table.values_of("alpha")), 400)
    lines = {"vanilla SGD, theory": ts.least_squares_error(fine, noise_variance=NOISE),
             "zeta = 1/(2M), theory": ts.weight_norm_error(fine, zeta=ZETA, noise_variance=NOISE),
             "ridge .25, theory": ts.ridge_error(fine, lam=BEST, noise_variance=NOISE)}  # fmt: skip
    shown = {name: (fine[e.error < 8], e.error[e.error < 8]) for name, e in lines.items()}
    curves = [curve(name, x, y, style="line") for name, (x, y) in shown.items()]
    words = dict(zip(NAMES, ("least squares", "ridge .25", "WN + gamma decay"), strict=True))
    for name in table.names:
        label = words.get(name, f"BN M = {BATCH}, {name[2:]} steps")
        curves.append(curve(label, loads, [table(name, alpha=a) for a in loads], log=True))
    note = "Batch norm passes the curve zeta = 1/(2M) and goes on towards least squares."
    size = table.values_of("inputs")[0]
    title = f"Luo et al. 2019, Fig. 1a: linear student, N = {size}"
    x, y = "load alpha = P / N", "generalization error"
    return [Panel(title, x, y, tuple(curves), log_y=True, note=note)]
