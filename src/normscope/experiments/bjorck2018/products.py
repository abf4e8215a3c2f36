"""Products of random matrices: Theorem 1 and Figs 8 to 12."""

import itertools

import numpy as np
from scipy import stats

from normscope.checks import Array
from normscope.experiments.bjorck2018._common import density, slope
from normscope.experiments.observing import Panel, Panels, Table, Values, columns, curve, parts
from normscope.results.observations import over_sizes
from normscope.results.rules import fitted_slope
from normscope.theory import randmat

FACTORS = (1, 2, 5, 10)  # of Fig. 8
MOST = 10
DEPTHS = np.arange(1, MOST + 1).astype(float)
TINY = (1e-200, 1e-190)  # where the density is a pure power


def trial(size: int, seed: int) -> Values:
    """One product of up to ten Gaussian matrices of this size, and of its beginnings."""
    depth = randmat.conditioning_by_depth(MOST, size, runs=1, seed=seed)
    made = {"condition": depth.log10_condition[0], "largest": depth.largest[0]}
    rows = [randmat.product_spectrum(m, size, seed=seed).values[0] for m in FACTORS]
    twice = 2 * rows[1]  # as if the first of two factors had sigma = 2
    return made | {
        "distance": [randmat.ks_distance(s, m) for s, m in zip(rows, FACTORS, strict=True)],
        "distance_printed": [_printed_distance(s, m) for s, m in zip(rows, FACTORS, strict=True)],
        "distance_sigma": [randmat.ks_distance(twice, 2, variances=v) for v in (1.0, (4.0, 1.0))],
        "over_median": [float(s[0] / np.median(s)) for s in rows],
        "kurtosis": [float(stats.kurtosis(s, fisher=False)) for s in rows],
        "mean_square": [float(np.mean(s**2)) for s in rows],
        "densities": np.array([density(s) for s in rows])}  # fmt: skip


def _printed_distance(values: Array, factors: int) -> float:
    """The distance if Eq. (5) is taken for the law of the values themselves, not their squares."""
    below = randmat.squared_cdf(np.sort(values), factors)
    steps = np.arange(len(values) + 1) / len(values)
    return float(np.maximum(np.abs(below - steps[1:]), np.abs(below - steps[:-1])).max())


def observe(table: Table) -> Values:
    """What the claims read."""
    sizes = table.values_of("size")
    top = table.where(size=sizes[-1])
    by = [f"M = {m}" for m in FACTORS]
    steps = [f"{a} to {b} factors" for a, b in itertools.pairwise(FACTORS)]
    each = [f"{m} to {m + 1} factors" for m in range(1, MOST)]
    two = ["sigma = (2, 1)"]
    near = {"threshold": 1.36 / np.sqrt(sizes[-1])}  # 95 % of as many independent draws lie below
    shape = {f"{what}, {k}": v for what, name in
             (("largest / median", "over_median"), ("kurtosis", "kurtosis"))
             for k, v in zip(steps, np.diff(np.log10(top(name))).T, strict=True)}  # fmt: skip
    edges = {m: randmat.singular_edge(m) for m in range(1, MOST + 1)}
    law = slope(np.log10(DEPTHS), np.log10(list(edges.values())))[0]
    powers = [[slope(np.log10(DEPTHS), np.log10(row))[0] for row in table("largest", size=n)]
              for n in sizes]  # fmt: skip
    grows = dict(zip(each, np.diff(np.log10(top("largest"))).T, strict=True))
    made = {
        "thm1-law": columns(top("distance_printed"), by, **near),
        "thm1-law-corrected": columns(top("distance"), by, **near),
        "thm1-sigma": columns(top("distance_sigma")[:, :1], two, **near),
        "thm1-sigma-corrected": columns(top("distance_sigma")[:, 1:], two, **near),
        "thm1-edge-corrected": parts({f"M = {m}": _toward(table, m, edges[m]) for m in FACTORS}),
        "thm1-edge": parts({f"M = {m}": _toward(table, m, edges[m] ** 2) for m in FACTORS}),
        "thm1-linear": fitted_slope(DEPTHS.tolist(), top("largest").T.tolist()),
        "thm1-linear-corrected": over_sizes(sizes, powers, law),
        "sec4-variance": {"values": top("mean_square")[:, -1] / top("mean_square")[:, 0] - 1},
        "sec4-variance-corrected": columns(top("mean_square"), by), "fig8": parts(shape),
        "fig11": columns(np.diff(top("condition")), each),
        "fig12": parts(grows | {"1 - power": 1 - np.array(powers[-1])})}  # fmt: skip
    return made | _theory()


def _toward(table: Table, factors: int, goal: float) -> Values:
    """The largest singular value by size of the matrices, against an edge."""
    sizes = table.values_of("size")
    rows = [table("largest", size=n)[:, factors - 1] for n in sizes]
    return over_sizes(sizes, rows, goal)


def _theory() -> Values:
    """What needs no random matrix."""
    blowup, falls, mass, many = {}, [], [], (10, 100, 1000, 10**6)
    for m in FACTORS:
        logs = np.log10(randmat.squared_density(TINY, m))
        found = (logs[1] - logs[0]) / np.log10(TINY[1] / TINY[0])
        blowup[f"M = {m}"] = {"error": abs(found * (m + 1) / m + 1), "condition": 200.0}
        phi = np.linspace(0, np.pi / (m + 1), 1002)[1:-1]
        falls.append(bool(np.all(np.diff(randmat.squared_of_angle(phi, m)) < 0)))
        mass.append(abs(_mass(m) - 1))
    ends = [(m, randmat.squared_edge(m)) for m in many]
    return {"thm1-blowup": {"parts": blowup}, "fig9": {"holds": falls},
            "fig10": {"error": mass, "size": 200},
            "thm1-asymptote": {"holds": [abs(end / (m + 1) / np.e - 1) < 1 / m for m, end in ends]},
            "thm1-asymptote-difference": {"holds": [abs((m + 1) * np.e - end - np.e / 2) < 1 / m
                                                    for m, end in ends[:3]]}}  # fmt: skip


def _mass(factors: int) -> float:
    """Integral of the density over x, with x = edge u^(M + 1), u = sin t: smooth at both ends."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t, edge = (nodes + 1) * np.pi / 4, randmat.squared_edge(factors)
    u = np.sin(t)
    height = randmat.squared_density(edge * u ** (factors + 1), factors)
    inner = height * edge * (factors + 1) * u**factors * np.cos(t)
    return float(weights @ inner * np.pi / 4)


def panels(table: Table) -> Panels:
    """Figs 8 to 12."""
    top = table.where(size=table.values_of("size")[-1])
    for i, m in enumerate(FACTORS):
        edge = randmat.singular_edge(m)
        grid = np.linspace(edge / 80, edge, 200)[:-1]
        law = randmat.singular_density(grid, m)
        theory = curve("large matrices", grid, law, style="line")
        runs = [curve(f"run {r + 1}", *rows[i]) for r, rows in enumerate(top("densities")[:5])]
        title = f"Fig. 8, {m} factor{'s' * (m > 1)}"
        yield Panel(title, "singular value", "density", (*runs, theory), log_y=True)
    for figure, label in ((9, "x"), (10, "density at x")):
        curves = []
        for m in FACTORS:
            phi = np.linspace(0, np.pi / (m + 1), 202)[1:-1]
            x = randmat.squared_of_angle(phi, m)
            y = x if figure == 9 else randmat.squared_density(x, m)
            curves.append(curve(f"M = {m}", phi, y, style="line"))
        yield Panel(f"Fig. {figure}", "phi", label, tuple(curves), log_y=True)
    places = DEPTHS.tolist()
    mean = curve("mean of log10", places, 10 ** top("condition").T, log=True)
    yield Panel("Fig. 11", "factors", "condition number", (mean,), log_y=True)
    ends = [randmat.singular_edge(int(m)) for m in DEPTHS]
    yield Panel("Fig. 12", "factors", "largest singular value",
                (curve("measured", places, top("largest").T),
                 curve("large matrices: square root of the edge", places, ends, style="line"),
                 curve("edge, as printed", places, np.square(ends), style="dashed")))  # fmt: skip
