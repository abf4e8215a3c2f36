"""Theorems 2.2 and 3.3 and Fig. 1: spectra without norm and with the mean subtracted."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Panel, Table, Values, parts
from normscope.results.prediction import Prediction

REGIMES: dict[str, Callable[[int], int]] = {
    "T=M": lambda m: m, "T=4M": lambda m: 4 * m, "T=M/4": lambda m: m // 4, "T=20": lambda m: 20
}  # fmt: skip
FEW = (2, 4, 8)  # samples in the small groups
Cell = tuple[str, str, int]  # network, regime, outputs
FIGURE: tuple[Cell, Cell] = (("relu", "T=M", 1), ("tanh", "T=M", 1))


def trial(network: str, width: int, regime: str, outputs: int, seed: int) -> Values:
    """Spectra of one network, with and without the mean of its outputs."""
    of, samples = common.spec(network, [width] * 3 + [outputs]), REGIMES[regime](width)
    matrix = common.gram(of, samples, seed)
    own, less = common.spectrum(matrix), common.spectrum(common.centred(matrix))
    same = np.einsum("sktk->st", matrix) * samples / outputs
    found = own | {f"centred_{name}": value for name, value in less.items()}
    found["direction"] = float(same.mean())
    for few in FEW:
        starts = range(0, samples - few + 1, few)
        groups = np.stack([same[i : i + few, i : i + few] for i in starts])
        traces = np.einsum("gtt->g", groups) / few - groups.mean((1, 2))
        found[f"trace{few}"] = float(outputs * traces.mean())
    if network == "relu-biases":
        everything = common.spectrum(common.gram(of, samples, seed, parameters=None))["top"]
        found["bias_share"] = 1 - own["top"] / everything
    return found


def observe(table: Table) -> Values:
    """Values at all widths beside the theory, orders in the width, distances from bounds."""
    cells = list(dict.fromkeys((r["network"], r["regime"], r["outputs"]) for r, _ in table))
    plain = [c for c in cells if c[2] == 1 and c[1] != "T=M/4" and "-" not in c[0]]
    paper = [c for c in cells if c[0] in ("relu", "tanh")]
    square = [c for c in paper if c[1] == "T=M"]

    def at(cell: Cell, name: str, theory: Callable[[Any], Any], few: int = 0,
           **options: Any) -> Any:  # fmt: skip
        def value(width: int) -> float:
            return float(theory(_prediction(cell, width, few, **options)))

        return common.over_widths(table, name, value, **_where(cell))

    def each(some: Iterable[Cell], name: str, theory: Callable[[Any], Any]) -> Values:
        return parts({_name(cell): at(cell, name, theory) for cell in some})

    def inside(some: Iterable[Cell], *sides: str) -> Values:
        return parts({f"{_name(cell)}, {side}": _inside(table, cell, side)
                      for cell in some for side in sides})  # fmt: skip

    centred: Values = {"last_norm": "mean", "theory": lambda p: p.trace}
    seen = {
        "thm2.2-mean": each(square, "trace", lambda p: p.trace),
        "thm2.2-max": each(plain, "direction", lambda p: p.lambda_max),
        "eq11": each(FIGURE, "trace", lambda p: _sum(p, hat=False)),
        "eq11-corrected": each(FIGURE, "trace", _sum),
        "sharp-order": each(FIGURE, "top", lambda p: p.A2),
        "mean-order": each(FIGURE, "trace", lambda p: p.kappa1 * p.num_parameters / p.samples),
        "centred": common.order(table, "top", network="tanh-centred"),
        "noncentred-act": common.order(table, "top", **_where(FIGURE[0])),
        "lemmaA1-bias": common.order(table, "bias_share", network="relu-biases"),
        "thm3.3-OM": inside((c for c in paper if c[1] != "T=20"), "lower", "upper"),
        "fig1-looseness": inside(FIGURE, "lower", "upper"),
        "fig1-looseness-c2": inside(FIGURE, "second moment"),
        "thm3.3-trace": parts(
            {_name(c): at(c, "centred_trace", **centred) for c in square}
            | {f"{_name(c)}, {t} samples": at(c, f"trace{t}", few=t, **centred)
               for c in square for t in FEW})}  # fmt: skip
    for letter, cell in zip("ab", FIGURE, strict=True):
        seen[f"fig1{letter}-plain"] = at(cell, "top", lambda p: p.lambda_max)
        slow = common.order(table, "centred_top", below=0.5, **_where(cell))
        seen[f"fig1{letter}-mean"] = parts({
            "order below M^(1/2)": slow, "above the line": _inside(table, cell, "lower")
        })  # fmt: skip
    return seen


def _where(cell: Cell) -> Values:
    return dict(zip(("network", "regime", "outputs"), cell, strict=True))


def _name(cell: Cell) -> str:
    return f"{cell[0]}, {cell[1]}" + (f", C={cell[2]}" if cell[2] > 1 else "")


def _prediction(cell: Cell, width: int, few: int = 0, **options: Any) -> Prediction:
    network, regime, outputs = cell
    return common.prediction(network, width, few or REGIMES[regime](width), outputs, **options)


def _sum(made: Prediction, *, hat: bool = True) -> float:
    """A1 by Eq. (11): tilde times hat, or times tilde as printed (that of the inputs by (7))."""
    assert made.spec is not None
    tilde, first = made.order_parameters["qtilde"], made.spec.layers[0]
    printed = np.concatenate([[first.weight_variance * tilde[0]], tilde[:-1]])
    other = made.order_parameters["qhat"] if hat else printed
    return float(first.outputs * np.sum(tilde * other))


def _inside(table: Table, cell: Cell, side: str) -> Values:
    """How far each network lies inside a bound of (18), as a fraction of it."""
    found: list[float] = []
    for width in table.where(**_where(cell)).values_of("width"):
        made: Any = _prediction(cell, width, last_norm="mean")
        top = table("centred_top", width=width, **_where(cell))
        root = np.sqrt(table("centred_second", width=width, **_where(cell)))
        sides = {"lower": top / made.lower - 1, "upper": 1 - top / made.upper}
        found += (sides | {"second moment": root / made.upper - 1})[side].tolist()
    return {"values": found}


def panels(table: Table) -> list[Panel]:
    """Fig. 1: lambda_max over the width, with and without the mean."""
    note = "With the mean of the outputs subtracted, the largest eigenvalue grows more slowly than "
    note += "the root of the width."

    def panel(cell: Cell, side: str) -> Panel:
        def bound(width: int) -> Any:
            return _prediction(cell, width, last_norm="mean").lower

        curves: Values = {"measured": ("top", "points"),
                          "Theorem 2.2": (lambda w: _prediction(cell, w).lambda_max, "dashed"),
                          "measured, mean subtracted": ("centred_top", "points"),
                          "lower bound, Theorem 3.3": (bound, "line")}  # fmt: skip
        title = f"Fig. 1 {side}: {cell[0]}, T = M"
        return common.width_panel(title, table, curves, note, **_where(cell))

    return [panel(cell, side) for cell, side in zip(FIGURE, ("left", "right"), strict=True)]
