"""Fig. 1: lambda_max and critical learning rate against gamma, as printed and as measured."""

from functools import cache

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, exact, parts
from normscope.experiments.wei2019._common import PLOTTED, SHOWN, THEORIES, critical, named, spec_of

GRID = np.linspace(0.1, 4.1, 21)
ENDS = (float(GRID[0]), float(GRID[-1]))
GAMMAS = [None, 0.1, 0.5, 1.0, 2.0, 3.0, 4.1]
TOP, FLOOR, CEILING = 3500.0, -3.2, 0.5  # ends of the axes: lambda_max and log10 of the rate


def trial(network: str, samples: int, gamma: float | None, seed: int) -> Values:
    """lambda_max of one network on Gaussian inputs, weights alone, batch norm in train mode."""
    spec = spec_of(network, gamma)
    inputs = torch.randn(samples, *spec.input_shape, generator=torch.Generator().manual_seed(seed))
    model = ns.build(spec, seed)
    risk = ns.Risk(model, inputs, loss="mse", statistics="batch", parameters="weights")
    return {"lambda": float(ns.top_eigenvalues(ns.fisher(risk)).values[0])}


@cache
def line(network: str, theory: str, samples: int | None = None) -> tuple[float, Array]:
    """lambda_max without batch norm, and at every gamma of the grid."""
    specs = [spec_of(network, None), *(spec_of(network, float(g)) for g in GRID)]
    found = ns.predict(specs, theory=theory, samples=samples)
    values = np.array([p.lambda_max for p in found], float)
    return float(values[0]), values[1:]


def crossing(plain: float, values: Array) -> float:
    """The gamma at which the curve reaches the network without batch norm."""
    return float(np.exp(np.interp(np.log(plain), np.log(values), np.log(GRID))))


def observe(table: Table) -> Values:
    """What the printed curves do, and where real networks lie beside them."""
    found: Values = {}
    for network in table.values_of("network"):
        one, kind = table.where(network=network), "cnn" if network.endswith("cnn") else "fc"
        samples = one.values_of("samples")[0]
        for theory in ("wei2019", PLOTTED):
            plain, values = line(network, theory)
            rates = np.log10(critical(1.0) / np.array([plain, values.max(), values.min()]))
            rises, at = bool(np.all(np.diff(values) > 0)), crossing(plain, values)
            found[f"{kind}-shape-{theory}"] = {"holds": [rises, 2.5 < at < 3.5]}
            found[f"{kind}-axis-{theory}"] = {"holds": [plain < TOP, values.max() < TOP]}
            found[f"{kind}-rates-{theory}"] = {"holds": [FLOOR < r < CEILING for r in rates]}
        ends = np.log10(critical(1.0) / line(network, "wei2019")[1][[0, -1]])
        found[f"{kind}-ends"] = parts({
            named(g): exact(end, expected)
            for g, end, expected in zip(ENDS, ends, (0.4, -3.0), strict=True)})  # fmt: skip
        gammas = [g for g in one.values_of("gamma") if g is not None]
        for theory in ("wei2019", PLOTTED, "corrected"):
            made, count = {}, samples if theory == "corrected" else None
            for gamma in gammas if theory == "corrected" else [None, *gammas]:
                value = ns.predict(spec_of(network, gamma), theory=theory, samples=count).lambda_max
                made[named(gamma)] = {
                    "values": one("lambda", gamma=gamma), "expected": value,
                    "remainder": (gamma or 0.0) ** 2,  # O(1) beside O(width), at gamma 1
                }  # fmt: skip
            found[f"{kind}-networks-{theory}"] = parts(made)
        gain = {g: np.log10(one("lambda", gamma=None) / one("lambda", gamma=g)) for g in gammas}
        found[f"{kind}-flatter"] = parts({named(g): v for g, v in gain.items() if g <= 3})
        found[f"{kind}-sharper"] = {"values": gain[gammas[-1]]}
    networks = [spec_of(n, None) for n in ("mnist-fc", "cifar-fc")]
    fc, wide = (p.lambda_max or 0.0 for p in ns.predict(networks, theory="corrected"))
    found["n0"] = {"error": abs(fc / wide - 1)}
    return found


def panels(table: Table) -> Panels:
    """The four panels."""
    for network in table.values_of("network"):
        one, conv = table.where(network=network), network.endswith("cnn")
        gammas = [g for g in one.values_of("gamma") if g is not None]
        for rates in (False, True):

            def shown(values: Array | float, rates: bool = rates) -> Array:
                return np.log10(critical(1.0) / np.asarray(values)) if rates else np.asarray(values)

            curves = []
            for theory in THEORIES:
                plain, values = line(network, theory)
                if (theory == PLOTTED and not conv) or (conv and theory == "wei2019" and not rates):
                    continue  # the same as printed; off the axis
                style = "line" if theory == "corrected" else "dashed"
                curves.append(curve(SHOWN[theory], GRID, shown(values), style=style))
                if theory == "corrected":
                    level = [shown(plain)] * 2
                    curves.append(curve("no batch norm, theory", ENDS, level, style="dashed"))
            groups = [shown(one("lambda", gamma=g)) for g in gammas]
            curves.append(curve("measured, train mode", gammas, groups))
            level_seen = [shown(one("lambda", gamma=None))] * 2
            curves.append(curve("no batch norm, measured", ENDS, level_seen, style="band"))
            letter = "abcd"[2 * conv + rates]
            what = "log10 of the critical learning rate" if rates else "lambda_max"
            name = "convolutional" if conv else "fully connected"
            note = "Eq. (45) as printed is above 100,000." if conv and not rates else ""
            yield Panel(f"Fig. 1{letter}: {name}", "gamma", what, tuple(curves), note=note)
