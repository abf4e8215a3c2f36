"""ResNet-110 at initialization, with and without batch norm: Figs 2-4, 7, 13, 14, 18-23, Table 1.

Two settings, because the paper does not say which it used: shortcuts that pad and Xavier weights
everywhere ("pad"), and 1 x 1 projections with torch's default in the linear layer ("projection").
"""

from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional
from torch.nn import grad as torch_grad

from normscope.experiments.bjorck2018 import _init_views as views
from normscope.experiments.bjorck2018._common import density, images, layer, resnet
from normscope.experiments.bjorck2018._init_views import CLASSES, SHOWN
from normscope.experiments.observing import Array, Values
from normscope.measure.probes.signals import signals

_weight_gradient: Any = torch_grad.conv2d_weight
ALIGNED = 0.9  # |sum d| / sum |d| from which on the two are about equal
LARGEST = 1e300  # stands for an infinite ratio


def trial(norm: str, shortcut: str, seed: int, data: str = "cifar10", width: int = 16,
          batch: int = 128) -> Values:  # fmt: skip
    """All numbers of one network on one batch."""
    net = resnet(110, norm, seed, data=data, width=width, shortcut=shortcut)
    drawn = images(data, batch, seed)
    found: Any = signals(net, drawn, "cross_entropy", batch_size=batch, seed=seed, histogram=0)
    forward, back = found
    grads = [g for g in back.layers if "shortcut" not in g.name]
    outs = [s for s in forward.outputs if "shortcut" not in s.name]
    channels = [np.abs(g.channel_gradient) for g in grads]
    j = back.outputs.favoured
    made: Values = {
        "loss": back.loss, "terms": np.array([[g.t1, g.t2, g.t3, g.t4] for g in grads]).T,
        "std": np.array([g.std for g in grads]), "kurtosis": np.array([g.kurtosis for g in grads]),
        "mean": np.array([np.abs(s.mean).mean() for s in outs]),
        "variance": np.array([s.variance.mean() for s in outs]),
        "relative_mean": np.array([_shift(s.mean, s.variance) for s in outs]),
        "channel": np.array([c.mean() for c in channels]),
        "channel_cv": np.array([c.std() / c.mean() for c in channels]),
        "largest_output": float(np.abs(outs[-1].mean).max()), "favoured": j,
        "predicted": float(back.outputs.predicted[j]), "g_mean": float(back.outputs.mean[j]),
        "g_std": float(back.outputs.std[j]), "g_alignment": back.outputs.alignment,
        "g_examples": back.outputs.examples[:, j], "bias": float(channels[-1][j]),
        "matrix": back[45].matrix,
        "fig7": [getattr(back[45], k) for k in ("rank_one_signed", "column_cv", "row_cv")],
        "max_over_median": min(back[45].max_over_median, LARGEST),
        "mean_correlation": back[35].mean_correlation,
        "channel_ratio": min(back[35].channel_ratio, LARGEST),
        "fig18": np.stack([back[35].in_mean, back[35].in_gradient]),
        "fig23": [back[54].term_correlation, back[54].aligned, back[54].median_alignment],
        "points": back[54].terms[:, ::8],
        "entries": np.stack([back[55].histogram.edges()[:-1], back[55].histogram.density()]),
        "one_signed": _share([s.one_signed for s in forward.rectified])}  # fmt: skip
    return made | (_own_pass(net, drawn, classes=norm == "none") if norm != "top" else {})


def _share(flags: Any) -> float:
    return float(np.concatenate(flags).mean())


def _shift(mean: Array, variance: Array) -> float:
    """|mean| over standard deviation, the mean over the channels that are not constant."""
    moving = variance > 0
    return float(np.mean(np.abs(mean[moving]) / np.sqrt(variance[moving]))) if moving.any() else 0.0


def _own_pass(net: Any, data: Any, *, classes: bool) -> Values:
    """What needs single terms of the gradient, or the gradient of single classes."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    lowest: list[float] = []

    def watch(number: int) -> Any:
        def hook(module: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
            lowest.append(float(inputs[0].detach().min()))
            if number in (18, 54, 90, *SHOWN):
                out.retain_grad()
                seen[number] = inputs[0].detach(), out

        return layer(net, number).register_forward_hook(hook)

    handles = [watch(number) for number in range(2, 110)]
    z = net.train()(data.images)
    z.retain_grad()
    loss: Any = functional.cross_entropy(z, data.labels)
    loss.backward(retain_graph=classes)
    for handle in handles:
        handle.remove()
    shapes = [_shapes(seen[n][1].detach()) for n in SHOWN]
    made = {"lowest_input": min(lowest),
            "same_sign": [_same_sign(layer(net, n).weight, *seen[n]) for n in (18, 54, 90)],
            "bimodal": [share for share, _ in shapes],
            "shapes": np.array([density for _, density in shapes]),
            "contribution": _contribution(layer(net, 54), seen[54][0][:16])}  # fmt: skip
    made |= _summands(layer(net, 90).weight, *seen[90])
    return made | (_by_class(net, z) if classes else {})


def _summed(x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
    """Sum of g x over images and positions, for every weight of a 3 x 3 convolution."""
    made: Tensor = _weight_gradient(x, list(weight.shape), g, x.shape[-1] // g.shape[-1], 1)
    return made


def _same_sign(weight: Tensor, x: Tensor, out: Any) -> float:
    """Share of the non-zero terms that have the majority's sign, median over the weights."""
    up, down = (_summed((x > 0).float(), s.float(), weight) for s in (out.grad > 0, out.grad < 0))
    total = up + down
    return float((torch.maximum(up, down) / total)[total > 0].median())


def _shapes(out: Tensor) -> tuple[float, Array]:
    """Share of channels with a bimodality coefficient above 5/9; densities of four of them."""
    rows = out.transpose(0, 1).flatten(1).double()
    rows = rows[rows.std(1) > 0]
    z = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True, correction=0)
    bimodal = ((z**3).mean(1) ** 2 + 1) / (z**4).mean(1) > 5 / 9
    chosen = [rows[int(k)].numpy() for k in np.linspace(0, len(rows) - 1, 4)]
    return float(bimodal.double().mean()), np.array([density(row) for row in chosen])


def _summands(weight: Any, x: Tensor, out: Any) -> Values:
    """Fig. 22: the terms d of a well aligned weight, and of one with a small gradient."""
    g, size = out.grad, weight.grad.abs().flatten()
    aligned = size / _summed(x.abs(), g.abs(), weight).flatten()
    limit = min(ALIGNED, float(aligned.nan_to_num().max()))
    large = torch.where(aligned >= limit, size, -1.0).argmax()
    alive = size[size > 0].sort().values
    small = (size - alive[len(alive) // 10]).abs().argmin()  # the first decile
    padded, (height, width) = functional.pad(x, (1, 1, 1, 1)), g.shape[2:]
    made: Values = {}
    for name, index in (("large", large), ("small", small)):
        o, i, k, m = (int(v) for v in np.unravel_index(int(index), tuple(weight.shape)))
        d = (g[:, o] * padded[:, i, k : k + height, m : m + width]).double().flatten()
        sides = [float((d > 0).double().sum()), float((d < 0).double().sum())]
        made[f"{name}_shift"] = float(d.mean().abs() / d.std())
        made[f"{name}_sign"] = max(sides) / sum(sides)
        made[f"{name}_density"] = density(d.numpy(), 60)
    return made


def _contribution(conv: Any, x: Tensor) -> float:
    """Spearman's rho of the mean of an in-channel and its mean |contribution| to the output."""
    weight, size = conv.weight.detach(), []
    for i in range(x.shape[1]):
        part = functional.conv2d(x[:, i : i + 1], weight[:, i : i + 1], padding=1)
        size.append(float(part.abs().mean()))
    return float(stats.spearmanr(x.mean((0, 2, 3)).numpy(), size).statistic)


def _by_class(net: Any, z: Any) -> Values:
    """Gradients of kernels through each class alone, App. L."""
    weights = [layer(net, number).weight for number in CLASSES]
    rest = [-w.grad for w in weights]
    rows = []
    for j in range(z.shape[1]):
        masked = torch.zeros_like(z)
        masked[:, j] = z.grad[:, j]
        found = torch.autograd.grad(z, weights, masked, retain_graph=True)
        rows.append([float(g.abs().double().mean()) for g in found])
        rest = [r + g for r, g in zip(rest, found, strict=True)]
    error = [float(r.norm() / w.grad.norm()) for r, w in zip(rest, weights, strict=True)]
    return {"classes": np.array(rows).T, "class_error": max(error)}  # (layers, classes)


observe, panels = views.observe, views.panels
