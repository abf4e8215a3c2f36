"""Theorem 3.3 (i): mean subtraction with a handful of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from normscope.experiments.experiment import Experiment, Scale, Table
from normscope.experiments.karakida2019._common import centred, gram, over_widths, prediction, spec

NETS, FEW = ("relu", "tanh"), (2, 4, 8)


def trial(network: str, width: int, seed: int) -> dict[str, Any]:
    """lambda_max for the first 2, 4 and 8 samples of one network."""
    whole = gram(spec(network, [width] * 3 + [1]), max(FEW), seed) * max(FEW)
    blocks = {t: centred(whole[:t, :, :t]) / t for t in FEW}
    return {f"top{t}": float(np.linalg.eigvalsh(b.reshape(t, t))[-1]) for t, b in blocks.items()}


def observe(table: Table) -> dict[str, Any]:
    """Widths are extrapolated in M^(-1/2), the order of the remainder in (S.31)."""

    def part(network: str, few: int) -> Any:
        def theory(width: int) -> float:
            made: Any = prediction(network, width, few, last_norm="mean")
            return float(made.A1 - made.A2) / few

        return over_widths(table, f"top{few}", theory, network=network)

    return {"thm3.3-O1": {"parts": {f"{n}, T={t}": part(n, t) for n in NETS for t in FEW}}}


EXPERIMENT = Experiment(
    title="Largest eigenvalue after mean subtraction with 2, 4 and 8 samples",
    trial=trial,
    scales={
        "smoke": Scale({"network": list(NETS), "width": [100, 400]}, seeds=4, seconds=2),
        "desk": Scale({"network": list(NETS), "width": [200, 800, 3200]}, seeds=40, seconds=90),
    },
    observe=observe,
    own_scale=True,
)
