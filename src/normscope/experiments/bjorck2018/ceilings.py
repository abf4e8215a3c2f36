"""The largest learning rates at which small ResNets do not diverge: Tables 2, 3, Sec. 4, App. J.

Stand-ins of the paper's full training runs: width 8, 16 x 16 images, 5000 of them, batches of 32.
The ceiling of a network is the lowest rate at which ten updates diverge; above it a network may be
dead, which does not diverge.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from normscope.experiments.bjorck2018._common import images, layer, resnet, slope
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts
from normscope.train import fit, max_stable_lr

CHANCE = math.log(10)
MEAN, VARIANCE, SCALE, SHIFT = "mean", "variance", "scale", "shift"
ROWS = {  # of Table 2: parts, and the rate that the paper calls best
    "all": ([MEAN, VARIANCE, SCALE, SHIFT], 0.1), "no shift": ([MEAN, VARIANCE, SCALE], 0.1),
    "no scale": ([MEAN, VARIANCE, SHIFT], 0.1), "mean and variance": ([MEAN, VARIANCE], 0.1),
    "variance": ([VARIANCE], 0.01), "mean": ([MEAN], 0.003), "none": ([], 1e-4)}  # fmt: skip
NEXT = {"variance": 0.03, "mean": 0.01, "none": 3e-4}  # the next rate of the paper's grid
INITS = ("xavier", "he", "he-fan-out", "lecun-uniform", "orthogonal")
DEPTHS = (20, 32, 56, 110)
OTHERS = ("top", "alternating", "warm", "centred", "none 20", "none 32", "none 56", "batch 20",
          "batch 56")  # fmt: skip
RATE = {"top": 0.03, "none 32": 0.1}  # of others, at which they are to learn
TABLE3 = {"none 32": 0.1, "none 56": 0.01, "warm": 0.01, "alternating": 0.01}
DRAWN = [f"{norm} 56 {init}" for norm in ("none", "batch") for init in INITS[1:]]
ARMS = [*ROWS, *OTHERS, *DRAWN]


def trial(arm: str, seed: int, data: str = "cifar10", width: int = 8, samples: int = 5000,
          steps: int = 10, train: int = 180, tol: float = 0.5,
          depth: int = 0) -> Values:  # fmt: skip
    """The ceiling of one network, and whether it learns at the paper's rate."""
    drawn = images(data, samples, seed, half=data != "digits")
    net = _network(arm, seed, data, width, depth)
    options: Values = {"momentum": 0.9, "batch_size": 32}
    loss: Any = _centred if arm == "centred" else "cross_entropy"
    if arm == "warm":
        fit(net, drawn, "cross_entropy", lr=1e-4, epochs=1, seed=seed, **options)
    found = max_stable_lr(net, drawn, loss, steps=steps, seeds=[seed], bracket=(1e-6, 100), tol=tol,
                          **options)  # fmt: skip
    failed = [t.lr for t in found.trials if t.diverged]
    high = min(failed, default=math.inf)
    low = max((t.lr for t in found.trials if t.lr < high), default=0.0)
    made = {"low": low, "high": high}
    made |= {"start": found.trials[0].start, "gradient": _gradient(net, drawn, depth)}
    rate = RATE.get(arm) or ROWS.get(arm, ([], 0.0))[1]
    late = math.nan
    if rate:
        run = fit(net, drawn, loss, lr=rate, steps=train, seed=seed, **options)
        late = math.inf if run.diverged else float(np.mean(run.losses[-len(run.losses) // 3 :]))
    return made | {"late": late}


def _network(arm: str, seed: int, data: str, width: int, depth: int) -> Any:
    words = arm.split()
    options: Values = {}
    if arm in ROWS:
        chosen = ROWS[arm][0]
        norm = "batch" if chosen else "none"
        options = {"norm_options": {"parts": chosen}} if chosen and len(chosen) < 4 else {}
    elif arm == "alternating":
        norm, options = "batch", {"norm_options": {"every": 2}}
    else:
        norm = words[0] if words[0] in ("batch", "top") else "none"
        options = {"init": words[2]} if len(words) > 2 else {}
    layers = int(words[1]) if len(words) > 1 and words[1].isdigit() else 110
    return resnet(depth or layers, norm, seed, data=data, width=width, **options)


def _centred(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy whose output gradient has no part that is the same for all images."""
    own = outputs - outputs.mean(0)
    return functional.cross_entropy(outputs.detach() + own - own.detach(), targets)


def _gradient(net: Any, data: Any, depth: int) -> float:
    """Standard deviation of the gradient of layer 55 on one batch."""
    number = 55 if not depth else 5
    try:
        weight = layer(net, number).weight
    except IndexError:
        return math.nan
    loss: Any = functional.cross_entropy(net.train()(data.images[:32]), data.labels[:32])
    return float(torch.autograd.grad(loss, weight)[0].std())


def _log(table: Table, arm: str) -> Array:
    """log10 of the ceiling; of what is known where no rate diverges."""
    low, high = table("low", arm=arm), table("high", arm=arm)
    middle = np.sqrt(low * np.where(np.isfinite(high), high, low))
    return np.asarray(np.log10(middle))


def observe(table: Table) -> Values:
    """What the claims read."""
    log = {arm: _log(table, arm) for arm in table.values_of("arm")}
    log |= {"batch 110": log["all"], "none 110": log["none"]}
    get = {(a, k): table(k, arm=a) for a in table.values_of("arm") for k in table.names}
    gap = log["all"] - log["none"]
    deep = np.log10(DEPTHS)

    def between(arm: str, rate: float) -> Values:
        """Whether the ceiling lies between a rate of the grid and the next."""
        ends = np.stack([get[arm, "low"], get[arm, "high"]], 1)
        return {"intervals": ends, "line": rate * math.sqrt(3)}

    def lines(rows: Any, places: Any) -> Array:
        return np.array([slope(np.asarray(places), row)[0] for row in np.stack(rows, 1)])

    def spread(norm: str, values: dict[str, Array]) -> Array:
        arms = [f"{norm} 56", *(arm for arm in DRAWN if arm.startswith(norm))]
        return np.asarray(np.ptp([values[arm] for arm in arms], axis=0))

    start = {arm: np.log10(get[arm, "start"]) for arm in table.values_of("arm")}
    made: Values = {
        "sec1-bn-trains": {"values": get["all", "late"] - CHANCE},
        "sec1-unnorm-fails": {"holds": get["none", "high"] <= 0.1},
        "sec3-top-lr": parts({
            "above none": log["top"] - log["none"], "below full": log["all"] - log["top"],
            "learns at 0.03": CHANCE - get["top", "late"]}),
        "sec3-limit": {"values": log["centred"] - log["none"]},
        "sec3-four-orders": {"values": gap},
        "sec3-beyond-gradients": {
            "values": gap - np.log10(get["none", "gradient"] / get["all", "gradient"])},
        "sec4-shallow-lr": {"values": lines([log[f"none {d}"] for d in DEPTHS], deep)},
        "sec4-robust": {"values": np.abs(log["batch 20"] - log["all"])
                        - np.abs(log["none 20"] - log["none"])},
        "sec4-bn-depth": {"values": lines(
            [log[f"batch {d}"] - log[f"none {d}"] for d in (20, 56, 110)], deep[[0, 2, 3]])},
        "sec4-init-robust": parts({
            name: spread("batch", values) - spread("none", values)
            for name, values in (("loss", start), ("ceiling", log))}),
        "tab2-order": parts({
            f"{a} against {b}": log[a] - log[b] for a, b in
            (("mean and variance", "variance"), ("variance", "mean"), ("mean", "none"))}),
        "tab3-row1": parts({"stable": {"holds": get["none 32", "low"] >= 0.1},
                            "learns": {"holds": get["none 32", "late"] < CHANCE}}),
        "tab3-row2": between("none 56", 0.01), "tab3-row3": between("warm", 0.01),
        "tab3-row4": between("alternating", 0.01),
        "tab3-warm-gain": {"values": log["warm"] - log["none"]},
        "tab3-warm-far": {"values": log["all"] - log["warm"]},
        "tab3-alternating": {"values": log["all"] - log["alternating"]},
        "appJ-bn-3": {"holds": get["all", "low"] >= 3.0},
        "appJ-bn-10": {"holds": get["all", "high"] <= 10.0}}  # fmt: skip
    for number, (arm, (_, rate)) in enumerate(ROWS.items(), start=1):
        found = {"below the ceiling": {"holds": get[arm, "low"] >= rate},
                 "learns": {"holds": get[arm, "late"] < CHANCE}}  # fmt: skip
        if arm in NEXT:
            found["next rate fails"] = {"holds": get[arm, "high"] <= NEXT[arm]}
        made[f"tab2-row{number}"] = {"parts": found}
    return made


def panels(table: Table) -> Panels:
    """Ceilings of Tables 2 and 3, and by depth."""
    for title, printed in (("Table 2", {a: rate for a, (_, rate) in ROWS.items()}),
                           ("Table 3", TABLE3)):  # fmt: skip
        arms = [*printed]
        measured = curve("diverges from", arms, [10 ** _log(table, a) for a in arms], log=True)
        theirs = curve("paper's rate", arms, [*printed.values()], style="dashed")
        yield Panel(f"{title}: ceilings of stand-ins", "network", "learning rate",
                    (measured, theirs), log_y=True)  # fmt: skip
    curves = []
    for norm, last in (("none", "none"), ("batch", "all")):
        depths = [d for d in DEPTHS[:-1] if f"{norm} {d}" in table.values_of("arm")]
        rows = [10 ** _log(table, f"{norm} {d}") for d in depths] + [10 ** _log(table, last)]
        curves.append(curve(norm, [*depths, 110], rows, log=True))
    yield Panel("App. J: ceilings by depth", "layers", "learning rate", tuple(curves), log_x=True,
                log_y=True)  # fmt: skip
