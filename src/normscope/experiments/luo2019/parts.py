"""Fig. 2c, d: which of the two batch statistics regularizes, and what each does to the units."""

from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.luo2019._training import at, images, loss_of, train
from normscope.experiments.observing import Panel, Table, Values, paired, parts
from normscope.measure import ablation, scale_information, unit_statistics
from normscope.sweeps.panels import arm_bars, training_panel
from normscope.train import StopTraining
from normscope.train.gamma_decay import scales

ARMS = {"batch": "BN", "weight-mean": "WN + mean-only BN",
        "weight-variance": "WN + variance-only BN", "weight": "WN", "none": "vanilla"}  # fmt: skip
PROBES = {"kept": "accuracy kept under ablation", "correlation": "mean |correlation| of units",
          "kurtosis": "mean excess kurtosis of units",
          "magnitude": "variation of the rms over units", "scale": "variation of gamma over units",
          "information": "mean (dl/dgamma)^2"}  # fmt: skip
LAST, EQUAL = "last epoch", "equal training loss"


def trial(arm: str, net: str, data: str, samples: int, epochs: int, lr: float, batch: int,
          level: float, seed: int) -> Values:  # fmt: skip
    """One network: its state when the training loss first passes ``level``, and at the end.

    A convolutional network stops at ``level``; only an MLP is probed.
    """
    shown, test = images(data, samples, seed)
    model = ns.network(net, norm=None if arm == "none" else arm, seed=seed)
    dense, passed = net.startswith("mlp"), dict[str, float]()

    def watch(event: Any) -> None:
        if event.kind == "epoch" and not passed and event.loss < level:
            passed.update(_state(model, shown, test, probed=dense), epoch=float(event.epoch + 1))
            if not dense:
                raise StopTraining(f"training loss below {level}")

    found = train(model, shown, test, epochs, lr=lr, batch_size=batch, seed=seed, callbacks=[watch])
    last = _state(model, shown, test, probed=dense) if dense else dict(passed)
    made: Values = {LAST: last, EQUAL: passed or dict.fromkeys(last, float("nan"))}
    return made | (found if dense else {})


def _state(model: torch.nn.Module, shown: Any, test: Any, *, probed: bool) -> dict[str, float]:
    made = {"train": loss_of(model, shown), "loss": loss_of(model, test)}
    if not probed:
        return made
    about: Values = {"batch_size": 256, "num_batches": None, "statistics": "running"}
    units = unit_statistics(model, shown, "cross_entropy", **about)
    values = [units[name] for name in ("layer1", "layer2")]
    gammas = [g.detach().abs() for g in scales(model).values()]
    return made | {"kept": ablation(model, shown, "cross_entropy", **about).area(relative=True)[0],
                   "correlation": float(np.mean([v.mean_abs_correlation for v in values])),
                   "kurtosis": float(np.mean([v.mean_kurtosis for v in values])),
                   "magnitude": float(np.mean([units[f"act{k}"].rms_variation for k in (1, 2)])),
                   "scale": float(np.mean([float(g.std() / g.mean()) for g in gammas]))
                   if gammas else np.nan,
                   "information": scale_information(model, shown.images, shown.labels)}  # fmt: skip


def observe(table: Table) -> Values:
    """Differences between arms of the same seed."""
    dense, conv = table.values_of("net")
    views = {f"MLP, {LAST}": (dense, LAST), f"MLP, {EQUAL}": (dense, EQUAL),
             f"CNN6, {EQUAL}": (conv, EQUAL)}  # fmt: skip

    def gap(key: str, a: str, b: str, when: str = LAST, net: str = dense, **how: Any) -> Any:
        arms = ({"arm": a, "net": net}, {"arm": b, "net": net})
        return paired(table, at(when, key), *arms, **how)

    def losses(a: str, *others: str) -> Values:
        return parts({f"{view}, less {ARMS[b]}": gap("loss", a, b, when, net)
                      for view, (net, when) in views.items() for b in others})  # fmt: skip

    def probes(a: str, b: str, *keys: str, times: tuple[str, ...] = (LAST, EQUAL)) -> Any:
        return {f"{PROBES[key]}, {time}, {ARMS[a]} less {ARMS[b]}":
                gap(key, a, b, time, log10=key == "information")
                for key in keys for time in times}  # fmt: skip

    lacking = {"weight-mean": "without sigma_B", "weight-variance": "without mu_B"}
    equal = (EQUAL,)
    return {
        "fig2c-bn": losses("batch", "weight", "none"),
        "fig2d-mean": losses("weight-mean", "weight"),
        "fig2d-var": losses("weight-variance", "weight"),
        "fig2c-train": parts({ARMS[a]: gap("train", a, "weight", log10=True)
                              for a in ("batch", *lacking)}),
        "obs-mu": parts(probes("weight-mean", "weight", "kept")),
        "obs-sigma": parts(probes("weight-variance", "weight", "correlation", "kurtosis")),
        "obs-both": parts({f"{words} loss, {word}": gap(key, "batch", a, log10=True)
                           for key, words in (("loss", "validation"), ("train", "training"))
                           for a, word in lacking.items()}),
        "obs-magnitude": parts(probes("weight-mean", "weight", "magnitude", "scale", times=equal)),
        "obs-gradnorm": parts(probes("weight-variance", "weight", "information", times=equal)
                              | probes("batch", "weight-mean", "information", times=equal)),
    }  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Training and validation loss over the epochs, CNN6 at equal training loss, the probes."""
    dense, conv = table.values_of("net")
    arms = {word: {"arm": arm, "net": dense} for arm, word in ARMS.items()}
    convs = {word: {**arm, "net": conv} for word, arm in arms.items()}
    scaled = {word: arm for word, arm in arms.items() if arm["arm"] != "none"}
    head, section = "Luo et al. 2019, Fig. 2", "Luo et al. 2019, Sec. 2.1, MLP"
    curves = [training_panel(table, f"{head}{place}, MLP: {word} loss", arms, key,
                             x="epoch, from 0", y=f"{word} loss", log=key == "train")
              for key, place, word in (("train", "c", "training"),
                                       ("loss", "d", "validation"))]  # fmt: skip
    bars = arm_bars(table, f"{head}d, CNN6: validation loss at equal training loss", convs,
                    at(EQUAL, "loss"), "validation loss")  # fmt: skip
    return [*curves, bars, *(
        arm_bars(table, f"{section}: {words}", scaled if key == "scale" else arms, at(EQUAL, key),
                 f"{words}, at equal training loss", log=key == "information")
        for key, words in PROBES.items())]  # fmt: skip
