"""Fig. 1 and Theorems 3.4 and 4.1 on images, which the paper does not show."""

import numpy as np
import torch

import normscope as ns
from normscope.experiments.karakida2019 import _common as common
from normscope.experiments.observing import Panel, Table, Values, parts
from normscope.theory import output_norm_bounds, output_norm_statistics, predict

CLASSES = 10
THEORY = {"plain": "theory", "centred": "centred_theory"}


def trial(data: str, case: str, width: int, samples: int, seed: int) -> Values:
    """One network on a random subset: spectra of one output, or norms with ten outputs."""
    x = ns.load_data(data).flat().subset(samples, seed).images.double()
    first = x.shape[1]
    if case == "norms":
        return _norms(x, [first, width, width, CLASSES], seed)
    of = [common.spec("relu", [first, width, width, 1], last_norm=n) for n in (None, "mean")]
    matrix = common.gram(of[0], samples, seed, inputs=x)
    theory = [predict(s, data=x.numpy(), theory="corrected").lambda_max for s in of]
    tops = [common.spectrum(m)["top"] for m in (matrix, common.centred(matrix))]
    return dict(zip((*THEORY, *THEORY.values()), (*tops, *theory), strict=True))


def _norms(x: torch.Tensor, widths: list[int], seed: int) -> Values:
    """lambda_max with batch norm in the hidden layers and with layer norm, over lower bounds."""
    batch, layer = (common.spec("relu-layer", widths, norm=norm) for norm in ("batch", "layer"))
    last = common.spec("relu-layer", widths, norm="layer", last_norm="layer")
    risks = [common.risk(s, len(x), seed, inputs=x) for s in (batch, last)]
    tops = [ns.top_eigenvalues(ns.fisher(risk)).values[0] for risk in risks]
    made = [predict(s, samples=len(x), theory="corrected") for s in (batch, layer)]
    with torch.no_grad():
        out = common.built(layer, seed)(x).numpy()
    etas = output_norm_statistics(out)
    sizes: Values = {"samples": len(x), "outputs": CLASSES, "etas": etas}
    _, lower, _ = output_norm_bounds(made[1].A1, made[1].A2, **sizes)
    return {"batch": tops[0] / made[0].lower - 1, "layer": tops[1] / lower - 1}


def observe(table: Table) -> Values:
    """What the mean takes away at each width, and the theory for these inputs."""
    names = table.values_of("data")

    def ratio(data: str, top: str, bottom: str) -> Values:
        where = {"data": data, "case": "figure"}
        rows = {row["width"]: table.where(width=row["width"], **where) for row, _ in table}
        return common.over_widths(table, lambda w: rows[w](top) / rows[w](bottom), 1.0, **where)

    def removed(data: str) -> Values:
        found = ratio(data, "plain", "centred")
        cells = zip(found["sizes"], found["values"], strict=True)
        return parts({f"M={w}": np.log10(v) for w, v in cells})

    theory = {f"{d}, {k}": ratio(d, k, v) for d in names for k, v in THEORY.items()}
    widths = table.where(case="norms").values_of("width")
    norms = {f"{k}, M={w}": table(k, case="norms", width=w)
             for k in ("batch", "layer") for w in widths}  # fmt: skip
    ours = {"real-mnist": removed(names[0]), "real-cifar": removed(names[-1])}
    return ours | {"real-theory": parts(theory), "real-bn-ln": parts(norms)}


def panels(table: Table) -> list[Panel]:
    """Fig. 1 with images as inputs."""
    curves = {"measured": ("plain", "points"), "theory for these inputs": ("theory", "dashed"),
              "measured, mean subtracted": ("centred", "points"),
              "theory, mean subtracted": ("centred_theory", "line")}  # fmt: skip
    titles = {data: f"Fig. 1 on {data}, ReLU, T = M" for data in table.values_of("data")}
    where: Values = {"table": table, "curves": curves, "case": "figure"}
    return [common.width_panel(title, **where, data=data) for data, title in titles.items()]
