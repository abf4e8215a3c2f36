"""Theorem 3.4: batch norm in the hidden layers, in train mode and with frozen statistics."""

from typing import Any

import numpy as np

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Panel, Table, Values, parts
from normscope.theory import gradient_growth

DEPTHS = (3, 6, 12, 24)


def trial(network: str, width: int, samples: str, depth: int, seed: int) -> Values:
    """Spectrum of one network; at 100 samples also without norm and with frozen statistics."""
    widths, count = [width] * depth + [1], {"T=M": width, "T=2M": 2 * width, "T=100": 100}[samples]
    of = common.spec(network, widths, norm="batch")
    found: Values = common.spectrum(common.gram(of, count, seed))

    def top(other: Any, **options: Any) -> float:
        return common.spectrum(common.gram(other, count, seed, **options))["top"]

    if samples == "T=100":
        found["frozen"] = top(of, statistics="frozen")
        found["plain"] = top(common.spec(network, widths))
        if width <= 100:
            moved = common.spec(network, widths, norm="batch", bias_variance=5.0)
            found["bias"] = abs(top(moved) / found["top"] - 1)
    return found


def observe(table: Table) -> Values:
    """Distances from the bound (22), orders in the width, growth with the depth."""

    def bound(width: int, network: str = "relu", samples: int = 0) -> float:
        made: Any = common.prediction(network, width, samples or width, norm="batch")
        return float(made.lower)

    def lower(network: str) -> Values:
        where = {"network": network, "samples": "T=M", "depth": 3}
        return common.over_widths(table, "top", lambda width: bound(width, network), **where)

    fixed: Values = {"network": "relu", "depth": 3, "samples": "T=100"}
    square = fixed | {"samples": "T=M"}
    inside = {f"M={w}, {where['samples']}": table("top", width=w, **where) / bound(w, samples=count)
              - 1 for where, count in ((fixed, 100), (square, 0))
              for w in table.where(**where).values_of("width")}  # fmt: skip

    def logs(name: str, depth: int, width: int) -> Any:
        return np.log10(table(name, network="relu", samples="T=M", depth=depth, width=width))

    def growth(name: str, first: int, last: int, width: int) -> Any:
        ends = logs(name, first, width), logs(name, last, width)
        count = min(map(len, ends))  # the same seeds
        return (ends[1][:count] - ends[0][:count]) / (last - first)

    def deeper(name: str) -> Values:
        widths = table.where(depth=DEPTHS[-1]).values_of("width")
        return parts({f"M={w}": growth(name, 3, 24, w) for w in widths})

    speed = np.log10(gradient_growth("relu", 1.0))
    rate = common.over_widths(table, lambda w: growth("trace", 6, 12, w), speed, depth=12)

    def above(name: str) -> Values:
        cells = {f"M={w}": fixed | {"width": w} for w in table.where(**fixed).values_of("width")}
        return {k: np.log10(table(name, **cell) / table("top", **cell))
                for k, cell in cells.items()}  # fmt: skip

    frozen, train = (common.order(table, name, above=0.5, **fixed) for name in ("frozen", "top"))
    wei = {f"above train mode, {name}": part for name, part in above("frozen").items()}
    return {"thm3.4": parts(inside), "thm3.4-tight": lower("relu"),
            "thm3.4-order": common.order(table, "top", **square),
            "thm3.4-constant": parts(above("plain")),
            "thm3.4-bias": {"error": [v["bias"] for _, v in table if "bias" in v], "size": 100},
            "thm3.4-nonneg": common.limit(lower("sigmoid")),
            "thm3.4-tanh": common.order(table, "top", network="tanh"),
            "sec5-wei": parts({"order above M^(1/2)": frozen, **wei}), "sec5-wei-train": train,
            "sec6-depth": deeper("trace"), "sec6-depth-max": deeper("top"),
            "sec6-depth-rate": rate}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """lambda_max over the width, with and without batch norm in the hidden layers."""
    curves: Values = {
        "no norm": ("plain", "points"), "batch norm, statistics frozen": ("frozen", "points"),
        "batch norm": ("top", "points"),
        "bound (22)": (lambda w: common.prediction("relu", w, 100, norm="batch").lower,
                       "line")}  # fmt: skip
    title = "Theorem 3.4: batch norm in the hidden layers, ReLU, 100 samples"
    note = "Batch norm in the hidden layers lowers the constant, but not the order in the width."
    where = {"network": "relu", "depth": 3, "samples": "T=100"}
    return [common.width_panel(title, table, curves, note, **where)]
