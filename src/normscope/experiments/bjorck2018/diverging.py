"""The update that makes an unnormalized ResNet-110 diverge: Figs 5 and 6."""

from typing import Any

import numpy as np

from normscope.experiments.bjorck2018._common import images, resnet, slope
from normscope.experiments.observing import Array, Panel, Panels, Table, Values, curve, parts
from normscope.train import diverging_update

PATH = np.linspace(0, 1, 21)
HALF = 10  # the middle of the path
CAP = 1e30  # stands for an overflow


def trial(seed: int, data: str = "cifar10", width: int = 16, depth: int = 110, batch: int = 32,
          rate: float = 0.016, steps: int = 20) -> Values:  # fmt: skip
    """From ``rate`` downwards by factors of 2: the path at twice the smallest that diverges."""
    net = resnet(depth, "none", seed, data=data, width=width)
    drawn = images(data, steps * batch, seed)
    tried: list[tuple[float, int]] = []
    kept: list[Any] = []
    while len(tried) < 20:
        update = diverging_update(net, drawn, "cross_entropy", lr=rate, momentum=0.9,
                                  max_steps=steps, batch_size=batch, seed=seed)  # fmt: skip
        if not update.diverged:
            kept = kept or [update]
            break
        tried.append((rate, update.step))
        kept, rate = [*kept[-1:], update], rate / 2
    found = kept[0].path(net, "cross_entropy", distances=PATH)
    variance, mean = (_finite(v) for v in (found.variance, found.mean_abs))
    return {"rates": [r for r, _ in tried], "updates": [n for _, n in tried],
            "loss": _finite(found.loss), "variance": np.log10(variance / variance[:, :1]),
            "mean": np.log10(mean / mean[:, :1])}  # fmt: skip


def _finite(values: Array) -> Array:
    return np.clip(np.nan_to_num(values, nan=CAP, posinf=CAP), 1e-30, CAP)


def observe(table: Table) -> Values:
    """What the claims read."""
    loss, variance, mean = (table(name) for name in ("loss", "variance", "mean"))
    hidden = variance.shape[1] - 1  # without the output
    low, high = slice(0, round(0.18 * hidden)), slice(round(0.83 * hidden), hidden)
    layers = np.arange(1, hidden + 1).astype(float)
    after = variance[:, :, -1]
    top = variance[:, high].mean(1)  # over the path
    line, power = (np.array([slope(x, row[:hidden]) for row in after])
                   for x in (layers, np.log10(layers)))  # fmt: skip
    return {
        "sec3-first-batches": {"holds": [max(row["updates"], default=99) <= 10
                                         for _, row in table]},
        "fig5-late": {"values": np.log10(loss[:, HALF] / loss[:, 0])},
        "fig5-late-share": parts({"middle against end": np.log10(loss[:, HALF] / loss[:, -1]) + 2,
                                  "lowest against start": np.log10(loss.min(1) / loss[:, 0])}),
        "fig6-top": {"values": after[:, high].mean(1)},
        "fig6-bottom": {"values": np.abs(after[:, low]).mean(1)},
        "fig6-exponential": parts({"slope": line[:, 0], "fit": line[:, 1] - power[:, 1]}),
        "fig6-means": parts(
            {"means, top against bottom": mean[:, high, -1].mean(1) - mean[:, low, -1].mean(1),
             "second half of the path": top[:, -1] - 2 * top[:, HALF]})}  # fmt: skip


def panels(table: Table) -> Panels:
    """Figs 5 and 6, with the network of the first seed in Fig. 6."""
    one, path = table.rows[0][1], PATH.tolist()
    yield Panel("Fig. 5", "share of the update", "loss on its own batch",
                tuple(curve(f"network {k + 1}", path, row) for k, row in enumerate(table("loss"))),
                log_y=True)  # fmt: skip
    layers = list(range(1, len(one["variance"]) + 1))
    for what in ("mean", "variance"):
        curves = [curve(f"{PATH[k]:.2g} of the update", layers, 10.0 ** one[what][:, k])
                  for k in (2, 5, 10, 15, 20)]  # fmt: skip
        yield Panel(f"Fig. 6, {what}s", "layer", f"channel {what} over its start", tuple(curves),
                    log_y=True)  # fmt: skip
