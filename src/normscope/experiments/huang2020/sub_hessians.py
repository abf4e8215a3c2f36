"""Section B: do sub-Hessians tell the size of gradients, and do they have negative eigenvalues?"""

import numpy as np
from scipy import stats

from normscope.experiments.huang2020._matrices import NORMS, small_images, small_mlp
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, parts
from normscope.measure import conditioning


def trial(depth: int, width: int, norm: str, samples: int, data: str, seed: int) -> Values:
    """Sub-Hessians and exact sub-FIMs of one network; without a norm the FIM of all labels."""
    x, y = small_images(data, samples, seed)
    net = small_mlp(x.shape[1], depth, width, norm, seed)
    kind = "true" if norm == "none" else "sampled"  # with batch statistics one pass a sample
    found = conditioning(net, (x, y), "cross_entropy", kind=kind, exact="blocks", hessian=True,
                         batch_size=samples)  # fmt: skip
    spectra = [block.spectrum for block in found.hessians if block.spectrum is not None]
    return {"largest": [float(s.values[0]) for s in spectra],
            "smallest": [float(s.values[-1]) for s in spectra],
            "fisher": found.lambda_max("exact")}  # fmt: skip


def observe(table: Table) -> Values:
    """Ranks of layers, the identity of networks without a norm, and signs."""
    ranks, equal, negative = {}, {}, {}
    for depth in table.values_of("depth"):
        for norm, title in NORMS.items():
            arm = {"depth": depth, "norm": norm}
            high, low, fisher = (table(n, **arm) for n in ("largest", "smallest", "fisher"))
            rho = [stats.spearmanr(h, f).statistic for h, f in zip(high, fisher, strict=True)]
            name = f"{title} of {depth} layers"
            ranks[name] = rho
            share = (low / high)[:, :-1]  # of the hidden layers: the loss is convex in the last
            negative[name] = {"error": np.maximum(-share, 0).min(1).min(), "size": 3456}
            if norm == "none":
                equal[name] = {"error": np.abs(high / fisher - 1).max(1), "size": 3456}
    return {"secB-subhessian-size": parts(ranks), "subhessian-equals-fim": parts(equal),
            "secB-subhessian-sign": parts(negative),
            "sign-with-bn": parts({n: part for n, part in negative.items()
                                   if n.startswith("BN")})}  # fmt: skip


def panels(table: Table) -> Panels:
    """Largest and smallest eigenvalues of sub-Hessians beside those of sub-FIMs."""
    for norm, title in NORMS.items():
        arm = {"depth": max(table.values_of("depth")), "norm": norm}
        high, low, fisher = (table(n, **arm).T for n in ("largest", "smallest", "fisher"))
        layers = range(1, len(high) + 1)
        curves = [curve("sub-FIM, largest", layers, fisher, style="line", log=True),
                  curve("sub-Hessian, largest", layers, high, log=True)]  # fmt: skip
        if norm != "none":
            hidden = range(1, len(high))
            curves.append(curve("sub-Hessian, minus the smallest", hidden, -low[:-1], log=True))
        note = "Without a norm the two are the same matrix."
        shown = f"Sec. B, {title}: sub-Hessians"
        yield Panel(shown, "layer", "eigenvalue", tuple(curves), log_y=True, note=note)
