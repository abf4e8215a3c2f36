"""Small ResNet-110s after some training: do the issues of initialization persist?"""

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from normscope.experiments.bjorck2018._common import images, layer, resnet, slope
from normscope.experiments.observing import Panel, Table, Values, curve, parts
from normscope.measure.probes.signals import signals
from normscope.train import fit

RATES = {"none": 1e-4, "batch": 0.1, "diverging": 0.01}
DRAWS = 16  # batches behind a variance


def trial(arm: str, seed: int, data: str = "cifar10", width: int = 8, depth: int = 110,
          samples: int = 5000, batch: int = 128, steps: int = 200) -> Values:  # fmt: skip
    """One network at the rate of its kind; ``"diverging"``: far above its ceiling."""
    drawn = images(data, samples, seed, half=data != "digits")
    norm = "batch" if arm == "batch" else "none"
    net = resnet(depth, norm, seed, data=data, width=width)
    options: Values = {"momentum": 0.9, "batch_size": batch, "seed": seed}
    if arm == "diverging":
        run = fit(net, drawn, "cross_entropy", lr=RATES[arm], steps=steps, divergence=None,
                  **options)  # fmt: skip
        late = float(np.mean(run.losses[-20:]))
        return {"jumped": not np.max(run.losses) <= 1e3, "late": late if late < 1e30 else 1e30}
    noise = [_noise(net, drawn, batch, RATES[norm])]
    for _ in range(2):
        fit(net, drawn, "cross_entropy", lr=RATES[norm], steps=steps // 2, **options)
        noise.append(_noise(net, drawn, batch, RATES[norm]))
    found = signals(net, drawn, "cross_entropy", batch_size=batch, num_batches=1, histogram=0)
    outs = [s for s in found.activations.outputs if "shortcut" not in s.name]
    variance = np.array([s.variance.mean() for s in outs[:-1]])
    shown = [round(share * depth) for share in (0.16, 0.49, 0.82)]  # 18, 54 and 90 of 110
    return {
        "noise": np.array(noise),  # (time, absolute and relative)
        "alignment": [found.gradients[k].alignment for k in shown],
        "slope": slope(np.arange(len(variance)).astype(float), np.log10(variance))[0],
        "loss": found.gradients.loss}  # fmt: skip


def _noise(net: Any, data: Any, batch: int, rate: float) -> tuple[float, float]:
    """log10 of a^2 E|g_B - g|^2, and of the same over |a g|^2, in the middle layer."""
    count = sum(1 for stage in (net.stage1, net.stage2, net.stage3) for _ in stage)
    weight, rows = layer(net, count).weight, []
    for k in range(DRAWS):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(k))[:batch]
        loss: Any = functional.cross_entropy(net.train()(data.images[order]), data.labels[order])
        rows.append(torch.autograd.grad(loss, weight)[0].flatten().double())
    found = torch.stack(rows)
    noise = float(found.var(0).sum())
    signal = float(found.mean(0).square().sum()) - noise / DRAWS  # unbiased
    scale = math.log10(rate**2 * noise)
    return scale, math.log10(noise / max(signal, noise / DRAWS))


def observe(table: Table) -> Values:
    """What the claims read."""
    none, batch = (table.where(arm=n) for n in ("none", "batch"))
    bad = table.where(arm="diverging")
    gain = batch("noise") - none("noise")  # (seed, time, kind)
    return {"sec3-no-recovery": {"holds": np.logical_and(bad("jumped"),
                                                         bad("late") >= math.log(10) - 0.05)},
            "sec3-persist": parts({f"alignment {k + 1}": none("alignment")[:, k] - batch(
                "alignment")[:, k] for k in range(3)} | {"growth": none("slope") - batch("slope")}),
            "sec2-noise-bn": parts(
                {f"{kind}, {time}": gain[:, i, j]
                 for i, time in enumerate(("at initialization", "half way"))
                 for j, kind in enumerate(("absolute", "relative to the gradient"))})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Noise over training."""
    times = ["initialization", "half way", "end"]
    curves = [curve(name, times, 10 ** table("noise", arm=name)[:, :, 0].T, log=True)
              for name in ("none", "batch")]  # fmt: skip
    return [Panel("Sec. 2.1: noise of a step", "time", "a^2 E|g_B - g|^2, middle layer",
                  tuple(curves), log_y=True)]  # fmt: skip
