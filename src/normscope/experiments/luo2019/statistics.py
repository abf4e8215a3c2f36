"""Sec. 2 and App. C.3: the law of batch mean and batch deviation, and a linear unit."""

from typing import Any

import numpy as np

from normscope.experiments.observing import Table, Values, over_sizes, parts
from normscope.theory import regularization as theory
from normscope.theory.laws import LAWS, draw

SIZES = (8, 16, 32, 64, 128, 256)
FROM = 1  # the remainder is fitted to the sizes from 16 on
SHAPES = {"gamma=0.8, r=0.6": (0.8, 0.6), "gamma=1, r=0.5": (1.0, 0.5)}


def trial(batches: int, seed: int) -> Values:
    """Moments of the statistics of many batches, for every law and batch size."""
    rng = np.random.default_rng([seed, 2019])
    found: dict[str, list[list[float]]] = {law: [] for law in LAWS}
    gauss: list[list[float]] = []
    for size in SIZES:
        for law in LAWS:
            n = draw(law, (batches, size), rng)
            mean, square = n.mean(1), np.mean(n**2, 1)
            std = n.std(1)
            # the mean of n^2 is known to be 1: a control variate for the mean deviation
            lost = np.mean((square - 1) / 2 + 1 - std)
            found[law].append([np.mean(mean**2), std.var(ddof=1), lost, np.cov(mean, std)[0, 1],
                               1 - std.mean()])  # fmt: skip
            if law == "Gauss":
                gaps = [_gap(n, (n - mean[:, None]) / std[:, None], *s)
                        for s in ((1.0, 1.0), *SHAPES.values())]  # fmt: skip
                plain = _gap(n, n / np.sqrt(square)[:, None], 1.0, 1.0)
                gauss.append([np.mean(1 / std), np.mean(1 / std**2), plain, *gaps])
    return {law: np.array(rows) for law, rows in found.items()} | {"unit": np.array(gauss)}


def _gap(n: Any, normalized: Any, gamma: float, r: float) -> float:
    """Half the squared error of a linear unit, less that under population norm.

    Targets r n + noise; the mean over the noise is taken exactly.
    """
    change = gamma**2 / 2 * (normalized**2 - n**2) - gamma * r * n * (normalized - n)
    return float(np.mean(change))


def observe(table: Table) -> Values:
    """Fits over the batch sizes; one part for each law."""
    sizes = np.array(SIZES[FROM:], float)
    late = {law: table(law)[:, FROM:] for law in (*LAWS, "unit")}

    def of(column: int, law: str, expected: Any, scale: float = 1.0) -> Values:
        return over_sizes(SIZES[FROM:], scale * late[law][..., column].T, expected)

    def laws(column: int, expected: Any) -> Values:
        return parts({law: of(column, law, expected(*LAWS[law])) for law in LAWS})

    def number(name: str, column: int, size: int, expected: Any) -> Values:
        return {"values": table(name)[:, SIZES.index(size), column], "expected": float(expected)}

    bias = laws(2, lambda rho, _: 1 - theory.deviation_mean(sizes, excess_kurtosis=rho))
    skewed = theory.mean_deviation_covariance(sizes, skewness=LAWS["exponential"][1])
    covariance = of(3, "exponential", skewed)
    none = {f"bias, {law}": number(law, 4, 64, 0) for law in LAWS}
    moments = (theory.gaussian_inverse_deviation_mean, theory.gaussian_inverse_variance_mean)
    inverses = {f"E sigma^-{k + 1}, M={m}": number("unit", k, m, moment(m))
                for k, moment in enumerate(moments) for m in (8, 32, 128)}  # fmt: skip
    printed = {"3/(4M)": (3, 0.75, 1), "1/(4M), no mean": (2, 0.25, 1),
               "1/(2M), full scale": (2, 0.5, 2)}  # fmt: skip
    shapes = list(enumerate(SHAPES.items(), 4))
    raised = {name: of(k, "unit", 0.75 * g**2 / sizes) for k, (name, (g, _)) in shapes}
    exactly = {name: of(k, "unit", theory.linear_gap_in_batch(sizes, gamma=g, correlation=r))
               for k, (name, (g, r)) in shapes}  # fmt: skip
    return {
        "prior-mu": laws(0, lambda *_: 1 / sizes),
        "prior-sigma": laws(1, lambda rho, _: (rho + 2) / (4 * sizes)),
        "prior-kurtosis": parts({law: np.log10(late[law][:, -1, 1] * sizes[-1] * 4 / (rho + 3 + 2))
                                 for law, (rho, _) in LAWS.items()}),
        "prior-bias": parts(none | {"covariance": number("exponential", 3, 64, 0)}),
        "prior-bias-corrected": parts(bias["parts"] | {"covariance": covariance}),
        "c3-gamma": parts(inverses),
        "c3-gamma-expansion": over_sizes(SIZES[FROM:], late["unit"][..., 0].T - 1, 1 / (2 * sizes)),
        "c3-linear": parts({name: of(k, "unit", c / sizes, scale)
                            for name, (k, c, scale) in printed.items()}),
        "c3-linear-shape": parts(raised), "c3-linear-shape-corrected": parts(exactly)}  # fmt: skip
