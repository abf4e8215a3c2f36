"""Fig. 1b: generalization error of ReLU students over the load P / N."""

import numpy as np

from normscope.experiments.luo2019._training import by_load
from normscope.experiments.observing import Array, Panel, Table, Values, curve, over_sizes, parts
from normscope.theory import teacher_student as ts

NOISE, BATCH = 0.25, 16  # the text's M; the caption has 32
ZETA = 1 / (4 * BATCH)
LOADS = [0.5, 1.0, 1.4, 1.65, 1.8, 1.95, 2.1, 2.5, 4.0]
AWAY = (0.5, 1.0, 2.5, 4.0)  # from the threshold 1.465 of the convexified loss
PEAK = (1.3, 2.2)
NEAR = (1.8, 1.95)  # the loads nearest below 2, where the published error diverges
CROSSED = 1.65  # where longer training carries the error past the published one
NAMES = ("convex", "vanilla", "decay", "longer", "bn-early", "bn", "bn-random")


def trial(alpha: float, noise: float, inputs: int, steps: int, seed: int) -> dict[str, float]:
    """Errors of all students on one sample; one is trained six times as long."""
    arms = [
        ts.ConvexRelu(), ts.ReluDescent(num_steps=steps, zeta=(0.0, ZETA)),
        ts.ReluDescent(num_steps=6 * steps),
        ts.BatchNormSgd("relu", batch_size=BATCH, num_steps=(steps // 2, 5 * steps)),
        ts.BatchNormSgd("relu", init="random", batch_size=BATCH, num_steps=5 * steps)]  # fmt: skip
    found = ts.simulated_errors(arms, alpha, ts.Data(inputs, noise, num_seeds=1, seed=seed))
    return {name: float(one.errors[0, 0]) for name, one in zip(NAMES, found, strict=True)}


def observe(table: Table) -> Values:
    """Against the published and the corrected theory, and students against each other."""
    noisy, clean = table.where(noise=NOISE), table.where(noise=0.0)
    sizes, loads = table.values_of("inputs"), noisy.values_of("alpha")
    large = noisy.where(inputs=max(sizes))
    peak = [a for a in loads if PEAK[0] < a < PEAK[1]]

    def published(alpha: float) -> float:
        return float(ts.published_relu_error(alpha, noise_variance=NOISE).error[0])

    def highest(name: str) -> Array:
        return np.asarray(np.log10(np.max([large(name, alpha=a) for a in peak], 0)))

    theory = {a: {"values": large("vanilla", alpha=a), "expected": published(a)}
              for a in loads if a < 2}  # fmt: skip
    convex = {}
    for a in set(AWAY) & set(loads):
        groups = [noisy("convex", alpha=a, inputs=n) for n in sizes]
        right = float(ts.relu_error(a, noise_variance=NOISE).error[0])
        convex[f"alpha={a:g}"] = over_sizes(sizes, groups, right)
    rise = np.log10(large("vanilla", alpha=NEAR[1]) / large("vanilla", alpha=NEAR[0]))
    steep = float(np.log10(published(NEAR[1]) / published(NEAR[0])))
    closed = {}
    for a in NEAR:
        short, long = (large(name, alpha=a) for name in ("vanilla", "longer"))
        closed[a] = (long - short) / (published(a) - short)
    dashed = by_load(closed)["parts"]
    if CROSSED in loads:
        below = published(CROSSED) - large("longer", alpha=CROSSED)
        name = f"alpha={CROSSED:g}, theory less longer training"
        dashed[name] = {"values": below, "threshold": 0.0}
    lower = {a: clean("vanilla", alpha=a) - (1 - a / 4) for a in clean.values_of("alpha")}
    steps = large.values_of("steps")[0]
    trained = {f"{steps // 2} steps": "bn-early", f"{5 * steps} steps": "bn"}
    equal = {f"{words}, alpha={a:g}": large(name, alpha=a) / large("decay", alpha=a) - 1
             for words, name in trained.items() for a in loads}  # fmt: skip
    return {
        "fig1b-theory": {"values": rise, "expected": steep}, "fig1b-theory-loads": by_load(theory),
        "fig1b-theory-corrected": {"parts": dict(sorted(convex.items()))},
        "fig1b-dashed": {"parts": dashed}, "fig1b-lower": by_load(lower),
        "fig1b-decay": {"values": highest("decay") - highest("vanilla")}, "fig1b-bn": parts(equal),
        "fig1b-bn-peak": {"values": highest("bn") - highest("vanilla")}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """The paper's panel: published and corrected theory, points of students."""
    shown = table.where(noise=NOISE, inputs=max(table.values_of("inputs")))
    loads, fine = shown.values_of("alpha"), np.linspace(0.05, 4, 300)
    printed = ts.published_relu_error(fine, noise_variance=NOISE).error
    kept = printed < 4
    right = ts.relu_error(fine, noise_variance=NOISE).error
    curves = [curve("vanilla SGD, Eq. (25)", fine[kept], printed[kept], style="line"),
              curve("no noise, 1 - alpha / 4", [0.05, 2.0], [1 - 0.05 / 4, 0.5], style="line"),
              curve("theory with all samples", fine, right, style="dashed")]  # fmt: skip
    words = ("convexified loss", "gradient descent", "with gamma decay 1/64",
             "gradient descent, 6 x longer", "BN M = 16, early", f"BN M = {BATCH}",
             "BN, random start")  # fmt: skip
    for name, label in zip(NAMES, words, strict=True):
        curves.append(curve(label, loads, [shown(name, alpha=a) for a in loads], log=True))
    title = f"Luo et al. 2019, Fig. 1b: ReLU student, N = {shown.values_of('inputs')[0]}"
    note = "The published theory diverges at alpha = 2; students peak near 1.7 and do not diverge."
    return [Panel(title, "load alpha = P / N", "generalization error", tuple(curves), log_y=True,
                  note=note)]  # fmt: skip
