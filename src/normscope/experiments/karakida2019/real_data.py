"""Fig. 1 and Theorems 3.4 and 4.1 on images, which the paper does not show."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from normscope.data import load_data
from normscope.experiments.experiment import Experiment, Scale, Table
from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.karakida2019._common import over_widths, spectrum
from normscope.measure import fisher
from normscope.measure.spectral import top_eigenvalues
from normscope.nn.build import build
from normscope.results.panel import Panel
from normscope.sweeps.plan import grid
from normscope.theory import output_norm_bounds, output_norm_statistics, predict

CLASSES = 10


def trial(data: str, case: str, width: int, samples: int, seed: int) -> dict[str, Any]:
    """One network on a random subset: spectra of one output, or norms with ten outputs."""
    x = load_data(data).flat().subset(samples, seed).images.double()
    first = x.shape[1]
    if case == "norms":
        return _norms(x, [first, width, width, CLASSES], seed)
    of = [common.spec("relu", [first, width, width, 1], last_norm=n) for n in (None, "mean")]
    matrix = common.gram(of[0], samples, seed, inputs=x)
    theory = [predict(s, inputs=x.numpy()).lambda_max for s in of]
    tops = [spectrum(m)["top"] for m in (matrix, common.centred(matrix))]
    return dict(
        zip(("plain", "centred", "theory", "centred_theory"), (*tops, *theory), strict=True)
    )


def _norms(x: torch.Tensor, widths: list[int], seed: int) -> dict[str, Any]:
    """lambda_max with batch norm in the hidden layers and with layer norm, over lower bounds."""
    batch, layer = (common.spec("relu-layer", widths, norm=norm) for norm in ("batch", "layer"))
    last = common.spec("relu-layer", widths, norm="layer", last_norm="layer")
    tops = [
        top_eigenvalues(fisher(common.risk(s, len(x), seed, inputs=x))).values[0]
        for s in (batch, last)
    ]
    made: Any = [predict(s, samples=len(x)) for s in (batch, layer)]
    with torch.no_grad():
        out = build(layer, seed, dtype=torch.float64)(x).numpy()
    etas = output_norm_statistics(out)
    sizes: dict[str, Any] = {"samples": len(x), "outputs": CLASSES, "etas": etas}
    _, lower, _ = output_norm_bounds(made[1].A1, made[1].A2, **sizes)
    return {"batch": tops[0] / made[0].lower - 1, "layer": tops[1] / lower - 1}


def observe(table: Table) -> dict[str, Any]:
    """What the mean takes away at each width, and the theory for these inputs."""
    names = table.values_of("data")
    seen: dict[str, Any] = {}
    for claim, data in (("real-mnist", names[0]), ("real-cifar", names[-1])):
        where = {"data": data, "case": "figure"}
        ratio = {
            f"M={w}": np.log10(
                table("plain", width=w, **where) / table("centred", width=w, **where)
            )
            for w in table.where(**where).values_of("width")
        }
        seen[claim] = {"parts": {k: {"values": v.tolist()} for k, v in ratio.items()}}

    def part(data: str, name: str, theory: str) -> dict[str, Any]:
        where = {"data": data, "case": "figure"}

        def get(width: int, key: str) -> Any:
            return table(key, width=width, **where)

        return over_widths(table, lambda w: get(w, name) / get(w, theory), lambda w: 1.0, **where)

    kinds = {"plain": "theory", "centred": "centred_theory"}
    seen["real-theory"] = {
        "parts": {f"{d}, {k}": part(d, k, v) for d in names for k, v in kinds.items()}
    }
    norms = {k: {"values": table(k, case="norms").tolist()} for k in ("batch", "layer")}
    return seen | {"real-bn-ln": {"parts": norms}}


def panels(table: Table) -> list[Panel]:
    """Fig. 1 with images as inputs."""
    curves = {
        "measured": ("plain", "points"), "theory for these inputs": ("theory", "dashed"),
        "measured, mean subtracted": ("centred", "points"),
        "theory, mean subtracted": ("centred_theory", "line"),
    }  # fmt: skip
    titles = {data: f"Fig. 1 on {data}, ReLU, T = M" for data in table.values_of("data")}
    where: dict[str, Any] = {"table": table, "curves": curves, "case": "figure"}
    return [common.width_panel(title, **where, data=data) for data, title in titles.items()]


def _cells(
    data: list[str], widths: list[int], norms: tuple[list[int], int], seeds: int
) -> list[dict[str, Any]]:
    figure = [{"case": "figure", "data": d, "width": w, "samples": w} for d in data for w in widths]
    normed = {"case": "norms", "data": data[0], "width": norms[0], "samples": norms[1]}
    return [*grid(figure, seeds), *grid(normed, 3)]


EXPERIMENT = Experiment(
    title="Fig. 1, batch norm and layer norm on real images",
    trial=trial,
    scales={
        "smoke": Scale(_cells(["digits"], [30, 60], ([30], 40), 2), seconds=4),
        "desk": Scale(
            _cells(["mnist", "cifar10"], [100, 200, 400], ([100, 200, 400], 400), 5),
            seconds=120,
            data=("mnist", "cifar10"),
        ),
    },
    observe=observe,
    panels=panels,
    own_scale=True,
)
