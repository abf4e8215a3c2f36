"""What norm layers do in a trained network: drift of their statistics, use of their scales."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from normscope.subject.process import measurement


@measurement
@torch.no_grad()
def variance_shift(model: nn.Module, inputs: Tensor, batch_size: int, *, passes: int = 5) -> float:
    """Mean |log10| of the variance a batch norm sees in training over that in evaluation.

    Dropout before a batch norm makes the two differ. Taken over the channels of all batch norms but
    the first, weights fixed. The running statistics are replaced by the mean over some passes in
    train mode, so that the drift of the weights is no part. The model is left as it was.

    Args:
        model: any module with at least two of torch's batch norms.
        inputs: what the training set gives the model.
        batch_size: samples in a batch of training.
        passes: over the inputs, for the variance in training.

    Example:
        >>> norm = nn.BatchNorm1d
        >>> net = nn.Sequential(norm(4), nn.Dropout(0.5), norm(4))
        >>> round(variance_shift(net, torch.randn(4000, 4), 100), 1)
        0.3
    """
    model = deepcopy(model)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    torch.manual_seed(0)
    model.train()
    for _ in range(passes):
        for part in torch.split(inputs[torch.randperm(len(inputs))], batch_size):
            model(part)
    seen: list[Tensor] = []
    for norm in norms:
        norm.register_forward_pre_hook(lambda _m, x: seen.append(x[0]))
    model.eval()(inputs)
    logs = []
    for norm, x in zip(norms[1:], seen[1:], strict=True):
        variance = x.transpose(0, 1).flatten(1).var(1)
        live = variance > 0  # not behind dead units
        assert norm.running_var is not None
        logs.append(torch.log10(norm.running_var[live] / variance[live]).abs())
    return float(torch.cat(logs).mean())


@measurement
def scale_information(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, prefix: str = "norm"
) -> float:
    """Mean over units and samples of (dl/dgamma)^2, statistics of the population.

    In all networks gamma is the scale of the standardized value: y = gamma n + beta, where n has
    mean 0 and variance 1 over the samples and y is what comes out of the norm, or stands in its
    place. So networks with different norms, or with none, can be compared. The model is left as it
    was.

    Args:
        model: any module whose norms, or what stands in their place, have outputs (N, units).
        inputs: what the samples give the model.
        labels: one for each sample; l is their cross-entropy.
        prefix: what the names of these modules begin with.

    Example:
        >>> net = nn.Sequential()
        >>> net.add_module("norm1", nn.LayerNorm(2))
        >>> scale_information(net, torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        0.0
    """
    seen: list[Tensor] = []
    copy = deepcopy(model).eval().requires_grad_()
    for name, module in copy.named_modules():
        if name.startswith(prefix):
            module.register_forward_hook(lambda _m, _x, y: seen.append(y))
    loss = functional.cross_entropy(copy(inputs), labels, reduction="sum")
    squares = []
    for y, slope in zip(seen, torch.autograd.grad(loss, seen), strict=True):
        deviation = y.std(0, correction=0).clamp_min(torch.finfo(y.dtype).tiny)
        squares.append((slope * (y - y.mean(0)) / deviation).square().mean())
    return float(torch.stack(squares).mean().detach())
