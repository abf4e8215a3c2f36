"""Tables A and B and Section B: arithmetic on what is printed."""

import numpy as np

from normscope.experiments.observing import Panel, Panels, Table, Values, curve, every_value
from normscope.results import ConditioningCost

ARMS = ("standard", "WD = 0.0002", "DR = 0.3")
TABLE_A = {  # top-1 validation errors in percent: without and with BN before the last layer
    18: ((29.78, 30.07, 30.62), (29.38, 28.96, 29.32)),
    50: ((23.97, 24.37, 23.81), (23.76, 23.49, 23.47)),
}
IMAGES = 50_000
DEPTHS = (20, 44, 56, 110)
TABLE_B = {  # test errors in percent and their deviations: without and with
    "VGG": (((14.88, 33.90, 89.93, 90.0), (0.47, 7.1, 0.12, 0.0)),
            ((12.89, 18.40, 23.40, 73.99), (0.20, 0.90, 1.74, 16.0))),
    "ResNet": (((11.21, 9.90, 9.48, 8.93), (0.14, 0.31, 0.07, 0.22)),
               ((10.31, 8.99, 8.61, 8.37), (0.25, 0.25, 0.05, 0.07))),
}  # fmt: skip


def trial() -> Values:
    """Differences of the printed numbers, with their standard errors and deviations."""
    parts: Values = {}
    holds: list[bool] = []
    for depth, rows in TABLE_A.items():
        without, with_bn = np.array(rows)
        gain = without - with_bn
        variance = (np.array(rows) * (100 - np.array(rows)) / IMAGES).sum(0)
        for k in (1, 2):
            se = float(np.sqrt(variance[0] + variance[k]))
            found = {"mean": float(gain[k] - gain[0]), "se": se, "n": IMAGES}
            parts[f"depth {depth}, {ARMS[k]}"] = found
    for (error, spread), (other, other_spread) in TABLE_B.values():
        beyond = np.subtract(error, other) > np.add(spread, other_spread)
        holds += [bool(value) for value in beyond]
    cost = ConditioningCost(depth=8, width=24, samples=60000)  # of Fig. I
    ratios = {
        "secB-cost-full": np.divide(cost.full, cost.blocks) / (8, 8**2),
        "secB-cost-factored": np.divide(cost.blocks, cost.factored) / (24**2, 24**3)}  # fmt: skip
    made: Values = {n: {"error": float(np.abs(v - 1).max())} for n, v in ratios.items()}
    return made | {"tableA-amplified": {"parts": parts}, "tableB-printed": {"holds": holds}}


def observe(table: Table) -> Values:
    """The differences; an entry of Table A is one run, however many images it was tested on."""
    made = every_value(table)
    parts = {k: part | {"n": 1} for k, part in made["tableA-amplified"]["parts"].items()}
    return made | {"tableA-amplified": {"parts": parts}}


def panels(table: Table) -> Panels:
    """The two tables as charts."""
    for depth, rows in TABLE_A.items():
        bars = zip(("ResNet", "ResNet_LastBN"), rows, strict=True)
        lines = tuple(curve(name, ARMS, row, style="line") for name, row in bars)
        note = "As printed; one run each, standard error about 0.2 points."
        yield Panel(f"Table A, depth {depth}", "setting", "top-1 error, %", lines, note=note)
    for name, pair in TABLE_B.items():
        shown = zip((name, f"{name}_LastBN"), pair, strict=True)
        lines = tuple(curve(n, DEPTHS, error, style="line") for n, (error, _) in shown)
        yield Panel(f"Table B, {name}", "depth", "test error, %", lines, note="As printed.")
