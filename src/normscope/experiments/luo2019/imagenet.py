"""Fig. 3: ResNet-18 on ImageNet at 32 x 32 pixels, batch norm and population norm."""

import numpy as np

import normscope as ns
from normscope.experiments.observing import Panel, Panels, Table, Values, curve, parts
from normscope.nn.norm import PopulationRefresher
from normscope.train import adaptive_gamma_decay
from normscope.train.schedules import EpochDecay

ARMS = {"BN M = 128": 128, "BN M = 1024": 1024, "PN + gamma decay": 128}


def trial(arm: str, data: str, epochs: int, most: int, samples: int, seed: int) -> Values:
    """Train one arm; losses and validation accuracy after every epoch."""
    size, shown = min(ARMS[arm], most), ns.load_data(data)
    population = arm.startswith("PN")
    named: Values = {"classes": shown.num_classes, "seed": seed, "norm": "batch"}
    if population:
        named |= {"norm": "population", "norm_options": {"stat_grad": "through"}}
    model, options = ns.network("resnet18", **named), {}
    if population:
        some = shown.subset(samples)
        statistics = PopulationRefresher(model, some.images, num_samples=None)
        decay = adaptive_gamma_decay(model, some, "cross_entropy", batch_size=ARMS[arm])
        options = {"penalty": decay, "refreshers": [statistics, decay]}
    run = ns.fit(model, shown, "cross_entropy", lr=0.1 * size / 128, momentum=0.9, batch_size=size,
                 epochs=epochs, drop_last=True, schedule=EpochDecay((30, 60, 90), 0.1), seed=seed,
                 validation=ns.load_data(data, "test"), **options)  # fmt: skip
    found = run.validation
    train = [float(part.mean()) for part in np.array_split(run.losses, epochs)]
    return {"train": train, "loss": found.loss, "accuracy": found.accuracy}


def observe(table: Table) -> Values:
    """Differences of the last epoch between arms of the same seed."""
    last = {a: {k: table(k, arm=a)[:, -1] for k in ("train", "loss", "accuracy")} for a in ARMS}
    small, large, other = (last[a] for a in ARMS)
    gap = {a: last[a]["loss"] - last[a]["train"] for a in ARMS}
    grows = {"validation loss": large["loss"] - small["loss"],
             "validation accuracy lost": small["accuracy"] - large["accuracy"],
             "gap to the training loss": gap["BN M = 1024"] - gap["BN M = 128"]}  # fmt: skip
    lost = {"values": other["accuracy"] - small["accuracy"], "expected": 0.0}
    return {"fig3": parts(grows), "fig3-pn": lost}


def panels(table: Table) -> Panels:
    """Both panels of the figure, by epoch."""
    names = {"loss": "validation loss", "train": "training loss", "accuracy": "validation accuracy"}
    for keys in (("train", "loss"), ("accuracy",)):
        curves = [curve(f"{a}, {names[k]}", range(1, 1 + table(k, arm=a).shape[1]),
                        table(k, arm=a).T) for a in ARMS for k in keys]  # fmt: skip
        title = "Luo et al. 2019, Fig. 3: ResNet-18, ImageNet 32 x 32"
        yield Panel(title, "epoch", names[keys[-1]], tuple(curves))
