"""Sec. 3: online learning of a ReLU student, simulated, against the ODEs (6) and Table 1."""

from typing import Any

import numpy as np

from normscope.experiments.observing import Panel, Table, Values, curve, over_sizes, parts
from normscope.theory import teacher_student as ts

RATES = [0.5, 1.0, 1.5, 1.8, 1.9, 2.1, 2.2]
PATHS = {  # method, eta, zeta, end
    "BN, eta=.5, zeta=.25": ("bn", 0.5, 0.25, 16.0),
    "BN, eta=1.5, zeta=.1": ("bn", 1.5, 0.1, 12.0),
    "WN, eta=1": ("bn", 1.0, 0.0, 12.0),
    "SGD, eta=1": ("sgd", 1.0, 0.0, 12.0)}  # fmt: skip
LARGE = (3.0, 4.0, 10.0)  # above the bound 2 of weight norm
ORDER = ("gamma", "correlation")


def trial(part: str, inputs: int, runs: int, seed: int) -> Values:
    """Simulate one path, the slopes of ln(1 - R), large learning rates, or the printed step."""
    some: Values = {"num_inputs": inputs, "num_runs": runs, "seed": seed}
    if part in PATHS:
        both = ts.with_simulation(_ode(part), **some)
        far = [np.abs(getattr(both.simulated, k) - getattr(both.theory, k)).max(1) for k in ORDER]
        ends = {k: getattr(both.simulated, k)[:, -1] for k in ORDER}
        return ends | {"far": np.max(far, 0), "path": both.simulated.correlation.mean(0)}
    if part in ("wn", "sgd"):
        return {"slopes": ts.simulated_overlap_rate(RATES, part, **some).slopes}
    if part == "large":
        start, made = ts.Start(0.5, 0.5), {}
        for zeta in (0.0, 0.25):
            paths = [ts.simulate_bn(start, 30.0, lr=eta, zeta=zeta, **some) for eta in LARGE]
            made[f"zeta={zeta:g}"] = np.array([p.correlation[:, -1] for p in paths])
        return made
    return {"gamma": _printed_step(inputs, runs, seed)}


def _ode(name: str) -> Any:
    method, eta, zeta, end = PATHS[name]
    if method == "sgd":
        return ts.sgd_path(ts.Start(), end, lr=eta)
    return ts.bn_path(ts.Start(), end, lr=eta, zeta=zeta)


def _printed_step(inputs: int, runs: int, seed: int) -> np.ndarray:
    """Gamma at the end of the first path with the step of (5) as printed, without 1/N."""
    _, eta, zeta, end = next(iter(PATHS.values()))
    rng, root = np.random.default_rng([seed, 5]), np.sqrt(inputs)
    w = np.zeros((runs, inputs))
    w[:, 0], w[:, 1], gamma = 0.1 * root, np.sqrt(0.99) * root, np.full(runs, 0.5)
    for _ in range(int(end * inputs)):
        x = rng.standard_normal((runs, inputs)) / root
        h, long = np.sum(w * x, 1), np.linalg.norm(w, axis=1) / root
        u = gamma * h / long
        delta = (u > 0) * (np.maximum(root * x[:, 0], 0) - np.maximum(u, 0))
        w += eta * delta[:, None] * ((gamma / long)[:, None] * x
                                     - (u / (inputs * long**2))[:, None] * w)  # fmt: skip
        gamma = gamma + eta * (delta * h / long - zeta * gamma)
    return gamma


def observe(table: Table) -> Values:
    """Ends of the paths over N against the ODEs; slopes and their changes of sign."""
    sizes = [n for n in table.values_of("inputs") if len(table.where(part="WN, eta=1", inputs=n))]
    odes = {name: _ode(name) for name in PATHS}

    def ends(name: str, key: str) -> Values:
        values = [table(key, part=name, inputs=n).ravel() for n in sizes]
        return over_sizes(sizes, values, getattr(odes[name], key)[0, -1])

    far = [np.concatenate([table("far", part=p, inputs=n).ravel() for p in PATHS]) for n in sizes]
    falls = np.log10(far[-1] / far[0]) / np.log10(sizes[-1] / sizes[0])
    slopes = {m: table("slopes", part=m).reshape(-1, len(RATES)) for m in ("wn", "sgd")}

    def boundary(found: Any) -> Values:
        stable = np.where(found < 0, RATES, 1e-9).max(1)
        grows = np.where(found > 0, RATES, np.inf).min(1)
        return {"intervals": np.stack([stable, grows], 1), "line": 2.0}

    def rates(found: Any) -> Values:
        return {f"eta={eta:g}": {"values": found[:, k], "expected": float(ts.overlap_rate(eta))}
                for k, eta in enumerate(RATES) if eta < 1.85}  # fmt: skip

    gained = -np.diff(slopes["wn"], axis=1)
    quicker = {f"eta from {RATES[k]:g} to {RATES[k + 1]:g}": gained[:, k] for k in (0, 1)}
    plain, decayed = (table(f"zeta={z}", part="large")[0] > 0.99 for z in ("0", "0.25"))
    first = next(iter(PATHS))
    return {"eq5": {"values": table("gamma", part="printed").ravel(),
                    "expected": odes[first].gamma[0, -1]}, "eq5-corrected": ends(first, "gamma"),
            "eq6": parts({f"{n}: {k}": ends(n, k) for n in PATHS for k in ORDER}),
            "eq6-rate": {"values": falls, "expected": -0.5}, "table1-wn": boundary(slopes["wn"]),
            "table1-sgd": boundary(slopes["sgd"]),
            "table1-slopes": parts({f"{m}, {k}": v for m in slopes
                                    for k, v in rates(slopes[m]).items()}),
            "sec1-faster": parts(quicker), "sec3-larger-lr": {"holds": (~plain & decayed).ravel()},
            "sec3-larger-lr-free": {"holds": plain.ravel()}}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Overlap over time, simulated and from the ODE; slopes of ln(1 - R) over the rate."""
    size, curves = max(table.where(part="WN, eta=1").values_of("inputs")), []
    for name in PATHS:
        ode, every = _ode(name), slice(None, None, 10)
        time, found = ode.time[every], table("path", part=name, inputs=size)[0][every]
        curves += [curve(f"{name}, ODE", time, ode.correlation[0][every], style="line"),
                   curve(f"{name}, N = {size}", time, found)]  # fmt: skip
    title = "Luo et al. 2019, Eq. (6): online learning"
    fine = np.linspace(0.2, 2.4, 60)
    rates = [curve("Table 1: lambda_R", fine, ts.overlap_rate(fine), style="line")]
    for part, words in (("wn", "weight norm, fixed length"), ("sgd", "SGD")):
        rates.append(curve(words, RATES, table("slopes", part=part).reshape(-1, len(RATES)).T))
    return [Panel(title, "time, steps / N", "overlap R", tuple(curves)),
            Panel("Luo et al. 2019, Table 1: rate at which the student turns to the teacher",
                  "learning rate eta", "slope of ln(1 - R)", tuple(rates))]  # fmt: skip
