"""App. C.4: trained networks under batch statistics, layer by layer."""

from typing import Any

import numpy as np
import torch

import normscope as ns
from normscope.experiments.observing import Panel, Table, Values, columns, curve, over_sizes, parts
from normscope.measure.layer_signals import layer_signals
from normscope.results.rules import fitted_slope

SIZES = (16, 32, 64, 128, 256)
LAYERS = ("norm1", "norm2")
EARLY, LATE = (0, 1, 2), (2, 3, 4)  # batch sizes of the two fits of the slope


def trial(net: str, data: str, samples: int, epochs: int, batches: int, seed: int) -> Values:
    """Train with batch norm, then measure gaps, signs of the decay and pre-activations."""
    shown = ns.load_data(data).subset(samples, seed)
    shown = shown.downsample(2).flat() if data == "cifar10" else shown.flat()
    model = ns.network(net, norm="batch", seed=seed)
    about = {"batch_size": list(SIZES), "num_batches": batches, "seed": seed}
    fresh = _negative(ns.bn_regularization(model, shown, "cross_entropy", batch_size=16,
                                           num_batches=2, max_samples=256, seed=seed))  # fmt: skip
    run = ns.fit(model, shown, "cross_entropy", lr=0.02, momentum=0.9, batch_size=128,
                 epochs=epochs, seed=seed)  # fmt: skip
    found = ns.bn_regularization(model, shown, "cross_entropy", **about)
    layers = {layer.layer: [layer.paper, layer.predicted, layer.measured] for layer in found.layers}
    made: Values = {name: np.array(rows) for name, rows in layers.items()}
    made |= {"together": found.together, "loss": float(np.mean(run.losses[-samples // 128 :]))}
    return made | {"negative": [fresh, _negative(found)]} | _inputs(model, shown.images)


def _negative(found: Any) -> float:
    """Share of channels with a decay below zero."""
    return float(np.mean(np.concatenate([layer.zeta[0] < 0 for layer in found.layers])))


def _inputs(model: Any, images: torch.Tensor) -> Values:
    """How far from a Gaussian, and from Eq. (4), the inputs of the norms are."""
    kurtosis, off = [], []
    found = layer_signals(model.eval(), images, torch.sum)
    weights = [m.weight for m in model.children() if isinstance(m, torch.nn.Linear)]
    for layer in zip(found["x"], found["h"], weights, strict=True):
        x, h, weight = (v.detach().double() for v in layer)
        n = (h - h.mean(0)) / h.std(0)
        kurtosis.append(float(torch.mean(torch.abs((n**4).mean(0) - 3))))
        spread = x.var(0).mean().sqrt() * weight.norm(dim=1)
        off.append(float(torch.log(h.std(0) / spread).square().mean().sqrt()))
    return {"kurtosis": kurtosis[:-1], "off": off[:-1], "samples": len(images)}


def observe(table: Table) -> Values:
    """Ratios to the measured gaps; the network with exact curvature decides the signs."""
    nets = table.values_of("net")
    main, small = table.where(net=nets[0]), table.where(net=nets[-1])

    def ratios(row: int) -> Values:
        found = {n: main(n)[:, row] / main(n)[:, 2] for n in LAYERS}  # of (seeds, forms, sizes)
        return parts({n: over_sizes(SIZES, v.T, 1.0) for n, v in found.items()})

    whole, alone = main("together"), sum(main(name)[:, 2] for name in LAYERS)
    chosen = {"M=16 to 64": EARLY, "M=64 to 256": LATE}
    slopes = {k: fitted_slope([SIZES[i] for i in v], whole[:, v].T) for k, v in chosen.items()}
    with np.errstate(divide="ignore", invalid="ignore"):  # a noisy gap can be negative
        local = np.diff(np.log2(whole), axis=1)  # sizes double: slopes from each to the next
    noise = 0.8 * np.sqrt(24 / main("samples")[0])  # mean |excess kurtosis| of a Gaussian sample
    kurtosis, off = main("kurtosis"), main("off")
    below = small("negative")
    return {"strength-1overM": over_sizes(SIZES[:-1], local.T, -1.0),
            "strength-1overM-slopes": parts(slopes), "c4-deep": ratios(0),
            "c4-deep-corrected": ratios(1), "c4-psd": {"holds": below[:, 1] == 0},
            "c4-psd-fresh": {"holds": below[:, 0] > 0},
            "c4-additive": columns(whole / alone, [f"M={m}" for m in SIZES], expected=1.0),
            "wn-not-pn": parts({f"excess kurtosis, layer {kurtosis.shape[1]}": {"values": kurtosis[
                :, -1], "threshold": noise}, "error of Eq. (4), last less first": off[:, -1]
                                - off[:, 0]})}  # fmt: skip


def panels(table: Table) -> list[Panel]:
    """Gaps over the batch size: measured, the paper's diagonal form, the complete form."""
    main = table.where(net=table.values_of("net")[0])
    words = {"diagonal form of App. C.4": "dashed", "complete form": "line", "measured": "points"}
    curves = [curve(f"{name}, {word}", SIZES, main(name)[:, k].T, log=True, style=style)
              for name in LAYERS for k, (word, style) in enumerate(words.items())]  # fmt: skip
    curves.append(curve("both layers, measured", SIZES, main("together").T, log=True))
    title = "Luo et al. 2019, App. C.4: loss that batch statistics add to a trained network"
    return [Panel(title, "batch size M", "loss under BN - loss under PN", tuple(curves),
                  log_x=True, log_y=True)]  # fmt: skip
