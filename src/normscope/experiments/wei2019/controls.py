"""Does the boundary depend on the number of updates, of seeds, or on mini-batches?"""

import numpy as np

from normscope.experiments.observing import Table, Values, exact, parts
from normscope.experiments.wei2019 import _boundary
from normscope.experiments.wei2019._boundary import middles
from normscope.experiments.wei2019._common import named


def observe(table: Table) -> Values:
    """Shifts of the boundary in decades, paired by seed."""
    steps, samples = sorted(table.values_of("steps")), sorted(table.values_of("samples"))
    batches = sorted(table.values_of("batch_size"))
    usual = {"steps": steps[0], "samples": samples[-1], "batch_size": batches[0]}
    few = usual | {"samples": samples[0]}

    def shift(gamma: float | None, one: Values, other: Values) -> Values:
        both = [np.log10(table("diverges", gamma=gamma, **arm)) for arm in (one, other)]
        half = sum(float(np.diff(ends, axis=1).mean()) / 2 for ends in both)
        return {"values": both[1].mean(1) - both[0].mean(1), "expected": 0.0, "remainder": half}

    long, full = usual | {"steps": steps[-1]}, few | {"batch_size": batches[-1]}
    longer = {named(g): shift(g, usual, long) for g in table.where(**long).values_of("gamma")}
    whole = {named(g): shift(g, few, full) for g in table.where(**full).values_of("gamma")}
    first = {}
    for gamma in table.where(**usual).values_of("gamma"):
        ends, found = table("diverges", gamma=gamma, **usual), middles(table, gamma, **usual)
        half = float(np.diff(np.log10(ends), axis=1).mean())
        first[named(gamma)] = exact(found.min() - found.mean(), 0.0, half) | {"n": len(found)}
    return {"longer": parts(longer), "whole": parts(whole), "first": parts(first)}


trial = _boundary.trial
