"""Fig. 4: batch norm is folded into the weights, which are then trained on without it."""

from copy import deepcopy
from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.luo2019._training import at, images, loss_of, train
from normscope.experiments.observing import Panels, Table, Values, columns, parts
from normscope.sweeps.panels import arm_bars, training_panel

ARMS = {"folded": "folded, without batch norm", "control": "control: batch norm kept"}
MEASURED = 512  # samples of the Hessian
NETS = {"mlp": "MLP", "cnn": "CNN6"}


def trial(net: str, data: str, samples: int, epochs: int, lr: float, tuned: int, rate: float,
          batch: int, seed: int) -> Values:  # fmt: skip
    """Train with batch norm, then go on at a small rate with and without it."""
    shown, test = images(data, samples, seed)
    model = ns.network(net, norm="batch", seed=seed)
    train(model, shown, test, epochs, lr=lr, batch_size=batch, seed=seed)
    made: Values = {"before": _state(model, shown, test)}
    for arm in ARMS:
        copy = ns.apply_transform(model, "fold") if arm == "folded" else deepcopy(model)
        curves = train(copy, shown, test, tuned, lr=rate, batch_size=batch, seed=seed + 1)
        made[arm] = _state(copy, shown, test) | {"curves": curves}
    return made


def _state(model: torch.nn.Module, shown: Any, test: Any) -> Values:
    """Losses, and weights and sharpness as they are with the norms folded in, for all alike."""
    if any("norm" in name for name, _ in model.named_parameters()):
        model = ns.apply_transform(model, "fold")
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    risk = ns.Risk(model, shown.images[:MEASURED], shown.labels[:MEASURED], loss="cross_entropy",
                   statistics="running")  # fmt: skip
    return {"train": loss_of(model, shown), "loss": loss_of(model, test),
            "norms": [float(w.detach().double().norm()) for w in weights],
            "sharpness": float(ns.top_eigenvalues(ns.hessian(risk)).values[0])}  # fmt: skip


def _named(net: str) -> str:
    return next(word for key, word in NETS.items() if net.startswith(key))


def observe(table: Table) -> Values:
    """Changes by training on after folding, and those beyond what the control shows."""
    grown: Values = {}
    beyond: Values = {}
    rest: dict[str, Values] = {"train": {}, "loss": {}, "sharpness": {}}
    for net in table.values_of("net"):
        runs, word = [values for _, values in table.where(net=net)], _named(net)

        def of(key: str, a: str, b: str, runs: Any = runs) -> Any:
            return np.array([np.log10(r[a][key]) - np.log10(r[b][key]) for r in runs])

        names = [f"{word}, layer {k + 1}" for k in range(len(runs[0]["before"]["norms"]))]
        grown |= columns(of("norms", "folded", "before"), names)["parts"]
        beyond |= columns(of("norms", "folded", "control"), names)["parts"]
        for key, groups in rest.items():
            groups[f"{word}, after less before"] = of(key, "folded", "before")
            groups[f"{word}, less control"] = of(key, "folded", "control")
    ids = {"train": "fig4e", "loss": "fig4f", "sharpness": "fig4-sharper"}
    made = {ids[key]: parts(groups) for key, groups in rest.items()}
    return {"fig4-norm": parts(grown), "fig4-norm-control": parts(beyond), **made}


def panels(table: Table) -> Panels:
    """Losses over the epochs behind the folding, growth of the weights, sharpness."""
    places = {"train": ", e: training loss", "loss": ", f: validation loss"}
    for net in table.values_of("net"):
        chosen, head = table.where(net=net), f"Luo et al. 2019, Fig. 4 ({_named(net)})"
        # one row for each arm, so that the arms can be drawn side by side
        rows = [({**s, "arm": arm}, {**v[arm], "first": v["before"]})
                for s, v in chosen for arm in ARMS]  # fmt: skip
        split, arms = Table(rows), {word: {"arm": arm} for arm, word in ARMS.items()}
        for key, words in places.items():
            yield training_panel(split, f"{head}{words}", arms, at("curves", key), y="loss",
                                 x="epoch, from 0", log=key == "train")  # fmt: skip
        growth = training_panel(split, f"{head}, a-d: growth of the weights", arms, _growth,
                                x="layer, from 0", y="norm after / before")  # fmt: skip
        sharper = arm_bars(split, f"{head}: sharpness", arms,
                           lambda run: run["sharpness"] / run["first"]["sharpness"],
                           "lambda_max of the Hessian, after / before")  # fmt: skip
        yield growth
        yield sharper


def _growth(run: Any) -> Any:
    return np.array(run["norms"]) / np.array(run["first"]["norms"])
