"""Sec. 2: training with batches of two and more; App. B.3: the cost of a step."""

import time
from itertools import pairwise

import numpy as np

import normscope as ns
from normscope.experiments.observing import Panel, Table, Values, columns, curve, parts

SIZES = (2, 4, 8, 32)
NETS = {  # network, shape of an image, options
    "MLP": ("mlp:768-256-256-10", "3x16x16", {}),
    "ResNet-8": ("resnet8", "3x16x16", {}),
    "CNN6": ("cnn6", "3x16x16", {"side": 16})}  # fmt: skip


def trial(part: str, steps: int, seed: int) -> Values:
    """Train digits with four batch sizes, or time steps of a network with two norms."""
    if part == "digits":
        data = ns.load_data("digits")
        test, found = ns.load_data("digits", "test"), []
        for size in SIZES:
            model = ns.network("mlp:64-32-32-10", norm="batch", seed=seed)
            ns.fit(model, data, "cross_entropy", lr=0.1, momentum=0.9, batch_size=size, steps=steps,
                   drop_last=True, seed=seed)  # fmt: skip
            found.append(ns.evaluate(model, test, "cross_entropy").accuracy)
        return {"accuracy": found}
    name, shape, options = NETS[part]
    data = ns.load_data(f"random:{shape}", samples=256)
    logs = []
    models = [ns.network(name, norm=norm, seed=seed, **options) for norm in ("weight", "batch")]
    for _ in range(steps):  # in turn, so that other work on the machine meets both
        spent = [_seconds(model, data) for model in models]
        logs.append(float(np.log(spent[0] / spent[1])))
    return {"log": float(np.median(logs))}


def _seconds(model: object, data: object) -> float:
    """CPU-seconds of two updates at batch size 128."""
    start = time.process_time()
    ns.fit(model, data, "cross_entropy", lr=1e-4, batch_size=128, steps=2)
    return time.process_time() - start


def observe(table: Table) -> Values:
    """Differences of accuracy between neighbours; logarithms of CPU time."""
    gain = np.diff(table("accuracy", part="digits"), axis=1)
    names = [f"M={a} to {b}" for a, b in pairwise(SIZES)]
    timed = [part for part in table.values_of("part") if part in NETS]
    return {"small-M": columns(gain, names),
            "b3-speed": parts({name: table("log", part=name) for name in timed})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Accuracy over the batch size."""
    found = curve("MLP on digits", SIZES, table("accuracy", part="digits").T)
    title = "Luo et al. 2019, Sec. 2: batch norm with small batches, equal numbers of updates"
    return [Panel(title, "batch size M", "test accuracy", (found,), log_x=True)]
