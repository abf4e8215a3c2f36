"""Theorem 3.3 (i): mean subtraction with a handful of samples."""

from typing import Any

import numpy as np

from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Table, Values, parts

NETS, FEW = ("relu", "tanh"), (2, 4, 8)


def trial(network: str, width: int, seed: int) -> Values:
    """lambda_max for the first 2, 4 and 8 samples of one network."""
    model = common.built(common.spec(network, [width] * 3 + [1]), seed)
    pairs = common.overlaps(model, common.gaussian(max(FEW), width, seed=seed))
    whole: Any = sum(hat * tilde for hat, tilde in pairs)  # T F* by (S.9)
    return {f"top{t}": float(np.linalg.eigvalsh(_centred(whole[:t, :t]) / t)[-1]) for t in FEW}


def _centred(matrix: Any) -> Any:
    return matrix - matrix.mean(0) - matrix.mean(1)[:, None] + matrix.mean()


def observe(table: Table) -> Values:
    """Widths are extrapolated in M^(-1/2), the order of the remainder in (S.31)."""

    def part(network: str, few: int) -> Any:
        def theory(width: int) -> float:
            made: Any = common.prediction(network, width, few, last_norm="mean")
            return float(made.A1 - made.A2) / few

        return common.over_widths(table, f"top{few}", theory, network=network)

    return {"thm3.3-O1": parts({f"{n}, T={t}": part(n, t) for n in NETS for t in FEW})}
