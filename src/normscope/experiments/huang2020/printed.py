"""Tables A and B and Section B: arithmetic on what is printed."""

import numpy as np

from normscope.experiments.claim import paper_file
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, every_value
from normscope.results import ConditioningCost

ARMS = ("standard", "WD = 0.0002", "DR = 0.3")
TABLES = paper_file("huang2020")["printed"]
TABLE_A, TABLE_B = {int(depth): rows for depth, rows in TABLES["A"].items()}, TABLES["B"]
IMAGES = 50_000
DEPTHS = (20, 44, 56, 110)


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
